"""Mamba-2: a state space model whose step size, input and output depend on the input.

Dao & Gu, Transformers are SSMs: Generalized Models and Efficient Algorithms Through Structured State Space Duality, arXiv 2405.21060.
`attn_mlir.mamba2` has the argument names of mamba_ssm, and the rest of its block.

    S_t = exp(dt_t A_h) S_(t-1) + dt_t B_t x_t^T,    y_t = S_t^T C_t,    dt = softplus(step)
"""

import torch
from _common import Sizes, Variant

from attn_mlir import linear_attention


def run(x, B, C, step, A):
    dt = torch.nn.functional.softplus(step)  # [batch, heads, T]

    def decay(g, b, h, t):
        return g * A[h]

    def write(value, b, h, t):
        return value * dt[b, h, t]

    return linear_attention(C, B, x, dt, decay_mod=decay, v_mod=write)


def reference(x, B, C, step, A):
    B, C = (y.repeat_interleave(x.shape[1] // y.shape[1], 1) for y in (B, C))
    dt, y = torch.log1p(step.exp()), []
    state = torch.zeros_like(B[:, :, 0, :, None] * x[:, :, 0, None])
    for t in range(x.shape[2]):
        d = dt[:, :, t, None, None]
        state = torch.exp(d * A[:, None, None]) * state + d * B[:, :, t, :, None] * x[:, :, t, None]
        y.append((C[:, :, t, None] @ state)[:, :, 0])
    return torch.stack(y, 2)


def inputs(n: Sizes):
    B, C = torch.randn(2, n.batch, n.kv_heads, n.length, n.dim)
    x = torch.randn(n.batch, n.heads, n.length, n.dim)
    return {"x": x, "B": B, "C": C, "step": torch.randn(n.batch, n.heads, n.length) - 2, "A": -1 - torch.rand(n.heads)}


variant = Variant(run, reference, inputs)
