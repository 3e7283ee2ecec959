"""Prefix LM: a prompt that sees all of itself, and an answer that is causal.

Raffel et al., Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer (T5), arXiv 1910.10683.

    o_i = softmax_j(s_ij) v_j    over the keys  j <= i  and  j < prefix of the batch entry
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def prefix_lm(prefix):
    return lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) | (kv_idx < prefix[b])


def run(q, k, v, prefix):
    return attention(q, k, v, mask_mod=prefix_lm(prefix))


def reference(q, k, v, prefix):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(softmax(s, (j <= i) | (j < prefix[:, None, None, None])), v)


def inputs(n: Sizes):
    return qkv(n) | {"prefix": torch.randint(1, n.length, [n.batch])}


def given(prefix, **_):
    return prefix_lm(prefix)


variant = Variant(run, reference, inputs, mask=given, flex=lambda **x: {"mask_mod": given(**x)})
