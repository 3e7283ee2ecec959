"""Attention on plain tensors outside of torch.compile and transforms: one autograd function around what the operators of `ops` compute.

Operators of torch cost more on the host at every call, and registering them takes longer than finding a compiled program on disk.
"""

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attn_mlir.errors import AttnError
from attn_mlir.runtime import compute, programs
from attn_mlir.runtime.orders import all_heads_first, all_in_order, input_order, output_order

_PLAIN = (Tensor, torch.nn.Parameter)
_modes = torch._C._len_torch_dispatch_stack


def applies(values: Sequence[Any]) -> bool:
    """Whether the function may stand for the operator: nobody looks at operators, and no value is of a class of its own."""
    if _modes():
        return False
    for value in values:
        if type(value) not in _PLAIN and isinstance(value, Tensor):
            return False
    return True


def forward(
    q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], floats: list[float], ints: list[int], program: str, wrt: str, layout: str,
    given: bool = False,
) -> list[Tensor]:  # fmt: skip
    """What `ops.forward` gives; `wrt` names something. `given`: q, k, v and o have the order of `layout`, and not only their memory."""
    turned = given and layout != "bhsd"
    return list(Forward.apply((floats, ints, program, wrt, layout), turned, q, k, v, *captures))  # type: ignore[no-untyped-call]


class Forward(torch.autograd.Function):
    """`ops.forward`, whose gradient is `ops.backward`; with `turned`, on tensors in the order of the layout.

    Turning them here spares autograd four views, and the same in the backward.
    """

    @staticmethod
    def forward(ctx: Any, numbers: tuple[Any, ...], turned: bool, q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> tuple[Tensor, ...]:
        results = compute.compute_again(q, k, v, numbers, turned) if not captures else None
        if results is None:
            layout = numbers[4] if turned else "bhsd"
            first, second, third = all_heads_first([q, k, v], input_order(layout), 3)
            results = compute.compute_forward(first, second, third, list(captures), *numbers)
            results = all_in_order(results, output_order(layout), programs.find(numbers[2]).weights)
        ctx.numbers, ctx.captures, ctx.turned = numbers, len(captures), turned
        found = programs.find(numbers[2])
        ctx.save_for_backward(q, k, v, *captures, *found.kept(results))
        ctx.mark_non_differentiable(*results[found.made :])
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if forward_ad._current_level >= 0:
            gradients = importlib.import_module("attn_mlir.runtime.transforms").backward
        else:
            gradients = importlib.import_module("attn_mlir.runtime.ops").backward if torch.is_grad_enabled() else compute.compute_backward
        saved = list(ctx.saved_tensors)
        if ctx.turned:
            first, order, given = 3 + ctx.captures, input_order(ctx.numbers[4]), output_order(ctx.numbers[4])
            weights = programs.find(ctx.numbers[2]).weights
            saved = [*all_heads_first(saved[:3], order, 3), *saved[3:first], *all_heads_first(saved[first:], given, weights)]
            grads = tuple(all_heads_first(grads, given, weights))
        try:
            made = compute.forward_backward(ctx, saved, grads, gradients)
        except (AttnError, RuntimeError):
            if any(grad is not None and " Batched" in str(torch._C._dispatch_keys(grad)).replace("(", " ") for grad in grads):
                importlib.import_module("attn_mlir.runtime.ops").old_vmap()
            raise
        return (None, None, *(all_in_order(made, input_order(ctx.numbers[4]), 3) if ctx.turned else made))
