"""Scalable-softmax: scores grow with the logarithm of the number of keys, so that long contexts don't blur.

Nakanishi, Scalable-Softmax Is Superior for Attention, arXiv 2501.19399. The slope of each head is learned.

    o_i = softmax_j(slope_h log(n_i) s_ij) v_j    over the n_i = i + 1 keys  j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def ssmax(slope):
    return lambda score, b, h, q_idx, kv_idx: score * slope[h] * torch.log(q_idx + 1.0)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def run(q, k, v, slope):
    return attention(q, k, v, score_mod=ssmax(slope), mask_mod=causal)


def reference(q, k, v, slope):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(softmax(s * slope[:, None, None] * torch.log(i + torch.ones_like(slope[0])), j <= i), v)


def inputs(n: Sizes):
    return qkv(n) | {"slope": 0.2 + torch.rand(n.heads)}


variant = Variant(run, reference, inputs, flex=lambda slope, **_: {"score_mod": ssmax(slope), "mask_mod": causal})
