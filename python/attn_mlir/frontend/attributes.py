"""Attributes of objects as Python looks them up: the object's own, those of its classes, and whether code of its own decides."""

from collections import OrderedDict
from collections.abc import Iterable
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks

_EVERY = (_global_forward_pre_hooks, _global_forward_hooks)
_MISSING = object()
_WITHOUT_CLASS = (FunctionType, ModuleType, torch.Tensor)
"""Whose classes are Python's and torch's own: nothing of them is looked at."""
_PLAIN = (int, float, tuple, list, dict, OrderedDict)


def looks_up_itself(x: Any) -> bool:
    """Whether the class or module of `x` decides in code of its own what its attributes are."""
    kind = type(x)
    if isinstance(x, (FunctionType, torch.Tensor)):
        return False
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


def attributes(x: Any, names: Iterable[str]) -> list[tuple[str, Any]]:
    """The attributes of `x` with these names, those of its classes, too: `type(x).name` and `super().name` read these."""
    own = dict(vars(x)) if hasattr(x, "__dict__") and not isinstance(x, type) else {}
    if isinstance(x, torch.nn.Module):
        own.update(own["_parameters"] | own["_buffers"] | own["_modules"])
    bases = () if isinstance(x, _WITHOUT_CLASS) else (x if isinstance(x, type) else type(x)).__mro__
    found = []
    for name in names:
        if name in own:
            found.append((name, own[name]))
        for base in bases:
            content = _from_class(x, name, base)
            if content is not _MISSING:
                found.append((name, content))
    return found


def hooks_of(module: torch.nn.Module) -> list[Any]:
    """The functions that run with a module's `forward`, its own and those of all modules."""
    own = vars(module)
    return [hook for hooks in (*_EVERY, own["_forward_pre_hooks"], own["_forward_hooks"]) for hook in hooks.values()]


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
