"""Cascade: a prefix that all sequences of a batch share is read once, and merged by the log-sum-exp.

Juravsky et al., Hydragen: High-Throughput LLM Inference with Shared Prefixes, arXiv 2402.05099; also FlashInfer's cascades, arXiv
2501.01005.

    o = w o_prefix + (1 - w) o_own,    w = exp(lse_prefix) / (exp(lse_prefix) + exp(lse_own))
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def run(q, k, v, prefix_k, prefix_v):
    batch = len(q)
    all_queries = q.transpose(0, 1).flatten(1, 2)[None]  # [1, heads, B * S, D]
    o, lse = attention(all_queries, prefix_k, prefix_v, return_lse=True)
    o, lse = o[0].unflatten(1, (batch, -1)).transpose(0, 1), lse[0].unflatten(1, (batch, -1)).transpose(0, 1)
    own, own_lse = attention(q, k, v, mask_mod="t", return_lse=True)
    return torch.lerp(own, o, torch.sigmoid(lse - own_lse)[..., None].to(o.dtype))


def reference(q, k, v, prefix_k, prefix_v):
    s = scores(q, torch.cat([prefix_k.expand(len(k), -1, -1, -1), k], 2))
    i, j = positions(s)
    return weigh(softmax(s, j <= i + prefix_k.shape[2]), torch.cat([prefix_v.expand(len(v), -1, -1, -1), v], 2))


def inputs(n: Sizes):
    k, v = torch.randn(2, 1, n.kv_heads, 2 * n.length + 1, n.dim)
    return qkv(n) | {"prefix_k": k, "prefix_v": v}


variant = Variant(run, reference, inputs)
