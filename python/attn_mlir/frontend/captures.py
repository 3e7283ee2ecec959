"""What the user's functions capture: a key of everything that shapes the trace, and the values that may change.

`Scan` walks the functions of a call: closures, globals, defaults, helper functions, objects. It gives a hashable key
and a list of *leaves*: captured tensors and scalars, in an order that the key determines. Two calls with equal keys
run the same compiled kernel, each with its own leaves. The functions of a call need not be the same objects.

Scalars in closures, globals and defaults are leaves; scalars elsewhere (attributes, containers) are part of the key.
"""

import enum
import functools
import math
import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from attn_mlir.frontend.code_names import names_of

_MISSING = object()
_BY_VALUE = (bool, str, bytes, type(None), complex, range, slice, EllipsisType, enum.Enum, torch.dtype, torch.device, np.bool_, np.dtype)
_BY_IDENTITY = (BuiltinFunctionType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType, np.ufunc)
_OPAQUE = frozenset({"torch", "numpy", "math", "builtins", "functools", "operator", "typing", "collections", "contextlib"})
_CONTAINER_LIMIT = 64
_OBJECT_LIMIT = 256


class Scan:
    """The key and leaves of some functions. `detailed` also records names and places: for tracing, not for every call."""

    __slots__ = ("_attributes", "_detailed", "_objects", "_seen", "_tensors", "key", "leaf_of", "leaves", "names", "reusable")

    def __init__(self, functions: Sequence[Any], detailed: bool = False) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.reusable = True
        """False where something was found whose changes the key would not show."""
        self.names: list[str] = []
        """The variable of each leaf; only if `detailed`."""
        self.leaf_of: dict[tuple[int, str], int] = {}
        """(id of the function, variable) to the leaf of a captured scalar; only if `detailed`."""
        self._detailed = detailed
        self._attributes: frozenset[str] = frozenset()
        self._objects: list[tuple[Any, set[str]]] = []
        self._seen: dict[tuple[int, bool], int] = {}
        self._tensors: dict[int, int] = {}
        for function in functions:
            self._value(function, "captured", True)
        if self._objects:
            self._scan_objects()

    def _value(self, x: Any, name: str, rebindable: bool) -> None:
        """`rebindable`: `rebind` will replace scalars found here by traced ones."""
        kind = type(x)
        if kind is FunctionType:
            self._function(x, rebindable)
        elif isinstance(x, torch.Tensor):
            self._tensor(x, (x.dtype, x.dim()), name)
        elif isinstance(x, _BY_VALUE):
            self.key.append((kind, repr(x) if isinstance(x, slice) else x))
        elif isinstance(x, (int, float, np.integer, np.floating)):
            self._scalar(x, name, rebindable)
        elif isinstance(x, np.ndarray):
            self._tensor(x, (x.dtype, x.ndim), name)
        elif isinstance(x, _BY_IDENTITY):
            self.key.append(x)
        elif isinstance(x, (ModuleType, type)):
            self.key.append(x)
            if not _installed(x) and not self._again(x, False):
                self._objects.append((x, set()))
        elif isinstance(x, MethodType):
            self._value(x.__func__, name, rebindable)
            self._value(x.__self__, name, False)
        elif isinstance(x, functools.partial):
            self._sequence((x.func, *x.args), name, rebindable)
            self._mapping(x.keywords, rebindable)
        elif isinstance(x, (tuple, list)):
            self._sequence(x, name, rebindable and kind in (tuple, list))
        elif isinstance(x, dict):
            self._mapping(x, rebindable and kind is dict)
        elif hasattr(kind, "scan_key"):  # an object that tells itself what of it shapes a trace
            self.key.append((kind, x.scan_key()))
        else:
            self._instance(x)

    def _function(self, function: FunctionType, rebindable: bool) -> None:
        if self._again(function, rebindable):
            return
        code = function.__code__
        used = names_of(code)
        self.key.append(used)
        if code.co_freevars:
            for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:
                    content = None
                self._variable(function, variable, content, rebindable)
        if function.__defaults__:
            first = code.co_argcount - len(function.__defaults__)
            for position, default in enumerate(function.__defaults__, first):
                self._variable(function, code.co_varnames[position], default, rebindable)
        for variable, default in (function.__kwdefaults__ or {}).items():
            self._variable(function, variable, default, rebindable)
        if is_opaque(function):
            return
        self._attributes |= used.attributes
        scope = function.__globals__
        for variable in used.globals:
            content = scope.get(variable, _MISSING)
            if content is not _MISSING:
                self._variable(function, variable, content, rebindable)

    def _variable(self, function: FunctionType, variable: str, content: Any, rebindable: bool) -> None:
        before = len(self.leaves)
        self._value(content, variable, rebindable)
        if self._detailed and len(self.leaves) > before and isinstance(content, (int, float, np.integer, np.floating)):
            self.leaf_of[(id(function), variable)] = before

    def _scalar(self, x: Any, name: str, rebindable: bool) -> None:
        whole = isinstance(x, (int, np.integer))
        if not rebindable or not (whole or math.isfinite(x)):
            self.key.append((type(x), repr(x)))
            return
        self.key.append("int" if whole else "float")
        self._leaf(x, name)

    def _tensor(self, x: Any, kind: Hashable, name: str) -> None:
        first = self._tensors.setdefault(id(x), len(self.leaves))
        if first < len(self.leaves):
            self.key.append(first)
            return
        self.key.append(kind)
        self._leaf(x, name)

    def _leaf(self, x: Any, name: str) -> None:
        self.leaves.append(x)
        if self._detailed:
            self.names.append(name)

    def _sequence(self, x: Sequence[Any], name: str, rebindable: bool) -> None:
        if self._opened(x, rebindable):
            self.key.append((type(x), len(x)))
            for position, item in enumerate(x):
                self._value(item, f"{name}_{position}", rebindable and callable(item))

    def _mapping(self, x: Mapping[Any, Any], rebindable: bool) -> None:
        if self._opened(x, rebindable):
            self.key.append((dict, tuple(x)))
            for name, item in x.items():
                self._value(item, str(name), rebindable and callable(item))

    def _opened(self, x: Any, rebindable: bool) -> bool:
        """Whether to look into a container now: not again, and not if it is large."""
        if len(x) > _CONTAINER_LIMIT:
            self.reusable = False
            return False
        return not self._again(x, rebindable)

    def _again(self, x: Any, rebindable: bool) -> bool:
        """Whether `x` was met before; the key then says where."""
        known = self._seen.get((id(x), rebindable))
        if known is None:
            self._seen[(id(x), rebindable)] = len(self._seen)
            return False
        self.key.append(("again", known))
        return True

    def _instance(self, x: Any) -> None:
        if self._again(x, False):
            return
        kind: type = type(x)
        self.key.append(kind)
        wrapped = getattr(x, "__wrapped__", None)
        if wrapped is not None:
            self._value(wrapped, "captured", False)
        if callable(x):
            self._value(getattr(kind, "forward" if isinstance(x, torch.nn.Module) else "__call__", None), "captured", False)
        if not hasattr(x, "__dict__") and not any("__slots__" in base.__dict__ for base in kind.__mro__[:-1]):
            self.reusable = False
        self._objects.append((x, set()))

    def _scan_objects(self) -> None:
        """Adds the attributes of objects whose names occur in the functions; those may hold further functions and objects."""
        changed = True
        while changed:
            changed = False
            for x, done in self._objects:
                if len(self._objects) > _OBJECT_LIMIT:
                    self.reusable = False
                    return
                names = self._attributes - done
                if names:
                    done |= names
                    changed = True
                    self._fingerprint(x, sorted(names))

    def _fingerprint(self, x: Any, names: Iterable[str]) -> None:
        if not isinstance(x, (ModuleType, type, torch.nn.Module)) and (
            hasattr(type(x), "__getattr__") or type(x).__getattribute__ is not object.__getattribute__
        ):
            self.reusable = False
        own = dict(vars(x)) if hasattr(x, "__dict__") else {}
        if isinstance(x, torch.nn.Module):
            own.update(own["_parameters"] | own["_buffers"] | own["_modules"])
        bases: Sequence[type] = () if isinstance(x, ModuleType) else (x if isinstance(x, type) else type(x)).__mro__
        for name in names:
            content = own.get(name, _MISSING)
            if content is _MISSING:
                content = _from_class(x, name, bases)
            if content is not _MISSING:
                self.key.append(name)
                self._value(content, name, False)


def _from_class(x: Any, name: str, bases: Sequence[type]) -> Any:
    for base in bases:
        if name in base.__dict__:
            found = base.__dict__[name]
            if isinstance(found, property):
                return found.fget
            if isinstance(found, (staticmethod, classmethod)):
                return found.__func__
            slot = hasattr(found, "__get__") and hasattr(found, "__set__")
            return getattr(x, name, _MISSING) if slot else found
    return _MISSING


def _library(x: Any) -> str:
    """The top-level package of a function, class or module; the frontend itself counts as builtin."""
    match x:
        case FunctionType():
            name = str(x.__globals__.get("__name__", ""))
        case ModuleType():
            name = x.__name__
        case _:
            name = str(getattr(x, "__module__", ""))
    return "builtins" if name.startswith("attn_mlir.frontend") else name.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def _installed(x: ModuleType | type) -> bool:
    """Whether a module or class is installed, not the user's own, so that what it holds is taken not to change."""
    module = x if isinstance(x, ModuleType) else sys.modules.get(x.__module__)
    file = getattr(module, "__file__", None) or ""
    return _library(x) in _OPAQUE or _library(x) in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file


def is_opaque(function: FunctionType) -> bool:
    """Whether a function belongs to a library, so that its globals are not the user's."""
    return _library(function) in _OPAQUE


def as_tensor(x: Any) -> torch.Tensor:
    """A tensor leaf as a torch tensor; numpy arrays share their memory."""
    return x if isinstance(x, torch.Tensor) else torch.from_numpy(x)
