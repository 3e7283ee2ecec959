"""Functions that makers such as `masks.causal()` return: they are pickled as the maker and what it was called with."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")
_MADE = "_attn_mlir_made"


def maker(function: Callable[P, T]) -> Callable[P, T]:
    """Lets what `function` returns tell how it was made."""

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> T:
        made = function(*args, **kwargs)
        if not torch.compiler.is_dynamo_compiling() and _MADE not in vars(made):
            setattr(made, _MADE, (make, args, kwargs))
        return made

    return make


class Made:
    """In the state of what is pickled or copied: a function that a maker returned. A copy shares it."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __deepcopy__(self, memo: Any) -> "Made":
        return self

    def __reduce__(self) -> Any:
        make, args, kwargs = getattr(self.function, _MADE)
        return _again, (make, tuple([packed(x) for x in args]), {name: packed(x) for name, x in kwargs.items()})


def packed(value: Any) -> Any:
    """The value as it can be pickled."""
    return Made(value) if hasattr(value, _MADE) else value


def unpacked(value: Any) -> Any:
    """The value that was packed."""
    return value.function if isinstance(value, Made) else value


def _again(make: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Made:
    return Made(make(*[unpacked(x) for x in args], **{name: unpacked(x) for name, x in kwargs.items()}))
