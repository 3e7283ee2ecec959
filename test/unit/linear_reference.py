"""The recurrence of linear attention in float64, position by position, for autograd to differentiate."""

import itertools
from collections.abc import Callable
from typing import Any

import torch

Mod = Callable[..., Any] | None


def grid(*sizes: int) -> tuple[torch.Tensor, ...]:
    """Indices of each dimension as tensors that broadcast to `sizes`."""
    return tuple(torch.arange(size).view(*(size if i == j else 1 for j in range(len(sizes)))) for i, size in enumerate(sizes))


def changed(mod: Mod, x: torch.Tensor) -> torch.Tensor:
    """`mod` applied to every element of [B, H, T, D] or [B, H, T]; it takes all indices, or just x."""
    if mod is None:
        return x
    count = mod.__code__.co_argcount
    made = mod(x, *grid(*x.shape)[: count - 1]) if count > 1 else mod(x)
    return torch.as_tensor(made).broadcast_to(x.shape)


def reference(
    q: Any,
    k: Any,
    v: Any,
    decay: Any = None,
    scale: Any = 1.0,
    q_mod: Any = None,
    k_mod: Any = None,
    v_mod: Any = None,
    decay_mod: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
    skip_mod: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the final state in float64, for inputs in [B, H, T, D]; what the mods capture must be float64 for gradients in it."""
    (b, h, t), dim = v.shape[:3], q.shape[3]
    q, k, v = (x.double().repeat_interleave(h // x.shape[1], dim=1) for x in (q, k, v))
    g = torch.zeros(b, h, t, dtype=torch.float64) if decay is None else decay.double()
    if g.dim() < 3:
        g = g.view(1, h, 1, *g.shape[1:]).expand(b, h, t, *g.shape[1:])
    if decay_mod is not None and decay_mod.__code__.co_argcount == 5 and g.dim() == 3:
        g = g.unsqueeze(3).expand(b, h, t, dim)
    skipped = 0.0 if skip_mod is None else torch.as_tensor(skip_mod(*grid(b, h, t))).broadcast_to(b, h, t).unsqueeze(3) * v
    q = changed(q_mod, q) * (dim**-0.5 if scale is None else scale)
    k, v, g = changed(k_mod, k), changed(v_mod, v), changed(decay_mod, g)
    fade = g.exp() if g.dim() == 4 else g.exp().unsqueeze(3).expand(b, h, t, dim)
    bounds = [0, t] if cu_seqlens is None else list(cu_seqlens)
    outputs, finals = [], []
    # Taken apart at once: the gradient of x[:, :, i] is as large as x, at every position.
    queries, keys, values, fades = (x.unbind(2) for x in (q, k, v, fade))
    for n, (begin, end) in enumerate(itertools.pairwise(bounds)):
        state = torch.zeros(b, h, dim, v.shape[3], dtype=torch.float64)
        if initial_state is not None:
            state = initial_state.double() if cu_seqlens is None else initial_state[n : n + 1].double()
        for i in range(begin, end):
            state = fades[i][..., None] * state + keys[i][..., None] * values[i][:, :, None]
            outputs.append((queries[i][:, :, None] @ state)[:, :, 0])
        finals.append(state)
    o = torch.stack(outputs, 2) if outputs else v
    return o + skipped, torch.cat(finals)


def error(result: Any, expected: Any) -> float:
    """rms(result - expected) / rms(expected), where that is not almost nothing."""
    difference = result.detach().double() - expected.detach()
    return (difference.square().mean().sqrt() / expected.detach().square().mean().sqrt().clamp(min=1e-6)).item()


def check_errors(found: dict[str, float]) -> None:
    """Checks errors of float32 results and gradients, by name."""
    for name, value in found.items():
        assert value < 1e-6, (name, value, found)
