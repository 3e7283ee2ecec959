"""T5's relative position bias: a learned number for each head and bucket of distances.

Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (T5), arXiv 1910.10683. This is the
decoder's form: 16 buckets for the distances 0 to 15, 16 of growing size up to 128. T5 does not divide scores by sqrt(D).

    o_i = softmax_j(q_i . k_j + table[bucket(i - j), h]) v_j    over the keys  j <= i
"""

import math

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def t5_bias(table):
    def bias(score, b, h, q_idx, kv_idx):
        distance = (q_idx - kv_idx).clamp(min=0)
        far = 16 + torch.floor(torch.log(distance.clamp(min=16) / 16.0) * (16 / math.log(8))).long()
        return score + table[torch.where(distance < 16, distance, far).clamp(0, 31), h]

    return bias


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def run(q, k, v, table):
    return attention(q, k, v, score_mod=t5_bias(table), mask_mod=causal, scale=1.0)


def reference(q, k, v, table):
    s = scores(q, k, 1.0)
    i, j = positions(s)
    starts = torch.tensor([*range(1, 16), *[math.ceil(16 * 8 ** (n / 16) - 1e-9) for n in range(16)]])  # of the buckets 1 to 31
    bucket = torch.bucketize((i - j).clamp(min=0), starts.to(s.device), right=True)
    return weigh(softmax(s + table[bucket].permute(2, 0, 1), j <= i), v)


def inputs(n: Sizes):
    x = qkv(n)
    return x | {"q": x["q"] * n.dim**-0.5, "table": torch.randn(32, n.heads)}


variant = Variant(run, reference, inputs)
