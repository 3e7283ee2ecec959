"""Rows that are stable as their authors wrote them, with dense attention in PyTorch that applies them to one query at a time."""

from collections.abc import Callable

import torch
from torch import Tensor

Row = Callable[[Tensor], Tensor]


def softpick(s: Tensor) -> Tensor:
    m = s.max()
    x = torch.exp(s - m) - torch.exp(-m)
    return torch.relu(x) / (abs(x).sum() + 1e-6)


def sinh(s: Tensor) -> Tensor:
    m = abs(s).max()
    x = torch.exp(s - m) - torch.exp(-s - m)
    return x / (abs(x).sum() + 1e-6)


def sinh_squared(s: Tensor) -> Tensor:
    m = abs(s).max()
    x = torch.exp(s - m) - torch.exp(-s - m)
    return x**2 / (x**2).sum()


def floor_of_scores(s: Tensor) -> Tensor:
    e = torch.exp(torch.clamp(s, min=0) - s.max())
    return e / e.sum()


def above_floor(s: Tensor) -> Tensor:
    m = torch.clamp(s.max(), min=0)
    x = torch.exp(s - m) - torch.exp(-m)
    return torch.relu(x) / (abs(x).sum() + 1e-6)


def mean_centred(s: Tensor) -> Tensor:
    e = torch.exp(s - s.mean())
    return e / e.sum()


def largest_difference(s: Tensor) -> Tensor:
    m = s.max()
    x = torch.exp(s - m) - torch.exp(-m)
    return x / (10 * abs(x).max())


def over_largest_difference(s: Tensor) -> Tensor:
    m = s.max()
    x = torch.exp(s - m) - torch.exp(-m)
    return torch.relu(x) / (abs(x).max() + 1e-6)


def half_exponents(s: Tensor) -> Tensor:
    e = torch.exp((s - s.max()) * 0.5) * s
    return e / (abs(e).sum() + 1e-6)


def fourth_power(s: Tensor) -> Tensor:
    w = s * s * s * s
    return w / (1 + w.sum())


def fourth_power_normalised(s: Tensor) -> Tensor:
    w = s * s * s * s
    return w / w.sum()


def unshifted(s: Tensor) -> Tensor:
    e = torch.exp(s)
    return e / e.sum()


def squares_normalised(s: Tensor) -> Tensor:
    r = torch.relu(s) * torch.relu(s)
    return r / (r.sum() + 1e-6)


def score_times_softmax(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max())
    return s * e / e.sum()


def dense(row: Row, q: Tensor, k: Tensor, v: Tensor, present: Tensor) -> Tensor:
    """Attention of [1, heads, length, columns] as written; fully masked rows give 0."""
    s = q @ k.mT * q.shape[3] ** -0.5
    lines = []
    for line in s.flatten(0, 1):
        for i, scores in enumerate(line):
            keys = present[i].nonzero()[:, 0]
            lines.append(torch.zeros_like(scores).index_copy(0, keys, row(scores[keys])) if len(keys) else torch.zeros_like(scores))
    return torch.stack(lines).reshape(s.shape) @ v


def with_gradients(f: Callable[..., Tensor], tensors: list[Tensor], do: Tensor) -> list[Tensor]:
    """The output and the gradients of q, k and v."""
    leaves = [x.detach().clone().requires_grad_() for x in tensors]
    o = f(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, do.to(o))]


def of_row(row: Row, present: Tensor) -> Callable[..., Tensor]:
    """Dense attention as a function of q, k and v."""
    return lambda q, k, v: dense(row, q, k, v, present)


def check_stable(got: list[Tensor], exact: list[Tensor], single: list[Tensor], least: list[float], tolerance: float) -> None:
    """Finite where PyTorch's formula in f32 is, and as near to exact numbers as it is, beyond the rounding of the type.

    `least` are sizes that errors may be relative to at least: where one key has nearly all weight, differences of such terms are left.
    """
    for name, x, wanted, other, floor in zip(("o", "dq", "dk", "dv"), got, exact, single, least, strict=True):
        x, other = x.double().cpu(), other.to(x.dtype).double().cpu()
        finite = wanted.isfinite() & other.isfinite()
        assert x[finite].isfinite().all(), f"{name} is not finite"
        if finite.any():
            size = max(float(wanted[finite].abs().max()), floor)
            error, of_single = (float((y - wanted)[finite].abs().max()) for y in (x, other))
            assert error <= 8 * of_single + tolerance * size, f"{name}: {error} of {size}, {of_single} in f32"
