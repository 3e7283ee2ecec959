"""Schemas of the torch operators, which are registered once torch and attn_mlir are both imported.

What an operator does is imported when it is first used: registering takes milliseconds, importing a compiler does not. So a graph that
another process exported, packaged or cached finds its operators after `import attn_mlir`.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.capture_kinds import ARGUMENTS

__all__ = ["OPERATORS"]

_PROGRAM = "str program, str wrt, str layout"
SCHEMAS = {
    "forward": f"(Tensor q, Tensor k, Tensor v, {ARGUMENTS}, {_PROGRAM}) -> Tensor[]",
    "backward": f"(Tensor[] inputs, {ARGUMENTS}, Tensor[] results, Tensor[] grads, {_PROGRAM}) -> Tensor[]",
    "backward2": f"(Tensor[] inputs, {ARGUMENTS}, Tensor[] results, Tensor[] grads, Tensor[] grads2, {_PROGRAM}) -> Tensor[]",
    "tangent": f"(Tensor[] inputs, {ARGUMENTS}, Tensor[] tangents, {_PROGRAM}) -> Tensor[]",
}


_LIBRARY = torch.library.Library("attn_mlir", "IMPL")


def _late(part: str, name: str, module: str = "ops") -> Callable[..., Any]:
    """The function `part` of the operator `name`, found when it is called."""

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(f"attn_mlir.runtime.{module}"), f"{part}_{name}")(*arguments, **options)

    return call


def _with_lists(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with empty lists for None."""
    return lambda *arguments: function(*[[] if argument is None else argument for argument in arguments])


def define(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """The new operator `attn_mlir::name`, whose functions get empty lists where torch gives None."""
    operator = torch.library.custom_op(f"attn_mlir::{name}", _with_lists(run), mutates_args=(), schema=schema)
    operator.register_fake(_with_lists(fake))
    return operator


def _register(name: str) -> Any:
    operator = define(name, SCHEMAS[name], _late("run", name), _late("fake", name))
    operator.register_autograd(_late("differentiate", name), setup_context=_late("setup", name))
    operator.register_vmap(_late("batch", name))
    _LIBRARY.impl(name, _late("old", "vmap"), "Batched")
    return operator


OPERATORS = {name: _register(name) for name in SCHEMAS}
# Makes key lists of what callers give, and has no derivative.
OPERATORS["key_lists"] = define(
    "key_lists",
    "(Tensor index, SymInt kv_len, int keys, bool inverse) -> Tensor[]",
    _late("run", "key_lists", "key_lists"),
    _late("fake", "key_lists", "key_lists"),
)
