"""Attention on plain tensors outside of torch.compile and transforms: one autograd function around what the operators of `ops` compute.

Operators of torch cost more on the host at every call, and registering them takes longer than finding a compiled program on disk.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attn_mlir.backends import allocation
from attn_mlir.errors import AttnError
from attn_mlir.runtime import compute
from attn_mlir.runtime.orders import all_heads_first, all_in_order, input_order, output_order
from attn_mlir.runtime.task import Task


def whole(x: Tensor) -> Tensor:
    """The same memory as a tensor that is no view: autograd lets nobody change one of several views in place."""
    if not x._is_view():
        return x
    return allocation.empty((0,), dtype=x.dtype, device=x.device).set_(x.untyped_storage(), x.storage_offset(), x.shape, x.stride())


class EagerForward(torch.autograd.Function):
    """`ops.forward`, whose gradient is `ops.backward`; with `turned`, on tensors in the order of the layout.

    Turning them here spares autograd four views, and the same in the backward.
    """

    @staticmethod
    def forward(ctx: Any, task: Task, turned: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        program, inputs, captures = task.program, tensors[:3], tensors[3:]
        results = compute.compute_again(task, inputs, turned) if not captures else None
        if results is None:
            results = compute.compute_forward(task, all_heads_first(inputs, input_order(task.layout), 3) if turned else inputs, captures)
            if turned:
                results = [whole(x) for x in all_in_order(results, output_order(task.layout), program.weights)]
        ctx.turned = turned
        compute.keep(ctx, task, tensors, results)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, None, *gradients(ctx.task, ctx.turned, ctx.saved_tensors, grads))


def gradients(task: Task, turned: bool, saved: Sequence[Tensor], grads: tuple[Tensor | None, ...]) -> Sequence[Tensor | None]:
    """Those of inputs and captures, by those of results; `saved` are inputs, captures and results, `turned`: see `EagerForward`."""
    backward: Any = compute.compute_backward
    if forward_ad._current_level >= 0:
        backward = importlib.import_module("attn_mlir.runtime.transforms").backward
    elif torch.is_grad_enabled():
        backward = importlib.import_module("attn_mlir.runtime.ops").call_backward
    if turned:
        first, order, given = 3 + task.captures, input_order(task.layout), output_order(task.layout)
        kept = all_heads_first(saved[first:], given, task.program.kept_weights)
        saved = [*all_heads_first(saved[:3], order, 3), *saved[3:first], *kept]
        grads = tuple(all_heads_first(grads, given, task.program.weights))
    try:
        made = compute.gradients_of(task, saved, grads, backward)
    except (AttnError, RuntimeError):
        if any(grad is not None and " Batched" in str(torch._C._dispatch_keys(grad)).replace("(", " ") for grad in grads):
            importlib.import_module("attn_mlir.runtime.ops").old_vmap()
        raise
    return all_in_order(made, input_order(task.layout), 3) if turned else made
