"""Softpick: a rectified softmax, whose rows need not sum to one: no sinks, no huge activations.

Zuhri et al., Softpick: No Attention Sink, No Massive Activations with Rectified Softmax, arXiv 2504.20966.

    p_ij = relu(exp(s_ij) - 1) / (sum_j |exp(s_ij) - 1| + eps)    over the keys  j <= i
"""

import torch
from _common import Variant, positions, scores, weigh

from attn_mlir import attention


def softpick(s):
    m = s.max()
    x = torch.exp(s - m) - torch.exp(-m)
    return torch.relu(x) / (abs(x).sum() + 1e-6)


def run(q, k, v):
    return attention(q, k, v, row=softpick, mask_mod="t")


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    m = s.masked_fill(j > i, -torch.inf).amax(-1, keepdim=True)
    x = (torch.exp(s - m) - torch.exp(-m)) * (j <= i)
    return weigh(torch.relu(x) / (x.abs().sum(-1, keepdim=True) + 1e-6), v)


variant = Variant(run, reference, row=softpick)
