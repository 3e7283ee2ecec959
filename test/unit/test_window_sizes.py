"""`masks.sliding_window`: what its sizes mean, against dense masks; loops over keys end where it does, also with a side without a limit."""

from typing import Any

import numpy as np
import pytest
import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.errors import ArgumentError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.intervals.classify import classify
from attn_mlir.passes.regions import find_all
from contexts import loaded_context
from masks import dense_classes, share_exact

SIZES = [(-1, 5, "top_left"), (None, 5, "bottom_right"), (5, -1, "bottom_right"), (4, None, "top_left"), (-1, 0, "bottom_right"),
         (-1, -1, "top_left"), (None, None, "bottom_right"), (2, 6, "bottom_right"), (0, 0, "top_left")]  # fmt: skip
NO_SIZES = [(-1, 5, "top_left"), (None, 5, "bottom_right"), (5, -1, "bottom_right"), (4, None, "top_left"), (-1, 0, "bottom_right"),
         (-1, -1, "top_left"), (None, None, "bottom_right"), (2, 6, "bottom_right"), (0, 0, "top_left")]  # fmt: skip
LENGTHS = [(1, 1), (17, 17), (37, 53), (53, 37), (1, 29), (127, 1)]


def dense(left: int | None, right: int | None, sq: int, skv: int, align: str) -> torch.Tensor:
    """The window of every row, as FlashAttention means it."""
    i = torch.arange(sq)[:, None] + (skv - sq if align == "bottom_right" else 0)
    j = torch.arange(skv)
    seen = torch.ones(sq, skv, dtype=torch.bool)
    if left not in (None, -1):
        seen &= i - j <= left
    if right not in (None, -1):
        seen &= j - i <= right
    return seen


def expected(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    scores = (q.double() @ k.double().mT * q.shape[-1] ** -0.5).masked_fill(~seen, -torch.inf)
    return torch.softmax(scores, -1).nan_to_num(0.0) @ v.double()  # fully masked rows are 0


def inputs(sq: int, skv: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(sq * 1000 + skv)
    return [torch.randn(1, 2, length, 16, generator=generator) for length in (sq, skv, skv)]


@pytest.mark.parametrize(("left", "right", "align"), SIZES)
def test_sizes(left: int | None, right: int | None, align: Any) -> None:
    mask = masks.sliding_window(left, right, align)
    for sq, skv in LENGTHS:
        q, k, v = inputs(sq, skv)
        o = attn_mlir.attention(q, k, v, mask_mod=mask)
        torch.testing.assert_close(o.double(), expected(q, k, v, dense(left, right, sq, skv, align)), atol=2e-6, rtol=1e-5)


def test_sizes_in_tensors_are_read_at_every_call() -> None:
    left, right = torch.tensor(3), torch.tensor(2, dtype=torch.int32)
    attention = attn_mlir.Attention(mask_mod=masks.sliding_window(left, right, "bottom_right"))
    q, k, v = inputs(37, 53)
    for sizes in ((3, 2), (-1, 2), (5, -1), (-1, -1), (0, 0)):
        left.fill_(sizes[0])
        right.fill_(sizes[1])
        torch.testing.assert_close(
            attention(q, k, v).double(), expected(q, k, v, dense(*sizes, 37, 53, "bottom_right")), atol=2e-6, rtol=1e-5
        )


def test_gradients_of_a_window_without_a_limit() -> None:
    q, k, v = (x.requires_grad_() for x in inputs(17, 40))
    made = torch.autograd.grad(attn_mlir.attention(q, k, v, mask_mod=masks.sliding_window(-1, 4)).sin().sum(), (q, k, v))
    wanted = torch.autograd.grad(expected(q, k, v, dense(-1, 4, 17, 40, "top_left")).sin().sum(), (q, k, v))
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


def test_numbers_of_numpy_and_a_size_that_a_function_reads() -> None:
    q, k, v = inputs(17, 17)
    widths = torch.tensor([3, -1])
    own = attn_mlir.attention(q, k, v, mask_mod=lambda b, h, i, j: masks.sliding_window(widths[h])(b, h, i, j))
    seen = torch.stack([dense(3, 0, 17, 17, ""), dense(-1, 0, 17, 17, "")])
    torch.testing.assert_close(own.double(), expected(q, k, v, seen), atol=2e-6, rtol=1e-5)
    o = attn_mlir.attention(q, k, v, mask_mod=masks.sliding_window(np.int64(3), np.int32(-1)))  # type: ignore[arg-type]
    torch.testing.assert_close(o.double(), expected(q, k, v, dense(3, -1, 17, 17, "")), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("size", NO_SIZES, ids=str)
@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_no_size(side: str, size: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{side} "):
        masks.sliding_window(**{"left": 1, side: size})


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("left", "right", "captures"), [(-1, 5, [5]), (5, -1, [5]), (-1, 0, []), (-1, -1, [])])
def test_loops_end_where_the_window_does(left: int, right: int, captures: list[int], align: Any) -> None:
    """Bounds tell the class of every block: outside, full or partial."""
    attention = attn_mlir.Attention(mask_mod=masks.sliding_window(left, right, align))
    attention(*inputs(64, 64))
    with LOCK, loaded_context():
        module = ir.Module.parse(attention.ir("attn-resolve-masks"))
        assert not find_all(module.operation, "attn.block_mask")
        for sq, skv in ((173, 173), (64, 100), (100, 64)):
            seen = dense(left, right, sq, skv, align).numpy()
            exact = dense_classes(lambda b, h, i, j, seen=seen: seen[i, j], [], sq, skv, 16, 16)
            assert share_exact(exact, classify(module.operation, captures, sq, skv, 16, 16), skv) == 1.0
