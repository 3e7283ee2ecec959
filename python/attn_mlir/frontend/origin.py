"""Where functions, classes and modules come from, and what of them may change between two calls."""

import functools
import operator
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch

from attn_mlir.frontend.code_names import LIBRARIES, STATEFUL

MADE = "_attn_mlir_made"
"""The attribute of a ready-made function that tells how it was made, see `api.makers`; no function reads it."""
# What these give does not follow from the names in a function that calls them.
_HIDING = frozenset(
    id(x)
    for x in (
        getattr, hasattr, setattr, delattr, globals, locals, vars, dir, eval, exec, next, open, input, __import__,
        operator.attrgetter, operator.methodcaller,
    )
)  # fmt: skip
_MAKING = frozenset({"__init__", "__new__", "__post_init__"})
# Called by the user's own functions only in ways that do not shape a trace, or looked at in another place.
_NOT_FOLLOWED = frozenset(
    {
        "__call__", "__getattr__", "__getattribute__", "__init_subclass__", "__set_name__", "__repr__", "__str__", "__del__", "__dir__",
        "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__", "__copy__", "__deepcopy__", "__replace__",
        "__setattr__", "__delattr__", "__sizeof__", "__annotate__", "__annotate_func__", "__subclasshook__", "__instancecheck__",
        "__subclasscheck__",
    }
)  # fmt: skip


def library(x: Any) -> str:
    """The top-level package of a function, class or module; the frontend itself counts as builtin."""
    match x:
        case FunctionType():
            name = str(x.__globals__.get("__name__", ""))
        case ModuleType():
            name = x.__name__
        case _:
            name = str(getattr(x, "__module__", ""))
    return _package(name)


def _package(module: str) -> str:
    return "builtins" if module.startswith("attn_mlir.frontend") else module.partition(".")[0]


@functools.lru_cache(maxsize=1024)
def _is_library(module: str) -> bool:
    return _package(module) in LIBRARIES


def is_opaque(function: FunctionType) -> bool:
    """Whether a function belongs to a library, so that its globals are not the user's."""
    return _is_library(str(function.__globals__.get("__name__", "")))


@functools.lru_cache(maxsize=1024)
def is_installed(x: ModuleType | type) -> bool:
    """Whether a module or class is installed, not the user's own, so that what it holds is taken not to change."""
    module = x if isinstance(x, ModuleType) else sys.modules.get(x.__module__)
    file = getattr(module, "__file__", None) or ""
    return library(x) in LIBRARIES or library(x) in sys.stdlib_module_names or "site-packages" in file or "dist-packages" in file


def hides(x: Any) -> bool:
    """Whether a builtin function, class or module gives values that the names in the calling code do not tell."""
    return id(x) in _HIDING or is_stateful(x)


def is_stateful(x: Any) -> bool:
    """Whether what a module gives, or a function or class of it, differs from call to call, as with `time` and `random`."""
    return library(x) in STATEFUL or library(x) in ("posix", "nt", "_uuid")


def operators(kind: type, made: bool) -> Iterator[tuple[str, Any]]:
    """The methods that Python calls by itself, as it does `__mul__`, that the class itself defines, with their names.

    `made`: also those with which an instance is made.
    """
    for name, member in kind.__dict__.items():
        if not name.startswith("__") or not name.endswith("__") or name in _NOT_FOLLOWED or (not made and name in _MAKING):
            continue
        if isinstance(member, (staticmethod, classmethod)):
            yield name, member.__func__
        elif callable(member) and not isinstance(member, type):
            yield name, member


@functools.lru_cache(maxsize=1024)
def has_operators(kind: type) -> bool:
    """Whether an installed class has operators in Python, of which it is not known what they read."""
    known = ("__class_getitem__", "__hash__", "__eq__", "__ne__") if kind.__module__ == "enum" else ("__class_getitem__", "__hash__")
    return any(isinstance(member, FunctionType) and name not in known for name, member in operators(kind, False))


def has_library_methods(kind: type, names: Iterable[str]) -> bool:
    """Whether an object of this class has a method or property of these names in code of a library, which reads more of the object."""
    if issubclass(kind, (type, ModuleType, FunctionType, torch.Tensor)):
        return False
    bases = [base for base in kind.__mro__[:-1] if base is not torch.nn.Module and is_installed(base)]  # that one's are of all modules
    found = [base.__dict__[name] for base in bases for name in names if name in base.__dict__]
    functions = [getattr(x, "fget", None) or getattr(x, "__func__", x) for x in found]
    return any(isinstance(x, FunctionType) and is_opaque(x) for x in functions)


def is_library_forward(kind: type) -> bool:
    """Whether code of a library runs where a module of this class is called. Modules that a class merely derives from say nothing."""
    forward = getattr(kind, "forward", None)
    return isinstance(forward, FunctionType) and forward is not torch.nn.Module.forward and is_opaque(forward)
