"""How `torch.vmap` runs an operator, or a whole attention: once for each element of the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter


def loop_over_batch(operator: Callable[..., list[torch.Tensor]]) -> Callable[..., tuple[list[torch.Tensor], list[int]]]:
    """The vmap rule of an operator that takes tensors and lists of them and returns a list of tensors."""

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[list[torch.Tensor], list[int]]:
        runs = [
            operator(*(_at(argument, dims, i) for argument, dims in zip(arguments, in_dims, strict=True)))
            for i in range(max(1, info.batch_size))
        ]
        stacked = [torch.stack(results)[: info.batch_size] for results in zip(*runs, strict=True)]
        return stacked, [0] * len(stacked)

    return rule


def _at(argument: Any, dims: Any, i: int) -> Any:
    """Element i of the batch of an argument, or of each tensor of a list; `dims` tells where their batch is, None: nowhere.

    An empty batch has an element of zeros, from which the shapes of results follow.
    """
    if isinstance(argument, (list, tuple)):
        return [
            _at(item, dim, i)
            for item, dim in zip(argument, dims if isinstance(dims, (list, tuple)) else [dims] * len(argument), strict=True)
        ]
    if not isinstance(argument, torch.Tensor) or dims is None:
        return argument
    return argument.select(dims, i) if argument.shape[dims] else argument.sum(dims, dtype=argument.dtype)


def has_batch(values: Sequence[Any]) -> bool:
    """Whether the innermost transform is `torch.vmap`, and some value has a dimension that one hides."""
    inner = retrieve_current_functorch_interpreter() if _functorch.maybe_current_level() is not None else None
    if inner is None or inner.key() != _functorch.TransformType.Vmap:
        return False
    return any(isinstance(value, Tensor) and _functorch.is_batchedtensor(value) for value in values)


def for_each(run: Callable[..., list[Tensor]], values: Sequence[Any]) -> list[Tensor]:
    """`run(*values)` for each element of the batch that `torch.vmap` hides, with whatever transforms are outside of it."""
    return list(BatchLoop.apply(run, *values))  # type: ignore[no-untyped-call]


class BatchLoop(torch.autograd.Function):
    """Calls its first argument; under `torch.vmap`, for which alone it is meant, once for each element of the batch."""

    @staticmethod
    def forward(run: Callable[..., list[Tensor]], *values: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(run(*values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], run: Callable[..., list[Tensor]], *values: Any) -> tuple[Any, ...]:  # type: ignore[override]
        made, dims = loop_over_batch(run)(info, in_dims[1:], *values)
        return tuple(made), tuple(dims)
