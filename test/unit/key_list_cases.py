"""Attention over key lists, dense and in float64: what tests of lists compare with."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

Score = Callable[..., torch.Tensor]


def listed(index: torch.Tensor, block: tuple[int, int], heads: int, q_len: int, kv_len: int) -> torch.Tensor:
    """Which pairs a list keeps, [B, Hq, Sq, Skv]."""
    queries, keys = block
    present = torch.zeros(index.shape[0], heads, q_len, kv_len, dtype=torch.bool)
    for b in range(index.shape[0]):
        for h in range(heads):
            for i in range(index.shape[2]):
                for number in index[b, h * index.shape[1] // heads, i].tolist():
                    if number >= 0:
                        present[b, h, i * queries : (i + 1) * queries, number * keys : (number + 1) * keys] = True
    return present


def positions(present: torch.Tensor) -> list[torch.Tensor]:
    """b, h, q_idx and kv_idx as tensors that broadcast to [B, Hq, Sq, Skv]."""
    return [torch.arange(n).view([-1 if i == d else 1 for i in range(4)]) for d, n in enumerate(present.shape)]


def dense(
    qkv: Sequence[torch.Tensor], present: torch.Tensor, score: Score | None = None, row: Callable[..., Any] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the logarithm of the sum of exponentials, for the scores q k / sqrt(D) after `score`; `row` makes weights of scores."""
    q, k, v = (x.double() for x in qkv)
    group = q.shape[1] // k.shape[1]
    s = q @ k.repeat_interleave(group, 1).mT / q.shape[3] ** 0.5
    s = s if score is None else score(s, *positions(present))
    s = s.masked_fill(~present, -torch.inf)
    if row is not None:
        weights = torch.where(present, row(s.masked_fill(~present, 0.0), present), 0.0)
    else:
        e = (s - s.amax(-1, keepdim=True).clamp(min=-1e300).detach()).exp()
        weights = e / e.sum(-1, keepdim=True).clamp(min=1e-300)
    return weights @ v.repeat_interleave(group, 1), s.logsumexp(-1)


def inputs(sizes: Sequence[int], dtype: torch.dtype = torch.float32, value_dim: int = 0) -> Any:
    """q, k and v that need gradients, for B, Hq, Hkv, Sq, Skv, D."""
    b, hq, hkv, sq, skv, d = sizes
    shapes = (b, hq, sq, d), (b, hkv, skv, d), (b, hkv, skv, value_dim or d)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def draw(sizes: Sequence[int], block: tuple[int, int], heads: int, count: int) -> torch.Tensor:
    """A random list with absent entries, and perhaps some that are there twice."""
    b, _, _, sq, skv, _ = sizes
    return torch.randint(-1, -(-skv // block[1]), (b, heads, -(-sq // block[0]), count), dtype=torch.int32)


def agree(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], tolerance: float = 2e-5) -> None:
    """Asserts that tensors are near those in float64, in units of the largest of each."""
    for number, (a, b) in enumerate(zip(found, wanted, strict=True)):
        error = (a.double() - b.double()).abs().max() / b.double().abs().max().clamp(min=1.0) if a.numel() else torch.zeros(())
        assert error < tolerance, f"number {number} differs by {float(error):.2e}"
        assert not a.isnan().any()


def through_autograd(
    way: str, layer: Callable[..., torch.Tensor], qkv: Sequence[torch.Tensor], pack: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """What a layer gives while autograd keeps tensors in another way: through hooks (`pack` is the first), on the CPU, or not."""
    match way:
        case "hooks":
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
                return layer()
        case "save_on_cpu":
            with torch.autograd.graph.save_on_cpu():
                return layer()
        case _:
            return checkpoint(layer, *qkv, use_reentrant=False)
