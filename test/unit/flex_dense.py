"""FlexAttention's definition, dense and in float64: functions get one position at a time under nested vmaps, autograd does the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor


def everywhere(function: Callable[..., Any], sizes: Sequence[int], scores: Tensor | None = None) -> Tensor:
    """`function` at every position: [B, H, Sq, Skv]. With `scores` it gets one of them first."""
    first = () if scores is None else (0,)

    def at(*arguments: Any) -> Tensor:
        return torch.as_tensor(function(*arguments)) + 0 * arguments[-1]

    nested: Callable[..., Any] = at
    for axis in (3, 2, 1, 0):
        nested = torch.vmap(nested, in_dims=(*first, *[0 if i == axis else None for i in range(4)]))
    ranges = [torch.arange(size) for size in sizes]
    return nested(*ranges) if scores is None else nested(scores, *ranges)


def _dense(
    q: Tensor, k: Tensor, v: Tensor, score_mod: Callable[..., Any] | None = None, mask_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """o, lse and the greatest scores, in float64. A row whose scores are all -inf gives 0."""
    batch, heads = q.shape[:2]
    q, k, v = (x.double().expand(batch, -1, -1, -1) for x in (q, k, v))
    k, v = (x.repeat_interleave(heads // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if score_mod is not None:
        scores = everywhere(score_mod, scores.shape, scores)
    if mask_mod is not None:
        scores = torch.where(everywhere(mask_mod, scores.shape).bool(), scores, -torch.inf)
    none = (scores == -torch.inf).all(-1)
    safe = torch.where(none[..., None], 0.0, scores)
    weights = torch.where(none[..., None], 0.0, safe.softmax(-1))
    return weights @ v, torch.where(none, -torch.inf, safe.logsumexp(-1)), scores.detach().amax(-1)


dense: Any = _dense  # callers pass inputs by *


def tensors(*shapes: Sequence[int], dtype: torch.dtype = torch.float32, requires_grad: bool = False) -> list[Tensor]:
    """Random tensors of these shapes."""
    return [torch.randn(shape).to(dtype).requires_grad_(requires_grad) for shape in shapes]


def qkv(
    b: int = 2, h: int = 4, hkv: int | None = None, sq: int = 37, skv: int | None = None, d: int = 16, dv: int | None = None, bkv: int = 0,
    **options: Any,
) -> Any:  # fmt: skip
    """Random q, k, v [B, H, S, D]."""
    keys = (bkv or b, hkv or h, sq if skv is None else skv)
    return tensors((b, h, sq, d), (*keys, d), (*keys, dv or d), **options)


def per_head(*functions: Callable[..., Any]) -> Callable[..., Any]:
    """A score_mod that is another one for each head: many are checked by one kernel."""

    def chosen(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        result = functions[0](score, b, h, q_idx, kv_idx)
        for head, function in enumerate(functions[1:], 1):
            result = torch.where(h == head, function(score, b, h, q_idx, kv_idx), result)
        return result

    return chosen


def compare(actual: Tensor, expected: Tensor, tolerance: float = 2e-5) -> None:
    """Compares with float64, relative to the size of the result."""
    assert actual.shape == expected.shape
    finite = expected.detach()[expected.isfinite()]
    size = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance * size)


def compare_all(
    function: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, captured: Sequence[Tensor] = (), tolerance: float = 5e-5, **given: Any
) -> None:
    """`function`(q, k, v) with `given`, score_mod and mask_mod, against the dense one: o, and the gradients of all inputs and captures."""
    inputs = [q, k, v, *captured]
    for x in inputs:
        x.requires_grad_()
    o = function(q, k, v)
    wanted = dense(q, k, v, **given)[0]
    compare(o, wanted, tolerance)
    upstream = torch.randn_like(wanted)
    got = torch.autograd.grad(o, inputs, upstream.to(o.dtype))
    for mine, theirs in zip(got, torch.autograd.grad(wanted, inputs, upstream), strict=True):
        compare(mine, theirs, tolerance)
