"""Block diffusion: a noised copy of a text is denoised block by block, given the clean blocks before.

Arriola et al., Block Diffusion: Interpolating Between Autoregressive and Diffusion Language Models, arXiv 2503.09573. The first half of the
sequence is noised, the second half is the same text, clean.

    noised query: its own noised block, clean blocks before it;    clean query: clean blocks up to its own
"""

from _common import Variant, positions, scores, softmax, weigh

from attn_mlir import attention

BLOCK = 16


def block_diffusion(n):
    def mask(b, h, q_idx, kv_idx):
        noised_q, noised_kv = q_idx < n, kv_idx < n
        block_q, block_kv = (q_idx % n) // BLOCK, (kv_idx % n) // BLOCK
        own = noised_q & noised_kv & (block_q == block_kv)
        before = noised_q & ~noised_kv & (block_q > block_kv)
        clean = ~noised_q & ~noised_kv & (block_q >= block_kv)
        return own | before | clean

    return mask


def run(q, k, v):
    return attention(q, k, v, mask_mod=block_diffusion((q.shape[2] + 1) // 2))


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    n = (len(j) + 1) // 2
    block_i, block_j = i % n // BLOCK, j % n // BLOCK
    noised = (i < n) & ((j < n) & (block_i == block_j) | (j >= n) & (block_j < block_i))
    return weigh(softmax(s, noised | (i >= n) & (j >= n) & (block_j <= block_i)), v)


def given(q, **_):
    return block_diffusion((q.shape[2] + 1) // 2)


variant = Variant(run, reference, mask=given, flex=lambda **x: {"mask_mod": given(**x)})
