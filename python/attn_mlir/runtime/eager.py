"""Attention on plain tensors outside of torch.compile and transforms: one autograd function around what the operators of `ops` compute.

Operators of torch cost more on the host at every call, and registering them takes longer than finding a compiled program on disk.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.runtime import compute, programs

_PLAIN = (Tensor, torch.nn.Parameter)


def applies(values: Sequence[Any]) -> bool:
    """Whether the function may stand for the operator: nobody looks at operators, and no value is of a class of its own."""
    return not torch._C._len_torch_dispatch_stack() and all(type(value) in _PLAIN for value in values if isinstance(value, Tensor))


def forward(
    q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], floats: list[float], ints: list[int], program: str, wrt: str, layout: str
) -> list[Tensor]:
    """What `ops.forward` gives; `wrt` names something."""
    return list(Forward.apply((floats, ints, program, wrt, layout), q, k, v, *captures))  # type: ignore[no-untyped-call]


class Forward(torch.autograd.Function):
    """`ops.forward`, whose gradient is `ops.backward`."""

    @staticmethod
    def forward(ctx: Any, numbers: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> tuple[Tensor, ...]:
        results = compute.compute_forward(q, k, v, list(captures), *numbers)
        ctx.numbers, ctx.captures = numbers, len(captures)
        ctx.save_for_backward(q, k, v, *captures, *results)
        ctx.mark_non_differentiable(*results[1 + len(programs.find(numbers[2]).outputs) :])
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        gradients = importlib.import_module("attn_mlir.runtime.ops").backward if torch.is_grad_enabled() else compute.compute_backward
        return (None, *compute.forward_backward(ctx, grads, gradients))
