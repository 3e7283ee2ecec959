"""Differential attention: the difference of two softmaxes cancels what both attend to.

Ye et al., Differential Transformer, arXiv 2410.05258. A row of two scores: `extra_qk` has the second queries and keys, v is read once.

    o_i = (softmax_j(s1_ij) - lambda_h softmax_j(s2_ij)) v_j    over the keys  j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def run(q, k, v, q2, k2, lam):
    def difference(s, s2, b, h, q_idx):
        return s.softmax(-1) - lam[h] * s2.softmax(-1)

    return attention(q, k, v, row=difference, mask_mod="t", extra_qk=[(q2, k2)])


def reference(q, k, v, q2, k2, lam):
    s, s2 = scores(q, k), scores(q2, k2)
    i, j = positions(s)
    return weigh(softmax(s, j <= i) - lam[:, None, None] * softmax(s2, j <= i), v)


def inputs(n: Sizes):
    second = qkv(n)
    return qkv(n) | {"q2": second["q"], "k2": second["k"], "lam": torch.rand(n.heads)}


variant = Variant(run, reference, inputs)
