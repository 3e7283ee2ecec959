"""The delta rule in float64, position by position, for autograd to differentiate."""

import itertools
from typing import Any

import torch


def delta_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor | None,
    e: torch.Tensor,
    r: torch.Tensor | None = None,
    initial_state: torch.Tensor | None = None,
    scale: float = 1.0,
    read_before: bool = False,
    cu_seqlens: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the final state of S = D S + k v^T - r (e^T D S), for [B, H, T, D] after all mods; e is the erase key.

    g is [B, H, T] or [B, H, T, K]. Without r it is k that is removed.
    """
    (b, h, t), dim = v.shape[:3], q.shape[3]
    q, k, e = (x.double().repeat_interleave(h // x.shape[1], dim=1) for x in (q, k, e))
    r = k if r is None else r.double().repeat_interleave(h // r.shape[1], dim=1)
    v = v.double()
    g = torch.zeros(b, h, t, dtype=torch.float64) if g is None else g.double()
    fade = (g.unsqueeze(3).expand(b, h, t, dim) if g.dim() == 3 else g).exp()
    outputs, finals = [], []
    rows = [x.unbind(2) for x in (q, k, v, e, r, fade)]
    for n, (begin, end) in enumerate(itertools.pairwise([0, t] if cu_seqlens is None else list(cu_seqlens))):
        state = torch.zeros(b, h, dim, v.shape[3], dtype=torch.float64)
        if initial_state is not None:
            state = initial_state.double() if cu_seqlens is None else initial_state[n : n + 1].double()
        for i in range(begin, end):
            q_i, k_i, v_i, e_i, r_i, fade_i = (x[i] for x in rows)
            decayed = fade_i[..., None] * state
            x_i = (e_i[:, :, None] @ decayed)[:, :, 0]
            state = decayed + k_i[..., None] * v_i[:, :, None] - r_i[..., None] * x_i[:, :, None]
            outputs.append((q_i[:, :, None] @ (decayed if read_before else state))[:, :, 0])
        finals.append(state)
    return scale * torch.stack(outputs, 2), torch.cat(finals)


def unit(x: torch.Tensor) -> torch.Tensor:
    """Rows of length 1."""
    return x / x.square().sum(-1, keepdim=True).sqrt()
