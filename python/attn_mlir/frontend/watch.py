"""Comparison of what the user's functions capture with what it was: cheaper than another scan, where it is possible."""

from collections.abc import Sequence
from types import FunctionType
from typing import Any

import torch

from attn_mlir.frontend.watch_objects import ObjectWatch

MISSING = object()
"""Stands for the content of a variable that is not defined."""


class Watch:
    """What a scan read, where it can be compared with what is there now: variables of functions and attributes of objects, by identity.

    It holds none of the functions that were given, so that it can be forgotten when they are; those are known by their numbers.
    """

    __slots__ = ("cells", "functions", "globals", "objects", "tensors")

    def __init__(self) -> None:
        self.functions: list[tuple[int | FunctionType, Any, Any]] = []
        self.cells: list[tuple[Any, Any]] = []
        self.globals: list[tuple[int | FunctionType, str, Any]] = []
        self.tensors: list[tuple[torch.Tensor, torch.dtype, int]] = []
        self.objects: ObjectWatch | None = None

    def add_objects(self, objects: Sequence[Any], names: frozenset[str]) -> bool:
        """Takes objects whose attributes of these names were read; False where they cannot be compared."""
        self.objects = ObjectWatch(names)
        return all([self.objects.add(x) for x in objects])

    def holds(self, given: Sequence[Any]) -> bool:
        """Whether every variable still holds the same object, where `given` are the functions of the scan."""
        for which, code, defaults in self.functions:
            function = given[which] if isinstance(which, int) else which
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
        try:
            for cell, content in self.cells:
                if cell.cell_contents is not content:
                    return False
        except ValueError:  # emptied
            return False
        for which, variable, content in self.globals:
            function = given[which] if isinstance(which, int) else which
            if function.__globals__.get(variable, MISSING) is not content:
                return False
        for tensor, dtype, dims in self.tensors:
            if tensor.dtype is not dtype or tensor.dim() != dims:
                return False
        return self.objects is None or self.objects.holds()
