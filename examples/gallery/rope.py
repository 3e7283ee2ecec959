"""RoPE: pairs of channels turn with the position, as a function of one element.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864; halves are paired, as in GPT-NeoX and Llama.
`rotate_half(x)` is the other channel of the pair; `mods.rope(cos, sin)` is this function ready-made, with positions and interleaved pairs.

    o_i = softmax_j(R_i q_i . R_j k_j / sqrt(D)) v_j    over the keys  j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention, rotate_half


def rotary(cos, sin):
    half = cos.shape[-1]

    def rotate(x, b, h, idx, d):
        return x * cos[idx, d % half] + rotate_half(x) * sin[idx, d % half]

    return rotate


def run(q, k, v, cos, sin):
    return attention(q, k, v, query_mod=rotary(cos, sin), key_mod=rotary(cos, sin), mask_mod="t")


def reference(q, k, v, cos, sin):
    def rotate(x):
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    s = scores(rotate(q), rotate(k))
    i, j = positions(s)
    return weigh(softmax(s, j <= i), v)


def inputs(n: Sizes):
    angle = torch.arange(n.length)[:, None] * 10000.0 ** -(torch.arange(n.dim // 2) * 2 / n.dim)
    return qkv(n) | {"cos": angle.cos(), "sin": angle.sin()}


variant = Variant(run, reference, inputs)
