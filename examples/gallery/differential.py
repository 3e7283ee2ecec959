"""Differential attention: the difference of two softmaxes cancels what both attend to.

Ye et al., Differential Transformer, arXiv 2410.05258. The output is linear in the weights, so two calls do it.

    o_i = (softmax_j(s1_ij) - lambda_h softmax_j(s2_ij)) v_j    over the keys  j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def run(q, k, v, q2, k2, lam):
    return attention(q, k, v, mask_mod="t") - lam[:, None, None] * attention(q2, k2, v, mask_mod="t")


def reference(q, k, v, q2, k2, lam):
    s, s2 = scores(q, k), scores(q2, k2)
    i, j = positions(s)
    return weigh(softmax(s, j <= i) - lam[:, None, None] * softmax(s2, j <= i), v)


def inputs(n: Sizes):
    second = qkv(n)
    return qkv(n) | {"q2": second["q"], "k2": second["k"], "lam": torch.rand(n.heads)}


variant = Variant(run, reference, inputs)
