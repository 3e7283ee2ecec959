"""Attention of 8-bit tensors in float64, and FlashAttention-3's criterion for it."""

import math
from collections.abc import Callable

import torch

from attn_mlir import rows

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)


def softmax(s: torch.Tensor) -> torch.Tensor:
    """softmax of rows, 0 where nothing is present."""
    return torch.nan_to_num(s.softmax(-1))


ROWS: dict[str, tuple[Callable[..., object], Callable[[torch.Tensor], torch.Tensor]]] = {
    "softmax": (rows.softmax, softmax),
    "softmax1": (rows.softmax1, lambda s: s.exp() / (1 + s.exp().sum(-1, keepdim=True))),
    "sigmoid": (rows.sigmoid, torch.sigmoid),
}
"""The row, and what it is of a tensor of scores whose absent ones are -inf."""


def scaled(x: torch.Tensor, descale: torch.Tensor | float | None) -> torch.Tensor:
    """The numbers that 8-bit elements stand for, [B, H, S, D] in float64, by a scale [], [H] or [B, H]."""
    if descale is None:
        return x.double()
    factor = torch.as_tensor(descale).double()
    return x.double() * (factor[..., None, None] if factor.dim() else factor)


def dense(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, row: Callable[[torch.Tensor], torch.Tensor] = softmax,
    mask: torch.Tensor | None = None, weights: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Attention of float64 tensors; `weights` is the type that weights are rounded to, as a plain implementation does."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    p = row(scores if mask is None else scores.masked_fill(~mask, -math.inf))
    return (p if weights is None else p.to(weights).double()) @ v


def outliers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal numbers, of which one in a thousand is ten times as large, as in FlashAttention-3's tests."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator)
    return x + torch.randn(shape, generator=generator) * 10 * (torch.rand(shape, generator=generator) < 0.001)


def check_as_flash_attention_3(o: torch.Tensor, exact: torch.Tensor, plain: torch.Tensor) -> None:
    """The error is at most twice that of a plain implementation with rounded weights, and two roundings of o."""
    wanted = exact.to(o.dtype).double()
    error = (o.double() - exact).abs().max()
    allowed = 2 * (plain.to(o.dtype).double() - exact).abs().max() + 2 * (wanted + 0.3 - 0.3 - wanted).abs().max()
    assert torch.isfinite(o.double()).all() and error <= allowed, (error, allowed)
