"""Changes of tensors in place inside a user's function: refused, since captured tensors are read only and others may be seen twice."""

from typing import Any

import torch

from attn_mlir.errors import TraceError
from attn_mlir.frontend import scope

_CHANGES = ("__setitem__", "__set__", "copy_", "fill_", "put_", "index_put_")
_IN_PLACE = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift", "div")
_COPY = "captured tensors are read only; compute a new value instead, e.g. with torch.where"


def check(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: list[Any]) -> None:
    """Raises TraceError for a torch function that changes a tensor, or that gets one which was to be changed."""
    if scope.current().changed:
        _check_unchanged(arguments)
    if name in _CHANGES or _is_in_place(name, args):
        _note_change(args[0])
        raise _refused("changes a tensor in place")
    if kwargs.get("out") is not None:
        raise scope.fail("changes a tensor in place", _COPY)


class Unchanged:
    """Around a torch function: raises TraceError where it changed one of its arguments."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._tensors = tensors

    def __enter__(self) -> None:
        self._versions = [_version(tensor) for tensor in self._tensors]

    def __exit__(self, error: Any, *_: object) -> None:
        if error is None and self._versions != [_version(tensor) for tensor in self._tensors]:
            raise scope.fail("changes a tensor in place", _COPY)


def _is_in_place(name: str, args: tuple[Any, ...]) -> bool:
    if name.startswith("__i") and name[3:-2] in _IN_PLACE:
        return isinstance(args[0], torch.Tensor) and id(args[0]) not in scope.current().fresh
    return (
        name.endswith("_")
        and not name.startswith("_")
        and isinstance(args[0] if args else None, torch.Tensor)
        and name not in ("requires_grad_",)
    )


def _note_change(tensor: Any) -> None:
    """Notes that a tensor was to be changed in place, which is refused.

    For `x += y` Python goes on with `x = x + y`, which is right where no other tensor has the same memory.
    """
    trace = scope.current()
    memory = _memory(tensor)
    captured = any(trace.tensors.get(id(other), ("",))[0][:1] == ("leaf",) and _memory(other) == memory for other in trace.keep)
    trace.changed.append(memory)
    trace.keep.append(tensor)
    trace.allowed = None if captured else id(tensor)


def _check_unchanged(arguments: list[Any]) -> None:
    """Raises TraceError where a tensor is used whose memory was to be changed in place."""
    trace = scope.current()
    for argument in arguments:
        if isinstance(argument, torch.Tensor) and _memory(argument) in trace.changed and id(argument) != trace.allowed:
            raise trace.refused or _refused("uses a tensor that was changed in place before under another name")
    trace.allowed = None


def _memory(tensor: Any) -> int:
    try:
        return tensor.untyped_storage()._cdata
    except (AttributeError, NotImplementedError, RuntimeError):  # no tensor, or one without memory
        return id(tensor)


def _refused(problem: str) -> TraceError:
    """The error, which is also kept: Python replaces the one that `x += y` raises by its own."""
    error = scope.fail(problem, _COPY)
    scope.current().refused = error if scope.current().allowed is None else None
    return error


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
