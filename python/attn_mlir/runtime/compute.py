"""What the operators of `ops` compute, as plain functions: for calls outside of torch.compile and transforms, which need no operators.

Registering operators takes a while, so that this module imports nothing that does.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.backends import allocation
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.runtime import programs
from attn_mlir.runtime.argument_types import check_types
from attn_mlir.runtime.orders import REPEATED, input_order, output_order


def compute_forward(
    q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], floats: list[float], ints: list[int], program: str, wrt: str, layout: str
) -> list[Tensor]:
    """o for each weight, the row outputs and, where `wrt` names something, what the backward needs besides."""
    found = programs.find(program)
    values = found.kinds.unpack((captures, floats, ints))
    sizes = found.sizes(q, k, v)
    if not wrt:  # derivatives check this themselves
        check_types(found.text, ("q", "k", "v", *found.names), (q, k, v, *values))
    found.check(values, sizes, q.device)
    if wrt:
        results = found.derivative(q.device.type, "fwd", wrt).run([q, k, v, *values], output_order(layout))
    elif found.is_empty(sizes):
        results = [torch.zeros_like(result) for result in empty_forward(q, k, v, captures, floats, ints, program, wrt, layout)]
    else:
        return found.kernel(q.device.type).run(q, k, v, values, output_order(layout))
    if sizes["Skv"] == 0:
        found.fill_empty(results[found.weights : found.made])
    return results


def compute_again(q: Tensor, k: Tensor, v: Tensor, numbers: tuple[Any, ...], turned: bool) -> list[Tensor] | None:
    """What `compute_forward` gives where it ran on the same memory before, and nothing is left to check; else None.

    `numbers` are its arguments from the floats on. With `turned`, q, k, v and o are [B, S, H, D].
    """
    floats, ints, program, wrt, layout = numbers
    found = programs.find(program)
    if found.nonzero:
        return None
    repeat = getattr(found.derivative(q.device.type, "fwd", wrt), "again", None)
    if repeat is None or layout not in REPEATED or (layout == "bshd" and not turned):
        return None
    return repeat([q, k, v, *found.kinds.unpack(((), floats, ints))], layout)


def compute_backward(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """The gradients of what `wrt` names; `results` are those of `forward`, `grads` those of o and the row outputs."""
    derivative, arguments = derivative_call("bwd", inputs, captures, floats, ints, [*results, *grads], program, wrt)
    made = derivative.run(arguments, input_order(layout))
    return [as_dtype_of(gradient, like) for gradient, like in zip(made, named_tensors(inputs, captures, program, wrt), strict=True)]


def empty_forward(
    q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], floats: list[float], ints: list[int], program: str, wrt: str, layout: str
) -> list[Tensor]:
    """Uninitialised results of `compute_forward`; those shaped like o have the memory order that `layout` gives o."""
    found = programs.find(program)
    if wrt:
        derivative = found.derivative(q.device.type, "fwd", wrt)
        results = derivative.results([q, k, v, *found.kinds.unpack((captures, floats, ints))])
    else:
        results = found.results(q, k, v, found.kinds.unpack((captures, floats, ints)))
    return empty_results(results, q.device, layout, found.ordered(len(results)))


def forward_backward(ctx: Any, saved: Sequence[Tensor], grads: Sequence[Tensor | None], gradients: Any) -> list[Tensor | None]:
    """The gradients of q, k, v and the captures by those of the results; `gradients` is `backward`, or what computes it.

    `saved` are inputs, captures and, where the backward reads them, results of the forward pass.
    """
    floats, ints, program, wrt, layout = ctx.numbers
    inputs, captures, results = list(saved[:3]), list(saved[3 : 3 + ctx.captures]), list(saved[3 + ctx.captures :])
    found = programs.find(program)
    count = found.made
    if not wrt:
        raise UnsupportedError("this result was computed without the values that a gradient needs: name what needs one in `wrt`")
    check_row_gradients(program, grads[found.weights : count])
    results, given = results_and_gradients(inputs, captures, (floats, ints, program), results, grads[:count])
    made = gradients(inputs, captures, floats, ints, results, given, program, wrt, layout)
    return spread(made, inputs, captures, program, wrt)


def results_and_gradients(
    inputs: Sequence[Tensor], captures: Sequence[Tensor], numbers: tuple[Any, ...], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Sequence[Tensor], list[Tensor]]:
    """What a backward takes besides inputs and captures: results of the forward pass and their gradients, None made zeros without memory.

    Where no results were `kept` (`Program.kept`) the backward reads none, and the gradients stand for them.
    """
    if kept:
        return kept, [or_zeros(grad, result) for grad, result in zip(grads, kept, strict=False)]
    floats, ints, program = numbers
    found, (q, k, v) = programs.find(program), inputs
    results = found.results(q, k, v, found.kinds.unpack((captures, floats, ints)))
    pairs = zip(grads, results, strict=True)
    given = [q.new_zeros((), dtype=dtype).expand(shape) if grad is None else grad for grad, (shape, dtype) in pairs]
    return given, given


def check_row_gradients(program: str, grads: Sequence[Tensor | None]) -> None:
    """Refuses gradients of row outputs where there is no rule for them."""
    if programs.find(program).is_written and any(grad is not None for grad in grads):
        raise UnsupportedError("the row outputs have no gradient where `backward` is written: leave it out, and all gradients are derived")


def derivative_call(
    function: str, inputs: Sequence[Tensor], captures: Sequence[Tensor], floats: Sequence[float], ints: Sequence[int],
    more: Sequence[Tensor], program: str, wrt: str,
) -> tuple[Any, list[Any]]:  # fmt: skip
    """The derivative and its arguments."""
    found = programs.find(program)
    try:
        derivative = found.derivative(inputs[0].device.type, function, wrt)
    except CompileError as error:
        if "no derivative" not in str(error):
            raise
        raise UnsupportedError(str(error)) from error
    return derivative, [*inputs, *found.kinds.unpack((captures, floats, ints)), *more]


def named_tensors(inputs: Sequence[Tensor], captures: Sequence[Tensor], program: str, wrt: str) -> list[Tensor]:
    """The tensors that `wrt` names, in the order of the arguments."""
    tensors = [*inputs, *captures]
    return [tensors[place] for place in programs.find(program).wanted(wrt)]


def spread(
    gradients: Sequence[Tensor], inputs: Sequence[Tensor], captures: Sequence[Tensor], program: str, wrt: str
) -> list[Tensor | None]:
    """Gradients of what `wrt` names in the places of all tensors: q, k, v and the captures."""
    every: list[Tensor | None] = [None] * (len(inputs) + len(captures))
    for place, gradient in zip(programs.find(program).wanted(wrt), gradients, strict=True):
        every[place] = gradient
    return every


def empty_gradients(inputs: Sequence[Tensor], captures: Sequence[Tensor], program: str, wrt: str, layout: str) -> list[Tensor]:
    """Empty gradients of what `wrt` names, in the memory order that `layout` gives q, k and v or dense (`Program.follows_layout`)."""
    found, order = programs.find(program), input_order(layout)
    likes = zip(found.wanted(wrt), named_tensors(inputs, captures, program, wrt), strict=True)
    return [empty([(t.shape, t.dtype)], t.device, order if found.follows_layout(place) else "bhsd")[0] for place, t in likes]


def empty(results: Sequence[tuple[Sequence[int], torch.dtype]], device: torch.device, order: str) -> list[Tensor]:
    """Uninitialised results; the memory of those of rank 4 has this order."""
    return [allocation.empty_heads(tuple(shape), dtype, order if len(shape) == 4 else "bhsd", device) for shape, dtype in results]


def empty_results(
    results: Sequence[tuple[Sequence[int], torch.dtype]], device: torch.device, layout: str, ordered: int = 1
) -> list[Tensor]:
    """Uninitialised results of a forward pass; the first `ordered` have the memory order that `layout` gives o."""
    return [*empty(results[:ordered], device, output_order(layout)), *empty(results[ordered:], device, "bhsd")]


def or_zeros(grad: Tensor | None, like: Tensor) -> Tensor:
    """The gradient; where there is none, zeros that take no memory."""
    return like.new_zeros(()).expand(like.shape) if grad is None else grad


def as_dtype_of(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient if gradient.dtype == like.dtype else gradient.to(like.dtype)
