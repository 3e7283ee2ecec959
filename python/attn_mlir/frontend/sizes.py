"""Sizes of the problem, for use inside traced functions."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from attn_mlir.errors import TraceError
from attn_mlir.frontend import scope
from attn_mlir.frontend.values import Value, wrap

# Named sizes: (argument, dimension, name in the IR).
_SIZES = {"q_len": ("q", 2), "kv_len": ("k", 2), "num_heads": ("q", 1)}

_known: ContextVar[dict[str, int]] = ContextVar("sizes")
_in_graph: dict[str, int] = {}
"""The same while torch.compile traces, which follows this module's variables, but no ContextVar."""

_given: ContextVar[dict[str, Any]] = ContextVar("given_sizes")
_whole: ContextVar[bool] = ContextVar("whole_sequences", default=False)


@contextmanager
def known(**sizes: int) -> Iterator[None]:
    """Within it, functions that are called with tensors, not traced, have these sizes: q_len, kv_len, num_heads."""
    global _in_graph
    if torch.compiler.is_dynamo_compiling():
        outer, _in_graph = _in_graph, sizes
        try:
            yield
        finally:
            _in_graph = outer
        return
    before = _known.set(sizes)
    try:
        yield
    finally:
        _known.reset(before)


@contextmanager
def given(**sizes: Any) -> Iterator[None]:
    """Within it, traced functions have these sizes, values of the trace, in place of those of the tensors: q_len, kv_len, num_heads."""
    before = _given.set(sizes)
    try:
        yield
    finally:
        _given.reset(before)


@contextmanager
def whole_sequences() -> Iterator[None]:
    """Within it, q_len() is kv_len(): for functions whose q_idx are positions in sequences of which only the last queries are here."""
    before = _whole.set(True)
    try:
        yield
    finally:
        _whole.reset(before)


def _size(name: str) -> Any:
    if torch.compiler.is_dynamo_compiling():
        if name in _in_graph:
            return _in_graph[name]
        return torch.ops.attn_mlir.symbol(name, torch.int64)
    if not scope.is_tracing():
        if (size := _known.get({}).get(name)) is not None:
            return size
        raise TraceError(
            f"attn_mlir.{name}() has a value only inside the functions that attention(...) takes, such as score_mod or mask_mod"
        )
    if (value := _given.get({}).get(name)) is not None:
        return value
    tensor, dim = _SIZES[name]
    if name == "num_heads":
        tensor = scope.current().heads_of
    return wrap(scope.current().size(("size", tensor, dim), name))


def q_len() -> Value:
    """The number of queries, Sq, inside a score_mod, mask_mod or row function. It is not a compile-time constant."""
    return _size("kv_len" if not torch.compiler.is_dynamo_compiling() and _whole.get() else "q_len")


def kv_len() -> Value:
    """The number of keys, Skv, inside a score_mod, mask_mod or row function. It is not a compile-time constant."""
    return _size("kv_len")


def num_heads() -> Value:
    """The number of query heads, inside a score_mod, mask_mod or row function. It is not a compile-time constant."""
    return _size("num_heads")
