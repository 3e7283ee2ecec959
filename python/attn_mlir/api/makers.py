"""Functions that makers such as `masks.causal()` return: they are pickled as the maker and what it was called with."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch

from attn_mlir.frontend.origin import MADE

P = ParamSpec("P")
T = TypeVar("T")

_FROM_STATE: ContextVar[Sequence[torch.dtype] | None] = ContextVar("from_state", default=None)


@contextmanager
def from_state(dtypes: Sequence[torch.dtype]) -> Iterator[None]:
    """While it lasts, an attention or engine is made of a state, copied or unpickled, in which custom inputs had these dtypes.

    Its functions may be methods of a module that holds it, and is not whole yet: nobody may look into them before a call.
    """
    token = _FROM_STATE.set(dtypes)
    try:
        yield
    finally:
        _FROM_STATE.reset(token)


def dtypes_of_state() -> Sequence[torch.dtype] | None:
    """Within `from_state` its dtypes; else None."""
    return _FROM_STATE.get()


def maker(function: Callable[P, T]) -> Callable[P, T]:
    """Lets what `function` returns tell how it was made."""

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        made = function(*args, **kwargs)
        if not torch.compiler.is_dynamo_compiling() and MADE not in vars(made):
            setattr(made, MADE, (make, args, kwargs))
        return made

    return make


class MadeFunction:
    """In the state of what is pickled or copied: a function that a maker returned. A copy shares it, unless it was made with tensors."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __deepcopy__(self, memo: Any) -> "MadeFunction":
        if not tensors_of(self.function):
            return self
        make, args, kwargs = self._call()
        return _again(make, copy.deepcopy(args, memo), copy.deepcopy(kwargs, memo))

    def __reduce__(self) -> Any:
        return _again, self._call()

    def _call(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        make, args, kwargs = getattr(self.function, MADE)
        return make, tuple([packed(x) for x in args]), {name: packed(x) for name, x in kwargs.items()}


def packed(value: Any) -> Any:
    """The value as it can be pickled."""
    return MadeFunction(value) if hasattr(value, MADE) else value


def unpacked(value: Any) -> Any:
    """The value that was packed."""
    return value.function if isinstance(value, MadeFunction) else value


def tensors_of(function: Any) -> dict[str, torch.Tensor]:
    """The tensors that a ready-made function was made with, by the names of arguments, numbered where these repeat; else none."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in _tensors(function):
        if all(tensor is not other for other in found.values()):
            found[next(n for n in (name, *(f"{name}_{i}" for i in range(1, len(found) + 2))) if n not in found)] = tensor
    return found


def _tensors(function: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if not hasattr(function, MADE):
        return
    make, args, kwargs = getattr(function, MADE)
    for name, value in inspect.signature(make).bind(*args, **kwargs).arguments.items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, torch.Tensor):
                yield name, each
            else:
                yield from _tensors(each)


def with_tensors(function: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The same function, made with `change` of its tensors."""
    if isinstance(function, torch.Tensor):
        return change(function)
    if not hasattr(function, MADE):
        return function
    make, args, kwargs = getattr(function, MADE)
    return make(*[with_tensors(x, change) for x in args], **{name: with_tensors(x, change) for name, x in kwargs.items()})


def _again(make: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> MadeFunction:
    return MadeFunction(make(*[unpacked(x) for x in args], **{name: unpacked(x) for name, x in kwargs.items()}))
