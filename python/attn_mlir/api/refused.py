"""Results of a forward pass whose backward pass cannot be made: the reason is told when a gradient is asked for."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class _Refused(torch.autograd.Function):
    """Gives finished results, and raises an error in place of a backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(error: Exception, results: Sequence[Tensor], *inputs: Any) -> tuple[Tensor, ...]:
        return tuple(results)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.error = inputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise ctx.error


def without_backward(results: Sequence[Tensor], inputs: Sequence[Any], error: Exception) -> list[Tensor]:
    """`results`, computed without gradients, as depending on `inputs`: their gradient raises `error`."""
    return list(_Refused.apply(error, results, *inputs))  # type: ignore[no-untyped-call]
