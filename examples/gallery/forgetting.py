"""Forgetting attention (FoX): gates of the positions between key and query weaken a score.

Lin et al., Forgetting Transformer: Softmax Attention with a Forget Gate, arXiv 2503.02130.

    o_i = softmax_j(s_ij + sum_{j < t <= i} log f_t) v_j    over the keys  j <= i,    f = sigmoid(gate)
"""

import torch
from _common import Sizes, Variant, positions, qkv, scores, softmax, weigh

from attn_mlir import attention


def forget(gate):
    c = torch.nn.functional.logsigmoid(gate).cumsum(-1)
    return lambda score, b, h, q_idx, kv_idx: score + c[b, h, q_idx] - c[b, h, kv_idx]


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def run(q, k, v, gate):
    return attention(q, k, v, score_mod=forget(gate), mask_mod=causal)


def reference(q, k, v, gate):
    s = scores(q, k)
    i, j = positions(s)
    gates = torch.sigmoid(gate).log()[..., None].expand(s.shape)  # [t, j]
    between = torch.where(i > j, gates, 0.0).cumsum(2)  # over j < t <= i
    return weigh(softmax(s + between, j <= i), v)


def inputs(n: Sizes):
    return qkv(n) | {"gate": torch.randn(n.batch, n.heads, n.length) + 3}


variant = Variant(run, reference, inputs, flex=lambda gate, **_: {"score_mod": forget(gate), "mask_mod": causal})
