"""LASER: attention to exp(v), so that gradients through small weights don't vanish.

Duvvuri & Dhillon, LASER: Attention with Exponential Transformation, arXiv 2411.03493.

    o_i = log(sum_j softmax_j(s_ij) exp(v_j))    over the keys  j <= i
"""

import torch
from _common import Variant, positions, scores, softmax, weigh

from attn_mlir import attention, masks


def run(q, k, v):
    m = v.detach().amax(2)  # [B, heads, D]
    o = attention(q, k, v, value_mod=lambda x, b, h, idx, d: torch.exp(x - m[b, h, d]), mask_mod="t")
    return torch.log(o) + m.repeat_interleave(q.shape[1] // v.shape[1], 1)[:, :, None]


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    return torch.log(weigh(softmax(s, j <= i), v.exp()))


variant = Variant(run, reference, mask=lambda **_: masks.causal())  # o is not linear in v: no weights to draw
