"""Gradients of softmax attention under named masks beside float64, keys shared by two heads: what kernels over pairs are held against."""

import torch
from torch import Tensor


def draw(lengths: tuple[int, int], columns: int, device: str = "cuda") -> list[Tensor]:
    """q, k, v and the gradient of o in f16, for as many queries and keys, [2, 4 | 2, length, columns]."""
    torch.manual_seed(sum(lengths))
    queries, keys = lengths
    shapes = (2, 4, queries), (2, 2, keys), (2, 2, keys), (2, 4, queries)
    return [torch.randn(*shape, columns, device=device).half() for shape in shapes]


def check_gradients(got: tuple[Tensor, ...], drawn: list[Tensor], mask: str) -> None:
    """Asserts that those of q, k and v are right, under "full", "causal", "bottom_right" or "window" (100 keys before a query's own)."""
    q, k, v, do = drawn
    (queries, columns), keys = q.shape[2:], k.shape[2]
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    scores = wide[0] @ wide[1].repeat_interleave(2, 1).mT / columns**0.5
    if mask != "full":
        last = torch.arange(queries, device=q.device)[:, None] + (keys - queries if mask == "bottom_right" else 0)
        positions = torch.arange(keys, device=q.device)
        hidden = (positions > last) | ((positions < last - 100) & (mask == "window"))
        scores = scores.masked_fill(hidden, float("-inf"))
    weights = torch.nan_to_num(scores.softmax(-1))
    right = torch.autograd.grad(weights @ wide[2].repeat_interleave(2, 1), wide, do.double())
    for mine, other in zip(got, right, strict=True):
        other = torch.nan_to_num(other)
        assert float((mine.double() - other).norm()) <= 2e-3 * float(other.norm()) + 1e-4
