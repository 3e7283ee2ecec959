"""Sparsemax: the projection of the scores onto the simplex, with exact zeros.

Martins & Astudillo, From Softmax to Sparsemax, arXiv 1602.02068. The threshold is found by Michelot's steps, of which each is a pass over
the keys. After enough of them the support is exact; only the last one needs a gradient.

    p_ij = relu(s_ij - tau_i)    with tau_i such that  sum_j p_ij = 1,  over the keys  j <= i
"""

import torch
from _common import Variant, positions, scores, weigh

from attn_mlir import attention

STEPS = 6


def sparsemax(s):
    tau = (s.max() - 1.0).detach()
    for _ in range(STEPS):
        inside = s > tau.detach()
        tau = (torch.where(inside, s, 0.0).sum() - 1.0) / torch.where(inside, 1.0, 0.0).sum()
    return torch.relu(s - tau)


def run(q, k, v):
    return attention(q, k, v, row=sparsemax, mask_mod="t")


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    s = s.masked_fill(j > i, -1e30)
    z = s.sort(-1, descending=True).values
    size = ((j + 1) * z > z.cumsum(-1) - 1).sum(-1, keepdim=True)  # of the support
    tau = (z.cumsum(-1).gather(-1, size - 1) - 1) / size
    return weigh(torch.relu(s - tau), v)


variant = Variant(run, reference, row=sparsemax)
