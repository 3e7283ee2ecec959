"""Torch's functions on traced values, and captured torch tensors, while a user's function is being traced."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from attn_mlir.frontend import methods, scope, tensors
from attn_mlir.frontend.values import Value

_SHAPE = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
_CONCRETE = frozenset(
    {"item", "tolist", "__bool__", "__int__", "__float__", "__index__", "__contains__", "equal", "allclose", "numpy", "__array__"}
)
_RANDOM = ("rand", "normal", "bernoulli", "multinomial", "poisson", "exponential", "empty", "dropout", "uniform")


class TracingMode(TorchFunctionMode):
    """Intercepts every torch function while a user's function runs."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, kwargs or {})


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Calls the torch function `func`, traced where an argument is."""
    name = getattr(func, "__name__", str(func))
    arguments = list(_flat((*args, *kwargs.values())))
    traced = any(tensors.is_traced(argument) for argument in arguments)
    if name in ("__setitem__", "copy_", "fill_", "put_", "index_put_") or _in_place(name, args):
        raise scope.fail("changes a tensor in place", "captured tensors are read only; compute a new value instead, e.g. with torch.where")
    if args and isinstance(args[0], torch.Tensor) and id(args[0]) not in scope.current().fresh:
        special = _captured(func, name, args, kwargs, traced)
        if special is not None:
            return special
    if not traced:
        return _real(func, name, args, kwargs, arguments)
    if name == "__getitem__":
        return _traced_tensor(args[0])[args[1]]
    if _all_known(arguments) and not any(isinstance(argument, tensors.CapturedTensor) for argument in arguments):
        if methods.FUNCTIONS.get(name) is None:
            args, kwargs = _concrete(args), {key: _concrete(item) for key, item in kwargs.items()}
            return _real(func, name, args, kwargs, list(_flat((*args, *kwargs.values()))))
    if func == torch.Tensor.where:
        return methods.METHODS["where"](*args, **kwargs)
    return methods.call(name, "torch", *args, **kwargs)


def _captured(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], traced: bool) -> Any:
    """What is special about a captured tensor as first argument; None where nothing is."""
    if func == _SHAPE:
        return tensors.capture(args[0]).shape
    if name == "size":
        return tensors.capture(args[0]).size(*args[1:], **kwargs)
    if name == "__len__" and args[0].dim() > 0:
        return len(tensors.capture(args[0]))
    if name == "__getitem__" and traced:
        return tensors.capture(args[0])[args[1]]
    return None


def _real(func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], arguments: list[Any]) -> Any:
    """A torch function of real tensors and numbers: computed now. Its result is part of the trace only where it is constant."""
    trace = scope.current()
    inputs = [argument for argument in arguments if isinstance(argument, torch.Tensor)]
    constant = all(id(tensor) in trace.fresh for tensor in inputs)
    result = func(*args, **kwargs)
    if name in _CONCRETE and not constant:
        trace.reusable = False
    if isinstance(result, torch.Tensor) and constant and not name.startswith(_RANDOM) and not any(result is tensor for tensor in inputs):
        if not (inputs == [] and id(result) in trace.tensors):
            trace.fresh[id(result)] = result
    return result


def _traced_tensor(x: Any) -> Any:
    return tensors.capture(x) if isinstance(x, torch.Tensor) else x


def _in_place(name: str, args: tuple[Any, ...]) -> bool:
    if name.startswith("__i") and name[3:-2] in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
        "div",
    ):
        return isinstance(args[0], torch.Tensor) and id(args[0]) not in scope.current().fresh
    return (
        name.endswith("_")
        and not name.startswith("_")
        and isinstance(args[0] if args else None, torch.Tensor)
        and name not in ("requires_grad_",)
    )


def _all_known(arguments: list[Any]) -> bool:
    return all(argument._node.known is not None for argument in arguments if isinstance(argument, Value))


def _concrete(x: Any) -> Any:
    if isinstance(x, Value):
        return scope.current().concrete(x._node)
    if isinstance(x, (tuple, list)):
        return type(x)(_concrete(item) for item in x)
    return x


def _flat(items: Any) -> Iterator[Any]:
    for item in items:
        if isinstance(item, (tuple, list)) and not isinstance(item, torch.Size):
            yield from _flat(item)
        elif isinstance(item, slice):
            yield from (item.start, item.stop, item.step)
        else:
            yield item
