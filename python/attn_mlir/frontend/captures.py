"""What the user's functions capture: a key of everything that shapes the trace, and the values that may change.

`Scan` walks the functions of a call: closures, globals, defaults, helper functions, objects. It gives a hashable key
and a list of *leaves*: captured tensors and scalars, in an order that the key determines. Two calls with equal keys
run the same compiled kernel, each with its own leaves. The functions of a call need not be the same objects.

Scalars in closures, globals and defaults are leaves; scalars elsewhere (attributes, containers) are part of the key.
Whatever cannot be followed makes the trace one that is not reused: never is an old value taken for the current one.
"""

import enum
import functools
import math
import random
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from types import (
    BuiltinFunctionType,
    EllipsisType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from attn_mlir.frontend.code_names import LIBRARIES, is_builtin, names_of
from attn_mlir.frontend.origin import has_operators, hides, is_installed, is_opaque, is_stateful, library, operators

_MISSING = object()
_BY_VALUE = (bool, str, bytes, type(None), complex, range, slice, EllipsisType, enum.Enum, torch.dtype, torch.device, np.bool_, np.dtype)
_BY_IDENTITY = (
    BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType,
    np.ufunc,
)  # fmt: skip
_PLAIN = (int, float, tuple, list, dict, OrderedDict)
_CONTAINER_LIMIT = 64
_OBJECT_LIMIT = 256
_ARRAY_LIMIT = 1 << 16


class Watch:
    """What a scan read, where it can be compared with what is there now: variables of functions, by identity.

    It holds none of the functions that were given, so that it can be forgotten when they are; those are known by their numbers.
    """

    __slots__ = ("cells", "functions", "globals", "tensors")

    def __init__(self) -> None:
        self.functions: list[tuple[int | FunctionType, Any, Any]] = []
        self.cells: list[tuple[Any, Any]] = []
        self.globals: list[tuple[int | FunctionType, str, Any]] = []
        self.tensors: list[tuple[torch.Tensor, torch.dtype, int]] = []

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
            if function.__globals__.get(variable, _MISSING) is not content:
                return False
        return all(tensor.dtype is dtype and tensor.dim() == dims for tensor, dtype, dims in self.tensors)


class Scan:
    """The key and leaves of some functions. `detailed` also records names and places: for tracing, not for every call."""

    __slots__ = (
        "_attributes", "_detailed", "_given", "_keep", "_objects", "_seen", "_tensors", "generators", "key", "leaf_of", "leaves", "names",
        "reusable", "stateful", "watch",
    )  # fmt: skip

    def __init__(self, functions: Sequence[Any], detailed: bool = False) -> None:
        self.key: list[Hashable] = []
        self.leaves: list[Any] = []
        self.reusable = True
        """False where something was found whose changes the key would not show."""
        self.watch: Watch | None = Watch()
        """Tells whether another scan would find the same; None where that takes another scan."""
        self.generators: list[Any] = []
        """Generators of random numbers."""
        self.stateful = False
        """Whether something was found that reads clocks or other state of the process."""
        self.names: list[str] = []
        """The variable of each leaf; only if `detailed`."""
        self.leaf_of: dict[tuple[int, str], int] = {}
        """(id of the function, variable) to the leaf of a captured scalar; only if `detailed`."""
        self._detailed = detailed
        self._attributes: frozenset[str] = frozenset()
        self._objects: list[tuple[Any, set[str]]] = []
        self._seen: dict[tuple[int, bool], int] = {}
        self._keep: list[Any] = []
        self._tensors: dict[int, int] = {}
        self._given = {id(function): number for number, function in enumerate(functions)}
        for function in functions:
            self._value(function, "captured", True)
        if self._objects:
            self.watch = None
            self._scan_objects()

    def let_go(self) -> "Scan":
        """Itself, done with scanning: it keeps the leaves and the watch, but not the functions."""
        self._keep.clear()
        return self

    def _value(self, x: Any, name: str, rebindable: bool) -> None:
        """`rebindable`: `rebind` will replace scalars found here by traced ones."""
        kind = type(x)
        if kind is FunctionType:
            self._function(x, rebindable)
        elif isinstance(x, torch.Tensor):
            self._tensor(x, (x.dtype, x.dim()), name)
        elif isinstance(x, _BY_VALUE):
            self.key.append((kind, repr(x) if isinstance(x, slice) else x))
        elif _is_number(x):
            self._scalar(x, name, rebindable)
        elif isinstance(x, (int, float)):  # a class of the user's, which may compute in its own way
            self.watch = None
            self.key.append((kind, repr(float(x)), int(x) if isinstance(x, int) else 0))
            self._instance(x)
        elif isinstance(x, np.ndarray):
            self.watch = None
            self._tensor(x, (x.dtype, x.ndim), name)
            if not rebindable:  # seen as it is, and not as a tensor
                self._contents(x)
        elif isinstance(x, _BY_IDENTITY):
            self._builtin(x, name)
        elif isinstance(x, (ModuleType, type)):
            self._namespace(x)
        elif isinstance(x, MethodType):
            self._value(x.__func__, name, rebindable)
            self._value(x.__self__, name, False)
        elif isinstance(x, functools.partial):
            self.watch = None
            self._sequence((x.func, *x.args), name, rebindable)
            self._mapping(x.keywords, rebindable)
        elif isinstance(x, (tuple, list)):
            if kind is not tuple:
                self.watch = None
            self._sequence(x, name, rebindable and kind in (tuple, list))
        elif isinstance(x, dict):
            self.watch = None
            self._mapping(x, rebindable and kind is dict)
        elif hasattr(kind, "scan_key"):  # an object that tells itself what of it shapes a trace
            self.watch = None
            self.key.append((kind, x.scan_key()))
        else:
            self._instance(x)

    def _function(self, function: FunctionType, rebindable: bool) -> None:
        if self._again(function, rebindable):
            return
        code = function.__code__
        used = names_of(code)
        self.key.append(used)
        watch = self.watch
        if watch is not None:
            watch.functions.append((self._given.get(id(function), function), code, function.__defaults__))
        if function.__kwdefaults__:
            self.watch = None
        if code.co_freevars:
            for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                try:
                    content = cell.cell_contents
                except ValueError:
                    content = self.watch = None
                if watch is not None:
                    watch.cells.append((cell, content))
                self._variable(function, variable, content, rebindable)
        if function.__defaults__:
            first = code.co_argcount - len(function.__defaults__)
            for position, default in enumerate(function.__defaults__, first):
                self._variable(function, code.co_varnames[position], default, rebindable)
        for variable, default in (function.__kwdefaults__ or {}).items():
            self._variable(function, variable, default, rebindable)
        if is_opaque(function):
            return
        if used.hides:
            self.reusable = False
        if used.modes:
            self.watch = None
            self.key.append(_modes())
        if self._detailed:
            self.stateful = self.stateful or used.stateful or is_stateful(function)
        if function.__dict__:
            self._objects.append((function, set()))
        self._attributes |= used.attributes
        scope = function.__globals__
        for variable in used.globals:
            content = scope.get(variable, _MISSING)
            if watch is not None:
                watch.globals.append((self._given.get(id(function), function), variable, content))
            if content is not _MISSING:
                self._variable(function, variable, content, rebindable)
            elif not is_builtin(variable):
                self.reusable = False

    def _variable(self, function: FunctionType, variable: str, content: Any, rebindable: bool) -> None:
        before = len(self.leaves)
        self._value(content, variable, rebindable)
        if self._detailed and len(self.leaves) > before and _is_number(content):
            self.leaf_of[(id(function), variable)] = before

    def _builtin(self, x: Any, name: str) -> None:
        """A function without Python code; it may belong to an object, as does `table.get`."""
        self.key.append(x)
        self._hidden(x)
        owner = getattr(x, "__self__", None)
        if owner is not None and not isinstance(owner, (ModuleType, type)):
            self._value(owner, name, False)

    def _hidden(self, x: Any) -> None:
        if hides(x):
            self.reusable = False
            self.stateful = self.stateful or is_stateful(x)

    def _namespace(self, x: ModuleType | type) -> None:
        self.key.append(x)
        self._hidden(x)
        if is_installed(x):
            self.stateful = self.stateful or library(x) not in LIBRARIES
            return
        if self._again(x, False):
            return
        self._objects.append((x, set()))
        if isinstance(x, type):  # its instances may be made while tracing
            self._operators(x, True)
            if type(x) is not type:
                self._operators(type(x), False)

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
        if isinstance(x, torch.Tensor):
            if self.watch is not None:
                self.watch.tensors.append((x, x.dtype, x.dim()))
            if x.__dict__:
                self._objects.append((x, set()))

    def _contents(self, x: np.ndarray) -> None:
        if x.nbytes > _ARRAY_LIMIT or x.dtype.hasobject:
            self.reusable = False
        else:
            self.key.append((x.shape, x.tobytes()))

    def _leaf(self, x: Any, name: str) -> None:
        self.leaves.append(x)
        if self._detailed:
            self.names.append(name)

    def _sequence(self, x: Sequence[Any], name: str, rebindable: bool) -> None:
        if self._opened(x, rebindable):
            self.key.append((type(x), len(x)))
            for position, item in enumerate(x):
                self._value(item, f"{name}_{position}", rebindable and (callable(item) or isinstance(item, np.ndarray)))
            if type(x) not in (tuple, list, torch.Size):
                self._members(x, type(x))

    def _mapping(self, x: Mapping[Any, Any], rebindable: bool) -> None:
        if self._opened(x, rebindable):
            self.key.append((dict, tuple(x)))
            for name, item in x.items():
                self._value(item, str(name), rebindable and (callable(item) or isinstance(item, np.ndarray)))
            if type(x) is not dict:
                self._members(x, type(x))

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
            self._keep.append(x)  # so that no other object gets its identity
            return False
        self.key.append(("again", known))
        return True

    def _instance(self, x: Any) -> None:
        self.watch = None
        if self._again(x, False):
            return
        kind: type = type(x)
        self.key.append(kind)
        owner = getattr(x, "__self__", x)  # of a method of a compiled class
        if isinstance(owner, random.Random) or type(owner).__module__.startswith("numpy.random"):
            self.reusable, self.stateful = False, True
            self.generators.append(owner)
            return
        wrapped = getattr(x, "__wrapped__", None)
        if wrapped is not None:
            self._value(wrapped, "captured", False)
        if callable(x):
            self._value(getattr(kind, "forward" if isinstance(x, torch.nn.Module) else "__call__", None), "captured", False)
        if not hasattr(x, "__dict__") and not any("__slots__" in base.__dict__ for base in kind.__mro__[:-1]):
            self.reusable = False
        self._members(x, kind)

    def _members(self, x: Any, kind: type) -> None:
        self._operators(kind, False)
        self._objects.append((x, set()))

    def _operators(self, kind: type, made: bool) -> None:
        """Follows what Python calls by itself on instances of a class; `made`: also while it makes one."""
        for base in kind.__mro__:
            if library(base) == "builtins":  # Python's own and traced values
                continue
            if is_installed(base):
                if has_operators(base):
                    self.reusable = False
                continue
            for name, method in operators(base, made):
                self.key.append(name)
                self._value(method, name, False)

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
        plain = isinstance(x, (FunctionType, torch.Tensor))
        if not plain and _looks_up_itself(x):
            self.reusable = False
        own = dict(vars(x)) if hasattr(x, "__dict__") and not isinstance(x, type) else {}
        if isinstance(x, torch.nn.Module):
            own.update(own["_parameters"] | own["_buffers"] | own["_modules"])
        bases: Sequence[type] = () if plain or isinstance(x, ModuleType) else (x if isinstance(x, type) else type(x)).__mro__
        for name in names:
            content = own.get(name, _MISSING)
            if content is not _MISSING:
                self.key.append(name)
                self._value(content, name, False)
            # Also where the object has its own: `type(x).name` and `super().name` read these.
            for base in bases:
                content = _from_class(x, name, base)
                if content is not _MISSING:
                    self.key.append(name)
                    self._value(content, name, False)


def _modes() -> tuple[Any, ...]:
    """The modes of torch that a function can ask for."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(), *[(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
    )  # fmt: skip


def _is_number(x: Any) -> bool:
    """Whether `x` is a number that can become an argument: not of a class of the user's, which may compute in its own way."""
    return type(x) in (int, float) or isinstance(x, (np.integer, np.floating))


def _looks_up_itself(x: Any) -> bool:
    """Whether the class or module of `x` decides in code of its own what its attributes are."""
    kind = type(x)
    if isinstance(x, ModuleType):
        return "__getattr__" in vars(x) or hasattr(kind, "__getattr__") or kind.__getattribute__ is not ModuleType.__getattribute__
    if isinstance(x, torch.nn.Module):
        return kind.__getattr__ is not torch.nn.Module.__getattr__ or kind.__getattribute__ is not object.__getattribute__
    if isinstance(x, type):
        return hasattr(kind, "__getattr__") or kind.__getattribute__ is not type.__getattribute__
    if hasattr(kind, "__getattr__"):
        return True
    look_up = kind.__getattribute__
    return look_up is not object.__getattribute__ and all(look_up is not base.__getattribute__ for base in _PLAIN)


def _from_class(x: Any, name: str, base: type) -> Any:
    if base is object or name not in base.__dict__:
        return _MISSING
    found = base.__dict__[name]
    if isinstance(found, property):
        return found.fget
    if isinstance(found, (staticmethod, classmethod)):
        return found.__func__
    slot = hasattr(found, "__get__") and hasattr(found, "__set__")
    return getattr(x, name, _MISSING) if slot else found


def as_tensor(x: Any) -> torch.Tensor:
    """A tensor leaf as a torch tensor; numpy arrays share their memory where torch can."""
    if isinstance(x, torch.Tensor):
        return x
    tensor = torch.from_numpy(x.copy() if min(x.strides, default=0) < 0 else x)
    tensor.shares_numpy = True  # type: ignore[attr-defined]  # who keeps it for later copies it: no version tells of changes
    return tensor
