"""NSA, native sparse attention: compressed blocks, the best blocks in full, and a window, mixed by gates.

Yuan et al., Native Sparse Attention: Hardware-Aligned and Natively Trainable Sparse Attention, arXiv 2502.11089. Blocks are compressed by
their means here, where the paper learns how; the heads of a group choose together.

    o = g1 attention(compressed) + g2 attention(the TOP best blocks) + g3 attention(window),    g = sigmoid(gate)
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention

BLOCK, TOP, WINDOW = 16, 3, 32


def compress(x):
    whole = x.shape[2] // BLOCK * BLOCK
    return x[:, :, :whole].unflatten(2, (-1, BLOCK)).mean(3)


def choose(q, compressed):
    """bool [B, kv_heads, Sq, blocks]: the own block, and the earlier ones with the largest scores in the group; no gradient."""
    s = torch.einsum("bgnid,bgcd->bgic", q.unflatten(1, (compressed.shape[1], -1)), compressed)
    own = torch.arange(q.shape[2], device=q.device)[:, None] // BLOCK
    block = torch.arange((q.shape[2] + BLOCK - 1) // BLOCK, device=q.device)
    s = torch.nn.functional.pad(s, (0, len(block) - s.shape[3])).masked_fill(block > own, -torch.inf)
    best = s.masked_fill(block == own, torch.inf).topk(min(TOP, len(block)), -1).indices
    return torch.zeros_like(s, dtype=torch.bool).scatter_(-1, best, True)


def run(q, k, v, gate):
    small_k, small_v = compress(k), compress(v)
    chosen, group = choose(q.detach(), small_k.detach()), q.shape[1] // k.shape[1]

    def finished(b, h, q_idx, block):
        return (block + 1) * BLOCK <= q_idx + 1

    def selected(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & chosen[b, h // group, q_idx, kv_idx // BLOCK]

    def window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)

    g = torch.sigmoid(gate)
    o = g[..., :1] * attention(q, small_k, small_v, mask_mod=finished)
    return o + g[..., 1:2] * attention(q, k, v, mask_mod=selected) + g[..., 2:] * attention(q, k, v, mask_mod=window)


def reference(q, k, v, gate):
    s, small = scores(q, k), scores(q, compress(k))
    i, j = positions(s)
    group, (_, c) = q.shape[1] // k.shape[1], positions(small)
    fit = small.unflatten(1, (-1, group)).sum(2).masked_fill(c >= i // BLOCK, -torch.inf)
    past = (fit.argsort(-1, descending=True).argsort(-1) < TOP - 1).repeat_interleave(BLOCK, -1)
    past = torch.nn.functional.pad(past, (0, len(j) - past.shape[-1])).repeat_interleave(group, 1)
    blocks = weigh(softmax(s, (j <= i) & (past | (i // BLOCK == j // BLOCK))), v)
    near = weigh(softmax(s, (j <= i) & (j > i - WINDOW)), v)
    g = torch.sigmoid(gate)
    return g[..., :1] * weigh(softmax(small, c * BLOCK + BLOCK - 1 <= i), compress(v)) + g[..., 1:2] * blocks + g[..., 2:] * near


def inputs(n: Sizes):
    return qkv(n) | {"gate": torch.randn(n.batch, n.heads, n.length, 3)}


variant = Variant(run, reference, inputs)
