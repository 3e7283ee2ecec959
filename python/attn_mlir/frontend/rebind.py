"""Copies of the user's functions in which captured scalars are traced values, so that they become runtime arguments."""

import functools
from collections.abc import Callable
from types import CellType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.classes import UsersType
from attn_mlir.frontend.code_names import names_of
from attn_mlir.frontend.origin import is_opaque
from attn_mlir.frontend.values import Value


class Rebinder:
    """Rebinds functions; `scalar(leaf)` gives the traced value of a captured scalar, `array(x)` the tensor of an array."""

    def __init__(self, scan: Scan, scalar: Callable[[int], Value], array: Callable[[np.ndarray], torch.Tensor]) -> None:
        self._leaf_of = scan.leaf_of
        self._scalar = scalar
        self._array = array
        self._done: dict[int, Any] = {}
        self._keep: list[Any] = []

    def __call__(self, x: Any) -> Any:
        """The copy of a function, or of a container or partial that holds functions; anything else is itself."""
        if id(x) in self._done:
            return self._done[id(x)]
        self._keep.append(x)
        if type(x) is FunctionType:
            return self._function(x)
        if isinstance(x, MethodType) and type(x.__func__) is FunctionType:
            return MethodType(self(x.__func__), x.__self__)
        if isinstance(x, functools.partial):
            return functools.partial(
                self(x.func), *(self(item) for item in x.args), **{name: self(item) for name, item in x.keywords.items()}
            )
        if isinstance(x, np.ndarray):
            return self._array(x)
        self._done[id(x)] = x  # for containers that hold themselves
        if isinstance(x, (tuple, list)) and type(x) in (tuple, list):
            items = [self(item) for item in x]
            changed = any(new is not old for new, old in zip(items, x, strict=True))
            return x if not changed else tuple(items) if type(x) is tuple else items
        if type(x) is dict:
            items = {key: self(item) for key, item in x.items()}
            return items if any(items[key] is not x[key] for key in x) else x
        return x

    def _function(self, function: FunctionType) -> FunctionType:
        code = function.__code__
        scope = function.__globals__
        library = is_opaque(function)
        used = () if library else names_of(code).globals
        if not (code.co_freevars or function.__defaults__ or function.__kwdefaults__ or used):
            return function
        scope = scope if library else dict(scope)
        closure = tuple(CellType() for _ in code.co_freevars)
        copy = FunctionType(code, scope, function.__name__, None, closure)
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        copy.__dict__.update(function.__dict__)
        self._done[id(function)] = copy
        for variable, cell, original in zip(code.co_freevars, closure, function.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self._variable(function, variable, original.cell_contents)
            except ValueError:
                continue
        defaults = function.__defaults__ or ()
        first = code.co_argcount - len(defaults)
        copy.__defaults__ = tuple(self._variable(function, code.co_varnames[first + i], item) for i, item in enumerate(defaults)) or None
        copy.__kwdefaults__ = {name: self._variable(function, name, item) for name, item in (function.__kwdefaults__ or {}).items()} or None
        for name in used:
            if name in scope:
                scope[name] = self._variable(function, name, scope[name])
            elif name == "type":
                scope[name] = UsersType
        return copy

    def _variable(self, function: FunctionType, name: str, content: Any) -> Any:
        leaf = self._leaf_of.get((id(function), name))
        return self(content) if leaf is None else self._scalar(leaf)
