"""GLA, gated linear attention: a state whose rows forget at rates that the input sets.

Yang et al., Gated Linear Attention Transformers with Hardware-Efficient Training, arXiv 2312.06635. You write the recurrence; chunks,
states and the backward are derived.

    S_t = diag(a_t) S_(t-1) + k_t v_t^T,    o_t = S_t^T q_t / sqrt(D),    a = sigmoid(gate)^(1/16)
"""

import torch
from _common import Sizes, Variant, qkv

from attn_mlir import linear_attention


def run(q, k, v, gate):
    def decay(g):
        return torch.nn.functional.logsigmoid(g) / 16.0

    return linear_attention(q, k, v, gate, decay_mod=decay, scale=None)


def reference(q, k, v, gate):
    state, o = torch.zeros_like(k[:, :, 0, :, None] * v[:, :, 0, None]), []
    for t in range(q.shape[2]):
        state = torch.sigmoid(gate[:, :, t, :, None]) ** (1 / 16) * state + k[:, :, t, :, None] * v[:, :, t, None]
        o.append((q[:, :, t, None] @ state)[:, :, 0] * q.shape[-1] ** -0.5)
    return torch.stack(o, 2)


def inputs(n: Sizes):
    n = Sizes(n.batch, n.heads, n.heads, n.length, n.dim)
    return qkv(n) | {"gate": torch.randn(n.batch, n.heads, n.length, n.dim)}


variant = Variant(run, reference, inputs)
