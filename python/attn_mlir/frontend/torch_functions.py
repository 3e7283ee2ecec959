"""Torch's functions on traced values, and captured torch tensors, while a user's function is being traced."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attn_mlir.frontend import arrays, in_place, methods, randomness, recording, scope, tape, tensors, vectors
from attn_mlir.frontend.links import LINKS
from attn_mlir.frontend.values import Value

_UNKNOWN = (tensors.CapturedTensor, vectors.Vector)
_TRACED = (Value, *_UNKNOWN)
_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]


class TracingMode(TorchFunctionMode):
    """Intercepts every torch function while a user's function runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the torch function `func`, traced where an argument is."""
    name = getattr(func, "__name__", str(func))
    arguments = list(_flat((*args, *kwargs.values())))
    traced = any(isinstance(argument, _TRACED) for argument in arguments)
    if randomness.draws(name, args, kwargs):
        raise scope.fail(*randomness.of_torch(name))
    in_place.check(name, args, kwargs, arguments)
    if scope.current().arrays:
        arrays.check(func, name, args)
    if args and isinstance(args[0], torch.Tensor) and id(args[0]) not in scope.current().fresh:
        special = _captured(func, name, args, kwargs, traced)
        if special is not None:
            return special
    if not traced:
        return _real(func, name, args, kwargs, arguments)
    known = _all_known(arguments) and not any(isinstance(argument, _UNKNOWN) for argument in arguments)
    if known and _is_whole(name, args, arguments):
        return _real(func, name, args, kwargs, arguments)
    if name == "__getitem__":
        return _traced_tensor(args[0])[args[1]]
    if any(vectors.is_array(argument) for argument in (*args, *kwargs.values())):
        return vectors.call(name, *args, **kwargs)
    if known and methods.FUNCTIONS.get(name) is None:
        return _real(func, name, args, kwargs, arguments)
    if "dropout" in name:  # one that is off
        return args[0]
    if func == torch.Tensor.where:
        return methods.METHODS["where"](*args, **kwargs)
    return methods.call(name, "torch", *args, **kwargs)


def is_traced_call(args: tuple[Any, ...]) -> bool:
    """Whether a function of `args` differs from position to position, or is one of numbers alone: not of captured tensors."""
    arguments = list(_flat(args))
    if not any(isinstance(argument, _TRACED) for argument in arguments):
        return False
    known = _all_known(arguments) and not any(isinstance(argument, _UNKNOWN) for argument in arguments)
    return not (known and _is_whole("", args, arguments))


def real(func: Any, name: str, args: tuple[Any, ...]) -> Any:
    """A function of captured tensors and known numbers that is none of torch's: see `_real`."""
    return _real(func, name, args, {}, list(_flat(args)))


def _is_whole(name: str, args: tuple[Any, ...], arguments: list[Any]) -> bool:
    """Whether a function of numbers that are known computes with whole tensors, as `table * gain` and `table[:size]` do."""
    if name == "__getitem__":
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(item is None or item is Ellipsis or isinstance(item, (slice, list)) for item in index)
    if args and isinstance(args[0], (tuple, list)):
        return True
    return any(isinstance(argument, torch.Tensor) and argument.dim() > 0 for argument in arguments)


def _captured(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], traced: bool) -> Any:
    """What is special about a captured tensor as first argument; None where nothing is."""
    if func == _SHAPE:
        return tensors.capture(args[0]).shape
    if name == "size":
        return tensors.capture(args[0]).size(*args[1:], **kwargs)
    if name in ("numel", "nelement"):
        return tensors.capture(args[0]).numel()
    if name == "__len__" and args[0].dim() > 0:
        return len(tensors.capture(args[0]))
    if name == "__getitem__" and traced and not (_is_whole(name, args, []) and _all_known(list(_flat(args)))):
        return tensors.capture(args[0])[args[1]]
    return None


def _real(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: list[Any]) -> Any:
    """A torch function of real tensors and known numbers: computed now, and at every call where that depends on what is captured."""
    trace = scope.current()
    args, kwargs = _followed(args), {key: _followed(item) for key, item in kwargs.items()}
    inputs = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    constant = not any(isinstance(item, Value) for item in _flat((*args, *kwargs.values()))) and all(
        id(tensor) in trace.fresh for tensor in inputs
    )
    with in_place.Unchanged(inputs):
        result = func(*_plain(args), **{key: _plain(item) for key, item in kwargs.items()})
    if not constant:
        result = arrays.known(trace, func, inputs, result)
        return recording.recorded(trace, func, name, args, kwargs, inputs, result)
    if isinstance(result, torch.Tensor) and not name.startswith(("empty", "new_empty")) and not any(result is tensor for tensor in inputs):
        if not (inputs == [] and id(result) in trace.tensors):
            trace.fresh[id(result)] = result
    return result


def _traced_tensor(x: Any) -> Any:
    return tensors.capture(x) if isinstance(x, torch.Tensor) else x


def _all_known(arguments: list[Any]) -> bool:
    return all(argument._node.known is not None for argument in arguments if isinstance(argument, Value))


def _followed(x: Any) -> Any:
    """`x` with numbers that a step cannot look up at a later call made constants of the trace."""
    if isinstance(x, Value):
        try:
            tape.scalar_source(x._node)
        except LookupError:
            return scope.current().concrete(x._node)
        return x
    if type(x) in (tuple, list):
        return type(x)([_followed(item) for item in x])
    if isinstance(x, slice):
        return slice(_followed(x.start), _followed(x.stop), _followed(x.step))
    return x


def _plain(x: Any) -> Any:
    """`x` with the numbers of this call."""
    if isinstance(x, Value):
        return x._node.known
    if type(x) in (tuple, list):
        return type(x)(_plain(item) for item in x)
    if isinstance(x, slice):
        return slice(_plain(x.start), _plain(x.stop), _plain(x.step))
    return x


def _flat(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (tuple, list)) and not isinstance(item, torch.Size):
            yield from _flat(item)
        elif isinstance(item, slice):
            yield from (item.start, item.stop, item.step)
        else:
            yield item


LINKS.torch, LINKS.attribute, LINKS.call = call, methods.attribute, methods.call
LINKS.lift, LINKS.capture = tensors.lift, tensors.capture
LINKS.vector, LINKS.sliced, LINKS.is_array = vectors.vector, vectors.sliced, vectors.is_array
