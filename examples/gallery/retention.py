"""Retention: no softmax, but a decay with the distance for each head.

Sun et al., Retentive Network: A Successor to Transformer for Large Language Models, arXiv 2307.08621, the parallel form.

    p_ij = r_ij / max(|sum_j r_ij|, 1),    r_ij = s_ij gamma_h^(i - j)    over the keys  j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, weigh

from attn_mlir import attention


def decayed(log_gamma):
    return lambda score, b, h, q_idx, kv_idx: score * torch.exp(log_gamma[h] * (q_idx - kv_idx).clamp(min=0))


def retention(s):
    return s / abs(s.sum()).clamp(min=1.0)


def run(q, k, v, log_gamma):
    return attention(q, k, v, row=retention, score_mod=decayed(log_gamma), mask_mod="t")


def reference(q, k, v, log_gamma):
    s = scores(q, k)
    i, j = positions(s)
    r = s * torch.exp(log_gamma[:, None, None] * (i - j).clamp(min=0)) * (j <= i)
    return weigh(r / r.sum(-1, keepdim=True).abs().clamp(min=1.0), v)


def inputs(n: Sizes):
    return qkv(n) | {"log_gamma": torch.log1p(-torch.exp2(-5.0 - torch.arange(n.heads)))}


variant = Variant(run, reference, inputs)
