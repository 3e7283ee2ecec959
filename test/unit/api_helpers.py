"""A dense float64 reference for the native API."""

from collections.abc import Callable
from typing import Any

import torch


def inputs(
    b: int = 2, h: int = 4, hkv: int = 2, sq: int = 37, skv: int = 53, d: int = 16, dv: int = 24, dtype: torch.dtype = torch.float32
) -> list[torch.Tensor]:
    """Random q, k, v in [B, H, S, D]."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((b, h, sq, d), (b, hkv, skv, d), (b, hkv, skv, dv))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def order(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """A tensor [B, H, S, D] in another order."""
    return tensor.permute(*["bhsd".index(letter) for letter in layout])


def softmax(s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    """Softmax over the kept keys; 0 for rows without any."""
    s = s.masked_fill(~keep, -torch.inf)
    return torch.nan_to_num(s.softmax(-1), 0.0)


def reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    weights: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = softmax,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse in float64; `weights(scores, keep)` is the row function on whole tensors."""
    group = q.shape[1] // k.shape[1]
    q, k, v = q.double(), k.double().repeat_interleave(group, 1), v.double().repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    position = [torch.arange(size).view(*(size if i == j else 1 for j in range(4))) for i, size in enumerate(s.shape)]
    if score_mod is not None:
        s = score_mod(s, *position)
    keep = torch.ones(s.shape, dtype=torch.bool) if mask_mod is None else torch.as_tensor(mask_mod(*position)).broadcast_to(s.shape)
    lse = s.masked_fill(~keep, -torch.inf).logsumexp(-1)
    return weights(s, keep).masked_fill(~keep, 0.0) @ v, lse


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-5) -> None:
    """Compares with float64, relative to the size of the result."""
    assert actual.shape == expected.shape
    torch.testing.assert_close(
        actual.double(), expected.double(), rtol=tolerance, atol=tolerance * max(1.0, float(expected[expected.isfinite()].abs().max()))
    )
