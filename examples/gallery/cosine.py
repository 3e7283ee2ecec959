"""Cosine attention: the angle between query and key, times a learned number for each head.

Liu et al., Swin Transformer V2: Scaling Up Capacity and Resolution, arXiv 2111.09883; Henry et al., arXiv 2010.04245, have one for all
heads.

    o_i = softmax_j(min(exp(logit_h), 100) cos(q_i, k_j)) v_j
"""

import torch
from _common import Sizes, Variant, qkv, scores, weigh
from torch.nn.functional import normalize

from attn_mlir import attention


def scaled(logit):
    return lambda score, b, h, q_idx, kv_idx: score * logit.exp().clamp(max=100.0)[h]


def run(q, k, v, logit):
    return attention(normalize(q, dim=-1), normalize(k, dim=-1), v, score_mod=scaled(logit), scale=1.0)


def reference(q, k, v, logit):
    cosine = scores(q, k, 1.0) / scores(q.norm(dim=-1, keepdim=True), k.norm(dim=-1, keepdim=True), 1.0)
    return weigh(torch.softmax(cosine * logit.exp().clamp(max=100.0)[:, None, None], -1), v)


def inputs(n: Sizes):
    return qkv(n) | {"logit": 2 + torch.randn(n.heads)}


variant = Variant(run, reference, inputs)
