"""Comparison of objects, classes and modules that functions use with what they were: by the attributes that the functions name.

Contents are compared by identity; what can change in place (lists, dictionaries, arrays) takes another scan, as `Watch` has it.
"""

import operator
import weakref
from collections.abc import Mapping
from itertools import repeat
from types import ModuleType
from typing import Any

import torch

from attn_mlir.frontend.attributes import hooks_of
from attn_mlir.frontend.origin import is_installed

_MISSING = object()
_FOLLOWED = ("__wrapped__", "forward", "__call__")
"""What a scan looks up without its being named."""


class ObjectWatch:
    """Objects of a scan; instances and functions are not kept alive."""

    __slots__ = ("_classes", "_instances", "_names", "_spaces", "_whole")

    def __init__(self, names: frozenset[str]) -> None:
        self._names = (*_FOLLOWED, *sorted(names))
        self._instances: list[tuple[weakref.ref[Any], type, tuple[type, ...], list[Any]]] = []
        self._classes: list[tuple[type, tuple[type, ...]]] = []
        self._spaces: dict[int, tuple[Mapping[str, Any], list[Any]]] = {}
        self._whole: dict[int, tuple[Mapping[str, Any], list[str], list[Any]]] = {}

    def add(self, x: Any) -> bool:
        """Takes an object; False where its attributes cannot be compared."""
        if isinstance(x, ModuleType):
            self._space(vars(x))
            return True
        if isinstance(x, type):
            self._class(x)
            if type(x) is not type:
                self._class(type(x))
            return True
        if not hasattr(x, "__dict__"):
            return False
        try:
            reference = weakref.ref(x)
        except TypeError:
            return False
        kind = type(x)
        if not isinstance(x, torch.Tensor) and any([self._has_slots(base) for base in kind.__mro__]):
            return False
        self._instances.append((reference, kind, kind.__mro__, self._own(x)))
        if not isinstance(x, torch.Tensor):
            self._class(kind)
        return True

    def holds(self) -> bool:
        """Whether every attribute still holds the same object."""
        for reference, kind, bases, contents in self._instances:
            x = reference()
            if type(x) is not kind or kind.__mro__ is not bases or not _same(self._own(x), contents):
                return False
        for kind, bases in self._classes:
            if kind.__mro__ is not bases:
                return False
        for space, found in self._spaces.values():
            if not _same(self._look(space), found):
                return False
        for space, names, found in self._whole.values():
            if [*space] != names or not _same(space.values(), found):
                return False
        return True

    def _has_slots(self, base: type) -> bool:
        """Whether the class keeps values of these names outside of an instance's dictionary."""
        for member in self._look(base.__dict__):
            if hasattr(member, "__set__") and hasattr(member, "__get__") and not isinstance(member, property):
                return True
        return False

    def _own(self, x: Any) -> list[Any]:
        own = vars(x)
        found = self._look(own)
        if isinstance(x, torch.nn.Module):
            for space in ("_parameters", "_buffers", "_modules"):
                found += self._look(own[space])
            found.append(bool(hooks_of(x)))
        return found

    def _class(self, kind: type) -> None:
        """What a class and its bases define: all of it where it is the user's, since Python itself calls some of it."""
        self._classes.append((kind, kind.__mro__))
        for base in kind.__mro__[:-1]:
            if is_installed(base):
                self._space(base.__dict__, id(base))
            else:
                self._whole[id(base)] = (base.__dict__, [*base.__dict__], [*base.__dict__.values()])

    def _space(self, space: Mapping[str, Any], key: int | None = None) -> None:
        self._spaces[id(space) if key is None else key] = (space, self._look(space))

    def _look(self, space: Mapping[str, Any]) -> list[Any]:
        return [*map(space.get, self._names, repeat(_MISSING))]


def _same(now: Any, before: list[Any]) -> bool:
    return len(now) == len(before) and all(map(operator.is_, now, before))
