"""How `torch.vmap` runs an operator: once for each element of the batch."""

from collections.abc import Callable
from typing import Any

import torch


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
