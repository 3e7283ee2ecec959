"""What the user's functions capture: a key of everything that shapes the trace, and the values that may change.

`scan` walks the functions of a call: closures, globals, defaults, helper functions, objects. It gives a hashable key
and a list of *leaves*: captured tensors and scalars, in an order that the key determines. Two calls with equal keys
run the same compiled kernel, each with its own leaves. The functions of a call need not be the same objects.
"""

import dataclasses
import dis
import enum
import functools
import math
from collections.abc import Hashable, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

_MISSING = object()
_LIBRARIES = ("torch", "numpy", "math", "builtins", "functools", "operator", "attn_mlir.frontend", "typing", "collections")
_BY_VALUE = (bool, str, bytes, type(None), torch.dtype, torch.device, enum.Enum, complex, np.bool_, np.dtype, range, slice, type(Ellipsis))
_CONTAINER_LIMIT = 64


@dataclasses.dataclass(frozen=True, slots=True)
class _Names:
    """The names that a code object, with the functions nested in it, looks up."""

    globals: tuple[str, ...]
    attributes: frozenset[str]


_NAMES: dict[CodeType, _Names] = {}


def names_of(code: CodeType) -> _Names:
    """The global and attribute names used by `code`."""
    found = _NAMES.get(code)
    if found is None:
        used: set[str] = set()
        attributes: set[str] = set()
        stack = [code]
        while stack:
            inner = stack.pop()
            stack.extend(item for item in inner.co_consts if isinstance(item, CodeType))
            for instruction in dis.get_instructions(inner):
                if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                    used.add(instruction.argval)
                elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR"):
                    attributes.add(instruction.argval)
        found = _NAMES[code] = _Names(tuple(sorted(used)), frozenset(attributes))
    return found


class Scan:
    """The key and leaves of some functions. `wanted` keeps what `rebind` needs: do so when tracing, not on every call."""

    __slots__ = ("_names", "_objects", "_seen", "_tensors", "keep", "key", "leaf_of", "leaves", "names", "reusable")

    def __init__(self, functions: Sequence[Any], names: bool = False) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.reusable = True
        self.leaf_of: dict[tuple[int, str], int] | None = {} if names else None
        """Where a scalar was found, (id of the function, variable), to its leaf; only with `names`."""
        self.names: list[str] = []
        self._names: set[str] = set()
        self._objects: list[tuple[Any, str]] = []
        self._seen: dict[int, int] = {}
        self._tensors: dict[int, int] = {}
        for function in functions:
            self._value(function, "captured", True)
        done: set[int] = set()
        while self._objects:
            instance, name = self._objects.pop()
            if id(instance) not in done:
                done.add(id(instance))
                self._attributes(instance, name)

    def _value(self, x: Any, name: str, rebindable: bool) -> None:
        kind = type(x)
        if kind is FunctionType:
            self._function(x, rebindable)
        elif kind is float or kind is int:
            self._scalar(x, name, rebindable)
        elif isinstance(x, torch.Tensor):
            self._tensor(x, (x.dtype, x.dim(), x.device), name)
        elif isinstance(x, _BY_VALUE):
            self.key.append((kind, x))
        elif isinstance(x, np.ndarray):
            self._tensor(x, (x.dtype, x.ndim), name)
        elif isinstance(x, (np.integer, np.floating, int, float)):
            self._scalar(x, name, rebindable)
        elif isinstance(x, ModuleType):
            self._module(x, name)
        elif isinstance(x, (type, BuiltinFunctionType)):
            self.key.append(x)
        elif isinstance(x, MethodType):
            self._function(x.__func__, rebindable)
            self._value(x.__self__, name, False)
        elif isinstance(x, functools.partial):
            self._sequence((x.func, *x.args), name, rebindable)
            self._mapping(x.keywords, rebindable)
        elif isinstance(x, (tuple, list)):
            self._sequence(x, name, rebindable)
        elif isinstance(x, dict):
            self._mapping(x, rebindable)
        else:
            self._instance(x, name)

    def _function(self, function: Any, rebindable: bool) -> None:
        if type(function) is not FunctionType:
            self.key.append(function)
            return
        seen = self._seen.get(id(function))
        if seen is not None:
            self.key.append(("again", seen))
            return
        self._seen[id(function)] = len(self._seen)
        code = function.__code__
        self.key.append(code)
        library = str(function.__globals__.get("__name__", "")).split(".")[0] in ("torch", "numpy") or str(
            function.__globals__.get("__name__", "")
        ).startswith("attn_mlir.frontend")
        used = _NAMES.get(code) or names_of(code)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                content = cell.cell_contents
            except ValueError:
                self.key.append("empty")
                continue
            self._variable(function, variable, content, rebindable)
        defaults = function.__defaults__ or ()
        first = code.co_argcount - len(defaults)
        for position, default in enumerate(defaults):
            self._variable(function, code.co_varnames[first + position], default, rebindable)
        for variable, default in (function.__kwdefaults__ or {}).items():
            self._variable(function, variable, default, rebindable)
        if library:
            return
        self._names |= used.attributes
        scope = function.__globals__
        for variable in used.globals:
            content = scope.get(variable, _MISSING)
            if content is not _MISSING:
                self._variable(function, variable, content, rebindable)

    def _variable(self, function: Any, variable: str, content: Any, rebindable: bool) -> None:
        before = len(self.leaves)
        self._value(content, variable, rebindable)
        if self.leaf_of is not None and len(self.leaves) == before + 1 and _is_scalar(content):
            self.leaf_of[(id(function), variable)] = before

    def _scalar(self, x: Any, name: str, rebindable: bool) -> None:
        if not rebindable or (isinstance(x, (float, np.floating)) and not math.isfinite(x)):
            self.key.append((type(x), repr(x)))
            return
        self.key.append("int" if isinstance(x, (int, np.integer)) else "float")
        self.leaves.append(x)
        if self.leaf_of is not None:
            self.names.append(name)

    def _tensor(self, x: Any, kind: tuple[Hashable, ...], name: str) -> None:
        first = self._tensors.setdefault(id(x), len(self.leaves))
        if first < len(self.leaves):
            self.key.append(("same", first))
            return
        self.key.append(kind)
        self.leaves.append(x)
        if self.leaf_of is not None:
            self.names.append(name)

    def _module(self, module: ModuleType, name: str) -> None:
        self.key.append(module)
        if module.__name__.split(".")[0] not in _LIBRARIES and not module.__name__.startswith("attn_mlir"):
            self._objects.append((module, name))

    def _sequence(self, x: Sequence[Any], name: str, rebindable: bool) -> None:
        if len(x) > _CONTAINER_LIMIT:
            self.reusable = False
            return
        self.key.append((type(x), len(x)))
        for position, item in enumerate(x):
            self._value(item, f"{name}_{position}", rebindable and callable(item))

    def _mapping(self, x: dict[Any, Any], rebindable: bool) -> None:
        if len(x) > _CONTAINER_LIMIT:
            self.reusable = False
            return
        self.key.append((dict, tuple(x)))
        for name, item in x.items():
            self._value(item, str(name), rebindable and callable(item))

    def _instance(self, x: Any, name: str) -> None:
        seen = self._seen.get(id(x))
        if seen is not None:
            self.key.append(("again", seen))
            return
        self._seen[id(x)] = len(self._seen)
        self.key.append(type(x))
        if callable(x):
            method = getattr(type(x), "forward" if isinstance(x, torch.nn.Module) else "__call__", None)
            self._function(method, False)
        self._objects.append((x, name))

    def _attributes(self, x: Any, name: str) -> None:
        """Fingerprints those attributes of an object whose names occur in the functions."""
        own = getattr(x, "__dict__", {})
        if isinstance(x, torch.nn.Module):
            own = {**own, **own["_parameters"], **own["_buffers"], **own["_modules"]}
        elif not isinstance(x, ModuleType) and (hasattr(type(x), "__getattr__") or type(x).__getattribute__ is not object.__getattribute__):
            self.reusable = False
        for attribute in sorted(self._names):
            content = own.get(attribute, _MISSING)
            if content is _MISSING and not isinstance(x, ModuleType):
                content = _from_class(x, attribute)
            if content is not _MISSING:
                self.key.append(attribute)
                self._value(content, attribute, False)


def _from_class(x: Any, attribute: str) -> Any:
    for base in type(x).__mro__:
        if attribute in base.__dict__:
            found = base.__dict__[attribute]
            if isinstance(found, property):
                return found.fget
            if isinstance(found, (staticmethod, classmethod)):
                return found.__func__
            if hasattr(found, "__get__") and hasattr(found, "__set__"):
                return getattr(x, attribute, _MISSING)
            return found
    return _MISSING


def _is_scalar(x: Any) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


def as_tensor(x: Any) -> torch.Tensor:
    """A tensor leaf as a torch tensor; numpy arrays share their memory."""
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(x)
