"""Masks as users write them, traced by the frontend, resolved, and compared with PyTorch's own evaluation of them."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import ir
from attn_mlir.passes.intervals.capture_bounds import make_plan
from attn_mlir.passes.intervals.classify import FULL, SKIP, classify
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.resolve_masks import ResolveMasks
from contexts import loaded_context
from masks import dense_classes

LENGTH, WINDOW = 96, 16
document = torch.arange(LENGTH) // 13
kind = torch.arange(8) % 3
negative = -1 - torch.arange(LENGTH) % 8
globally = torch.arange(LENGTH) % 31 == 0
CAPTURES: dict[str, Any] = {"document": document, "kind": kind, "negative": negative, "globally": globally, "WINDOW": WINDOW}


def chunked(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q // WINDOW == k // WINDOW) & (q >= k)


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (document[q] == document[k]) & (abs(q - k) <= WINDOW)


def kinds_of_documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    return kind[document[k]] <= kind[document[q]]


def wrapped_indices(b: Any, h: Any, q: Any, k: Any) -> Any:
    return kind[negative[k]] <= q // WINDOW


def local_or_causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(globally[q], q >= k, (q - k).abs() < WINDOW)


def clamped(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q % WINDOW).clamp(2, 13) - k % WINDOW <= 3


def with_floats(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q * 0.5 <= k + 3.0)


EXACT = (chunked, documents)


@pytest.mark.parametrize("mask", [chunked, documents, kinds_of_documents, wrapped_indices, local_or_causal, clamped, with_floats])
def test_traced_mask(mask: Callable[..., Any]) -> None:
    traced = trace(Definition(lambda s: s, mask_mod=mask, scale=1.0), Inputs("f32", 8, 8))
    captures = [CAPTURES[captured.name] for captured in traced.captures]
    plan = make_plan(traced.text)
    plan.check((1, 1, 1, LENGTH, LENGTH, 8, 8), captures)
    plan.check_data((1, 1, 1, LENGTH, LENGTH, 8, 8), captures)
    context = loaded_context()
    with context:
        module = ir.Module.parse(traced.text)
    assert ResolveMasks().run(module.operation)
    module.operation.verify()

    def dense(b: int, h: int, q: Any, k: Any) -> Any:
        return mask(b, h, torch.as_tensor(q), torch.as_tensor(k)).numpy()

    exact = dense_classes(dense, [], LENGTH, LENGTH, 8, 16)
    grid = classify(module.operation, [c.numpy() if isinstance(c, torch.Tensor) else c for c in captures], LENGTH, LENGTH, 8, 16).grid[0, 0]
    assert not ((grid == SKIP) & (exact > 0)).any()
    assert not ((grid == FULL) & (exact < FULL)).any()
    assert mask not in EXACT or (grid == exact).all()


def test_wrapped_indices_are_followed_by_their_range() -> None:
    """With every id negative, the wrap of the index is decided at run time, and blocks still get exact classes."""
    rows = torch.arange(LENGTH) // 24 - 4  # -4 -4 ... -3 ... -1

    def mask(b: Any, h: Any, q: Any, k: Any) -> Any:
        return kind[rows[k]] == 2

    traced = trace(Definition(lambda s: s, mask_mod=mask, scale=1.0), Inputs("f32", 8, 8))
    context = loaded_context()
    with context:
        module = ir.Module.parse(traced.text)
    assert ResolveMasks().run(module.operation)
    assert find_all(module.operation, "attn.block_mask")
    captures = [{"kind": kind, "rows": rows}[c.name].numpy() for c in traced.captures]
    grid = classify(module.operation, captures, 8, LENGTH, 8, 24).grid[0, 0]
    assert grid.tolist() == [[FULL if kind[i] == 2 else SKIP for i in range(4, 8)]]


def test_emitted_operations_carry_the_masks_location() -> None:
    traced = trace(Definition(lambda s: s, mask_mod=chunked, scale=1.0), Inputs("f32", 8, 8))
    context = loaded_context()
    with context:
        module = ir.Module.parse(traced.located)
    assert ResolveMasks().run(module.operation)
    bounds = find_all(module.operation, "attn.bounds")[0]
    places = {str(op.operation.location) for op in bounds.regions[0].blocks[0].operations}
    assert all("test_masks_traced.py" in place for place in places), places
