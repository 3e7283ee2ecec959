"""Gemma 2: scores within -50 and 50, and a sliding window in every second layer.

Gemma Team, Gemma 2: Improving Open Language Models at a Practical Size, arXiv 2408.00118.

    o_i = softmax_j(cap tanh(s_ij / cap)) v_j    over the keys  i - W < j <= i
"""

import torch
from _common import Variant, positions, scores, softmax, weigh

from attn_mlir import attention

CAP, WINDOW = 50.0, 64


def softcap(score, b, h, q_idx, kv_idx):
    return CAP * torch.tanh(score / CAP)


def window(b, h, q_idx, kv_idx):
    return (q_idx >= kv_idx) & (q_idx - kv_idx < WINDOW)


def run(q, k, v):
    return attention(q, k, v, score_mod=softcap, mask_mod=window)


def reference(q, k, v):
    s = scores(q, k)
    i, j = positions(s)
    return weigh(softmax(CAP * torch.tanh(s / CAP), (j <= i) & (j > i - WINDOW)), v)


variant = Variant(run, reference, mask=lambda **_: window, flex=lambda **_: {"score_mod": softcap, "mask_mod": window})
