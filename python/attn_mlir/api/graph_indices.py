"""Indices without dimensions inside torch.compile: `t[h]` reads an element, where torch would ask h for its number.

Positions that the user's functions get have no dimensions, there as outside. A graph has no numbers for them, so while dynamo traces
the functions a mode of torch's reads tensors at such indices as at others.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch.overrides import TorchFunctionMode, _get_current_function_mode


def read_at(x: Tensor, index: Any) -> Tensor:
    """`x[index]`, where integers without dimensions among the indices are not asked for their numbers."""
    indices = index if isinstance(index, tuple) else (index,)
    if not any(_is_scalar(i) for i in indices):
        return x[index]
    return torch.ops.aten.index(x[tuple(slice(None) if isinstance(i, Tensor) else i for i in indices)], list(_of_tensors(indices, x.dim())))


def _is_scalar(index: Any) -> bool:
    return isinstance(index, Tensor) and index.dim() == 0 and index.dtype != torch.bool


def _of_tensors(indices: tuple[Any, ...], rank: int) -> Iterator[Tensor | None]:
    """For each dimension that the other indices leave, the tensor that it is read at."""
    taken = sum(i.dim() if isinstance(i, Tensor) and i.dtype == torch.bool else i is not None and i is not Ellipsis for i in indices)
    for i in indices:
        if isinstance(i, Tensor):
            yield i
        elif i is Ellipsis:
            yield from [None] * (rank - taken)
        elif i is None or isinstance(i, slice):
            yield None


class _ScalarIndices(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return read_at(*args) if func is Tensor.__getitem__ else func(*args, **(kwargs or {}))


@torch._dynamo.assume_constant_result
def begin_functions() -> None:
    """From here on dynamo traces the user's functions, until `end_functions`, or until it gives the graph up."""
    _ScalarIndices().__enter__()
    InstructionTranslator.current_tx().output.add_cleanup_hook(_end)


@torch._dynamo.assume_constant_result
def end_functions() -> None:
    """The functions are traced."""
    _end()


def _end() -> None:
    """Ends what `begin_functions` began; where that has ended already, it does nothing."""
    mode = _get_current_function_mode()
    if isinstance(mode, _ScalarIndices):
        mode.__exit__(None, None, None)
