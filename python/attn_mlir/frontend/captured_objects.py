"""What captured objects, classes and modules add to a scan: what Python calls on them, and those of their attributes that are named."""

import random
from abc import abstractmethod
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch

from attn_mlir.frontend.attributes import attributes, hooks_of, looks_up_itself
from attn_mlir.frontend.code_names import LIBRARIES
from attn_mlir.frontend.findings import Findings
from attn_mlir.frontend.origin import (
    has_library_methods,
    has_operators,
    hides,
    is_installed,
    is_library_forward,
    is_stateful,
    library,
    operators,
)

_OBJECT_LIMIT = 256


class Objects(Findings):
    """The part of a scan that looks into objects."""

    __slots__ = ("_attributes",)

    def __init__(self, detailed: bool) -> None:
        super().__init__(detailed)
        self._attributes: frozenset[str] = frozenset()

    @abstractmethod
    def _value(self, x: Any, name: str, rebindable: bool) -> None:
        """Scans anything."""

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
        if isinstance(x, type) and issubclass(x, torch.autograd.Function):
            for name in ("forward", "setup_context", "backward", "vjp"):
                self._value(getattr(x, name), name, False)
        if isinstance(x, type):  # its instances may be made while tracing
            self._operators(x, True)
            if type(x) is not type:
                self._operators(type(x), False)

    def _instance(self, x: Any) -> None:
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
        if isinstance(x, torch.nn.Module):
            self._called(x)
            if is_library_forward(kind):
                self._library_module(x)
        if not hasattr(x, "__dict__") and not any("__slots__" in base.__dict__ for base in kind.__mro__[:-1]):
            self.reusable = False
        self._members(x, kind)

    def _called(self, module: torch.nn.Module) -> None:
        """What torch calls with a module besides the `forward` of its class."""
        own = vars(module).get("forward")
        for function in (*([] if own is None else [own]), *hooks_of(module)):
            self.watch = None
            self.key.append("called")
            self._value(function, "captured", False)

    def _library_module(self, module: torch.nn.Module) -> None:
        """What a module whose code is torch's was made with, as `LeakyReLU(0.1)`, and which modules it holds: that code is not followed."""
        settings = {name: x for name, x in vars(module).items() if not name.startswith("_")}
        parts = module._parameters | module._buffers | module._modules
        self.key.append((*settings, *parts))
        self._attributes |= settings.keys()
        if parts:
            self.watch = None
        for name, x in (settings | parts).items():
            self._value(x, name, False)

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
        names = list(names)
        if looks_up_itself(x):
            self.reusable = False
        elif has_library_methods(type(x), names):
            if isinstance(x, torch.nn.Module):  # as in `super().forward(score)`
                self._library_module(x)
            else:
                self.reusable = False
        for name, content in attributes(x, names):
            self.key.append(name)
            self._value(content, name, False)
