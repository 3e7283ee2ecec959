"""What the operators of `ops` compute, as plain functions: for calls outside of torch.compile and transforms, which need no operators.

Registering operators takes a while, so that this module imports nothing that does.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.backends import allocation
from attn_mlir.backends.program import DTYPES
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime.orders import REPEATED, input_order, output_order
from attn_mlir.runtime.task import Task

_ARGUMENT = re.compile(r"%[\w$.-]+: (?:tensor<((?:[?\d]+x)*)(\w+)>|\w+)")


def compute_forward(task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor]) -> list[Tensor]:
    """o for each weight, the row outputs and, where the task names something, what the backward needs besides."""
    program, (q, k, v) = task.program, inputs
    arguments = task.arguments(inputs, captures)
    sizes = program.sizes(q, k, v)
    if not task.wrt:  # derivatives check this themselves
        _check_types(program.text, ("q", "k", "v", *program.names), arguments)
    program.check(arguments[3:], sizes, q.device)
    if task.wrt:
        results = program.derivative(q.device.type, "fwd", task.wrt).run(arguments, output_order(task.layout))
    elif program.is_empty(sizes):
        results = [torch.zeros_like(result) for result in empty_forward(task, inputs, captures)]
    else:
        return program.kernel(q.device.type).run(q, k, v, arguments[3:], output_order(task.layout))
    if sizes["Skv"] == 0:
        program.fill_empty(results[program.weights : program.made])
    return results


def compute_again(task: Task, inputs: Sequence[Tensor], turned: bool) -> list[Tensor] | None:
    """What `compute_forward` gives where it ran on the same memory before, and nothing is left to check; else None.

    The task captures no tensors. With `turned`, q, k, v and o are [B, S, H, D].
    """
    if task.program.nonzero:
        return None
    repeat = getattr(task.program.derivative(inputs[0].device.type, "fwd", task.wrt), "again", None)
    if repeat is None or task.layout not in REPEATED or (task.layout == "bshd" and not turned):
        return None
    return repeat(task.arguments(inputs, ()), task.layout)


def compute_backward(
    task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor], results: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """The gradients of what the task names; `results` are those of the forward pass, `grads` those of o and the row outputs."""
    made = task.run("bwd", task.arguments(inputs, captures, *results, *grads), input_order(task.layout))
    return [as_dtype_of(gradient, like) for gradient, like in zip(made, task.named([*inputs, *captures]), strict=True)]


def empty_forward(task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor]) -> list[Tensor]:
    """Uninitialised results of `compute_forward`; those shaped like o have the memory order that the layout gives o."""
    program, (q, k, v) = task.program, inputs
    arguments = task.arguments(inputs, captures)
    if task.wrt:
        results = program.derivative(q.device.type, "fwd", task.wrt).results(arguments)
    else:
        results = program.results(q, k, v, arguments[3:])
    orders, follow = ("bhsd", output_order(task.layout)), program.ordered(len(results))
    return [empty([result], q.device, orders[number in follow])[0] for number, result in enumerate(results)]


def keep(ctx: Any, task: Task, tensors: Sequence[Tensor], results: Sequence[Tensor]) -> None:
    """Saves in the context of a forward pass what `gradients_of` takes: `tensors` are inputs and captures."""
    ctx.task = task
    ctx.save_for_backward(*tensors, *task.program.kept(results))
    ctx.mark_non_differentiable(*results[task.program.made :])
    ctx.set_materialize_grads(False)


def gradients_of(
    task: Task, saved: Sequence[Tensor], grads: Sequence[Tensor | None], backward: Callable[..., Sequence[Tensor]]
) -> list[Tensor | None]:
    """The gradients of inputs and captures by those of the results; `backward` is `compute_backward`, or stands for it.

    `saved` are inputs, captures and, where the backward reads them, results of the forward pass.
    """
    inputs, captures, results = saved[:3], saved[3 : 3 + task.captures], saved[3 + task.captures :]
    if not task.wrt:
        raise UnsupportedError("this result was computed without the values that a gradient needs: name what needs one in `wrt`")
    check_row_gradients(task, grads[: task.program.made])
    results, given = results_and_gradients(task, inputs, captures, results, grads[: task.program.made])
    return task.spread(backward(task, inputs, captures, results, given))


def check_row_gradients(task: Task, grads: Sequence[Tensor | None]) -> None:
    """Refuses gradients of row outputs where there is no rule for them."""
    if task.program.is_written and any(grad is not None for grad in grads[task.program.weights :]):
        raise UnsupportedError("the row outputs have no gradient where `backward` is written: leave it out, and all gradients are derived")


def results_and_gradients(
    task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor], kept: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> tuple[Sequence[Tensor], list[Tensor]]:
    """What a backward takes besides inputs and captures: results of the forward pass and their gradients, None made zeros without memory.

    Where only what the caller does not get was `kept` (`Program.kept`), the backward reads none of the others: gradients stand for them.
    """
    program, (q, k, v) = task.program, inputs
    if program.reads_results:
        return kept, [or_zeros(grad, result) for grad, result in zip(grads, kept, strict=False)]
    pairs = zip(grads, program.results(q, k, v, task.arguments((), captures)), strict=True)
    given = [q.new_zeros((), dtype=dtype).expand(shape) if grad is None else grad for grad, (shape, dtype) in pairs]
    return [*given, *kept], given


def empty_gradients(task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor]) -> list[Tensor]:
    """Empty gradients of what the task names, in the memory order that the layout gives q, k and v or dense (`Program.follows_layout`)."""
    order = input_order(task.layout)
    likes = zip(task.places, task.named([*inputs, *captures]), strict=True)
    return [empty([(t.shape, t.dtype)], t.device, order if task.program.follows_layout(place) else "bhsd")[0] for place, t in likes]


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


@functools.lru_cache(maxsize=512)
def _types(text: str) -> tuple[tuple[int, str] | None, ...]:
    """Rank and element of each argument of the program with this text; None for numbers."""
    signature = text[text.index("@attention(") : text.index(") ->")]
    found = _ARGUMENT.finditer(signature)
    return tuple((match[1].count("x"), match[2]) if match[2] else None for match in found)


def _check_types(text: str, names: Sequence[str], values: Sequence[Any]) -> None:
    """Checks that tensors have the dtypes and ranks of the program with this text. Raises ArgumentError.

    A graph may run on others than it was made for, as packages of AOTInductor do unasked.
    """
    for name, value, type_ in zip(names, values, _types(text), strict=True):
        if type_ is None:
            continue
        rank, element = type_
        if value.dtype is not DTYPES[element] and (element, value.dtype) != ("i8", torch.uint8):  # unsigned bytes arrive as i8
            raise ArgumentError(f"`{name}` has dtype {value.dtype}, but this graph was made for {DTYPES[element]}: make it again")
        if value.dim() != rank:
            raise ArgumentError(f"`{name}` has {value.dim()} dimensions, but this graph was made for {rank}: make it again")
