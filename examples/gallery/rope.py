"""RoPE: pairs of channels turn with the position, inside of the kernel.

Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding, arXiv 2104.09864; halves are paired, as in GPT-NeoX and Llama.
The functions see one element; its partner is read from the captured tensor. For speed, rotate q and k before the call.

    o_i = softmax_j(R_i q_i . R_j k_j / sqrt(D)) v_j    over the keys  j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def rotary(x, cos, sin):
    half = x.shape[-1] // 2

    def rotate(element, b, h, idx, d):
        partner = x[b, h, idx, (d + half) % (2 * half)]
        turned = torch.where(d < half, -partner, partner)
        return element * cos[idx, d % half] + turned * sin[idx, d % half]

    return rotate


def run(q, k, v, cos, sin):
    return attention(q, k, v, query_mod=rotary(q, cos, sin), key_mod=rotary(k, cos, sin), mask_mod="t")


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
