"""Top-k attention: softmax over the k largest scores of a row.

Gupta et al., Memory-efficient Transformers via Top-k Attention, arXiv 2106.06899. Repeated maxima find the k-th largest score, each by a
pass over the keys.

    p_ij = exp(s_ij) / sum exp(s)    over the k keys  j <= i  with the largest scores
"""

import torch
from _common import Variant, positions, scores, softmax, weigh

from attn_mlir import attention

K = 4


def top_k(s):
    first = kth = s.max()
    for _ in range(K - 1):
        kth = torch.where(s < kth, s, -1e30).max()
    e = torch.where(s >= kth, torch.exp(s - first), 0.0)
    return e / e.sum()


def run(q, k, v):
    return attention(q, k, v, row=top_k, mask_mod="t")


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    best = s.masked_fill(j > i, -torch.inf).topk(min(K, s.shape[-1]), -1).indices
    chosen = torch.zeros_like(s, dtype=torch.bool).scatter_(-1, best, True)
    return weigh(softmax(s, chosen & (j <= i)), v)


variant = Variant(run, reference, row=top_k)
