"""What the user's functions capture: a key of everything that shapes the trace, and the values that may change.

`Scan` walks the functions of a call: closures, globals, defaults, helper functions, objects. It gives a hashable key
and a list of *leaves*: captured tensors and scalars, in an order that the key determines. Two calls with equal keys
run the same compiled kernel, each with its own leaves. The functions of a call need not be the same objects.

Scalars in closures, globals and defaults are leaves; scalars elsewhere (attributes, containers) are part of the key.
Whatever cannot be followed makes the trace one that is not reused: never is an old value taken for the current one.
"""

import enum
import functools
from collections.abc import Mapping, Sequence
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

from attn_mlir.frontend.captured_objects import Objects
from attn_mlir.frontend.code_names import is_builtin, names_of
from attn_mlir.frontend.findings import is_number
from attn_mlir.frontend.origin import MADE, is_opaque, is_stateful
from attn_mlir.frontend.watch import MISSING

_BY_VALUE = (bool, str, bytes, type(None), complex, range, slice, EllipsisType, enum.Enum, torch.dtype, torch.device, np.bool_, np.dtype)
_MODES = (torch.no_grad, torch.enable_grad, torch.set_grad_enabled, torch.inference_mode, torch.autocast)
_BY_IDENTITY = (
    BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, MethodWrapperType, WrapperDescriptorType,
    np.ufunc,
)  # fmt: skip


class Scan(Objects):
    """The key and leaves of some functions. `detailed` also records names and places: for tracing, not for every call."""

    __slots__ = ("_given",)

    def __init__(self, functions: Sequence[Any], detailed: bool = False) -> None:
        super().__init__(detailed)
        self._given = {id(function): number for number, function in enumerate(functions)}
        for function in functions:
            self._value(function, "captured", True)
        if self._objects:
            self._scan_objects()
            if self.watch is not None and not self.watch.add_objects([x for x, _ in self._objects], self._attributes):
                self.watch = None

    def let_go(self) -> "Scan":
        """Itself, done with scanning: it keeps the leaves and the watch, but neither functions nor objects."""
        self._keep.clear()
        self._objects.clear()
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
        elif is_number(x):
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
        elif isinstance(x, _MODES):  # as `torch.no_grad` over a function has one
            self._asked_modes()
            self._instance(x)
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
            self._asked_modes()
        if self._detailed:
            self.stateful = self.stateful or used.stateful or is_stateful(function)
        if function.__dict__ and (len(function.__dict__) > 1 or MADE not in function.__dict__):
            self._objects.append((function, set()))
        self._attributes |= used.attributes
        scope = function.__globals__
        for variable in used.globals:
            content = scope.get(variable, MISSING)
            if watch is not None:
                watch.globals.append((self._given.get(id(function), function), variable, content))
            if content is not MISSING:
                self._variable(function, variable, content, rebindable)
            elif not is_builtin(variable):
                self.reusable = False

    def _asked_modes(self) -> None:
        self.watch = None
        self.key.append(_modes())

    def _variable(self, function: FunctionType, variable: str, content: Any, rebindable: bool) -> None:
        before = len(self.leaves)
        self._value(content, variable, rebindable)
        if self._detailed and len(self.leaves) > before and is_number(content):
            self.leaf_of[(id(function), variable)] = before

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


def _modes() -> tuple[Any, ...]:
    """The modes of torch that a function can ask for."""
    return (
        torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(), *[(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in ("cpu", "cuda")],
    )  # fmt: skip
