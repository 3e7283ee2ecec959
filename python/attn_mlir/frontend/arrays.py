"""Methods of captured numpy arrays that torch has by the same name and with another meaning: refused.

In a function an array is a tensor that shares its memory. What is computed of it by methods and operators is taken for an array, too;
what functions of torch give is a tensor.
"""

from typing import Any

import torch

from attn_mlir.frontend import scope
from attn_mlir.frontend.scope import Trace

_OTHER = {
    "std": "divides by n in numpy and by n - 1 in torch",
    "var": "divides by n in numpy and by n - 1 in torch",
    "repeat": "repeats each element in numpy and the whole in torch",
    "nonzero": "gives a tuple in numpy and a matrix in torch",
    "sort": "sorts in place in numpy and makes a new tensor in torch",
}
_METHODS = {getattr(torch.Tensor, name): problem for name, problem in _OTHER.items()}


def check(func: Any, name: str, args: tuple[Any, ...]) -> None:
    """Raises TraceError for a method of an array that would silently be torch's."""
    problem = _METHODS.get(func)
    if problem is None or not args or id(args[0]) not in scope.current().arrays:
        return
    raise scope.fail(
        f".{name}() of a numpy array {problem}", f"compute it before the call, or write torch.{name}(...) of it where torch's is meant"
    )


def known(trace: Trace, func: Any, inputs: list[torch.Tensor], result: Any) -> Any:
    """`result` of a torch function of `inputs`: noted as an array where it was made of arrays alone and not by a function of torch.

    What a function of torch gives back as it is, as `torch.as_tensor` does, becomes a tensor of its own.
    """
    if not isinstance(result, torch.Tensor) or not any(id(tensor) in trace.arrays for tensor in inputs):
        return result
    name = getattr(func, "__name__", "")
    method = name == "__get__" or getattr(torch.Tensor, name, None) == func
    if not method:
        trace.arrays.discard(id(result))
    elif all(id(tensor) in trace.arrays for tensor in inputs):
        trace.arrays.add(id(result))
        trace.keep.append(result)
    return result
