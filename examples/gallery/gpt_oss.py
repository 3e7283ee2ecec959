"""gpt-oss: a learned sink in the denominator of each head, a window, and groups of queries.

OpenAI, gpt-oss-120b & gpt-oss-20b Model Card, arXiv 2508.10925. `attn_mlir.rows.softmax_sink` is the same row, ready-made.

    o_i = sum_j exp(s_ij) v_j / (exp(sink_h) + sum_j exp(s_ij))    over the keys  i - W < j <= i
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, weigh

from attn_mlir import attention

WINDOW = 64


def softmax_with_sink(sink):
    def row(s, b, h, q_idx):
        m = torch.maximum(s.max(), sink[h])
        e = torch.exp(s - m)
        return e / (e.sum() + torch.exp(sink[h] - m))

    return row


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def run(q, k, v, sink):
    return attention(q, k, v, row=softmax_with_sink(sink), mask_mod=window)


def reference(q, k, v, sink):
    s = scores(q, k)
    i, j = positions(s)
    s = s.masked_fill((j > i) | (j <= i - WINDOW), -torch.inf)
    with_sink = torch.cat([s, sink[:, None, None].expand(*s.shape[:3], 1)], -1)
    return weigh(torch.softmax(with_sink, -1)[..., :-1], v)


def inputs(n: Sizes):
    return qkv(n) | {"sink": torch.randn(n.heads)}


variant = Variant(run, reference, inputs, mask=lambda **_: window)
