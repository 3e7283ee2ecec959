"""Torch operators of an attention and its derivatives: `torch.ops.attn_mlir.forward`, `backward`, `backward2`, `tangent`.

They take the name of a traced program (see `programs`), and `wrt`, the arguments that need a derivative, joined by "+".
q, k and v are [B, H, S, D]; with `layout` "bshd" the memory of their results has that order. Further arguments of the
program come by kind: tensors, floats and ints. The gradients of a result that has none may be anything that expands.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.runtime import programs
from attn_mlir.runtime.vmap import loop_over_batch

__all__ = ["backward", "backward2", "forward", "tangent"]


def compute_forward(
    q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], floats: list[float], ints: list[int], program: str, wrt: str, layout: str
) -> list[Tensor]:
    """o, the row outputs and, where `wrt` names something, what the backward needs besides."""
    found = programs.find(program)
    values = found.join(captures, floats, ints)
    sizes = programs.sizes_of(q, k, v)
    found.check(values, sizes, q.device)
    if wrt:
        results = found.derivative(q.device.type, "fwd", wrt).run([q, k, v, *values], layout)
    elif 0 in (sizes["B"], sizes["Hq"], sizes["Sq"], sizes["Skv"]):
        results = [torch.zeros_like(result) for result in _fake_forward(q, k, v, captures, floats, ints, program, wrt, layout)]
    else:
        return found.kernel(q.device.type).run(q, k, v, values, layout)
    if sizes["Skv"] == 0:
        found.fill_empty(results[1 : 1 + len(found.outputs)])
    return results


forward = torch.library.custom_op("attn_mlir::forward", compute_forward, mutates_args=())


def compute_backward(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """The gradients of what `wrt` names; `results` are those of `forward`, `grads` those of o and the row outputs."""
    derivative, arguments = _call("bwd", inputs, captures, floats, ints, [*results, *grads], program, wrt)
    made = derivative.run(arguments, layout)
    return [_as(gradient, like) for gradient, like in zip(made, _wanted(inputs, captures, program, wrt), strict=True)]


backward = torch.library.custom_op("attn_mlir::backward", compute_backward, mutates_args=())


@torch.library.custom_op("attn_mlir::backward2", mutates_args=())
def backward2(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    grads2: list[Tensor], program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """The gradients of `backward` where its results have the gradients `grads2`: for what `wrt` names, then for `grads`."""
    derivative, arguments = _call("bwd2", inputs, captures, floats, ints, [*results, *grads, *grads2], program, wrt)
    made = derivative.run(arguments, layout)
    return [_as(gradient, like) for gradient, like in zip(made, [*_wanted(inputs, captures, program, wrt), *grads], strict=True)]


@torch.library.custom_op("attn_mlir::tangent", mutates_args=())
def tangent(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], tangents: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """o and its tangent, then the row outputs and theirs; `tangents` are those of what `wrt` names."""
    found = programs.find(program)
    found.check(found.join(captures, floats, ints), programs.sizes_of(*inputs), inputs[0].device)
    derivative, arguments = _call("jvp", inputs, captures, floats, ints, tangents, program, wrt)
    made = derivative.run(arguments, layout)
    if inputs[1].shape[2] == 0:
        found.fill_empty(made[2 : 2 + len(found.outputs)])
    return made


@forward.register_fake
def _fake_forward(
    q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], floats: list[float], ints: list[int], program: str, wrt: str, layout: str
) -> list[Tensor]:
    found = programs.find(program)
    if wrt:
        derivative = found.derivative(q.device.type, "fwd", wrt)
        return empty(derivative.results([q, k, v, *found.join(captures, floats, ints)]), q.device, layout)
    shape = (*q.shape[:3], v.shape[3])
    score = torch.float64 if q.dtype == torch.float64 else torch.float32
    return empty([(shape, q.dtype), *[(shape[:3], score)] * len(found.outputs)], q.device, layout)


@backward.register_fake
def _fake_backward(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    return _gradients(inputs, captures, program, wrt, layout)


@backward2.register_fake
def _fake_backward2(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    grads2: list[Tensor], program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    upstream = empty([(grad.shape, grad.dtype) for grad in grads], inputs[0].device, layout)
    return [*_gradients(inputs, captures, program, wrt, layout), *upstream]


@tangent.register_fake
def _fake_tangent(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], tangents: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    derivative, arguments = _call("jvp", inputs, captures, floats, ints, tangents, program, wrt)
    return empty(derivative.results(arguments), inputs[0].device, layout)


def _setup_forward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k, v, captures, floats, ints, program, wrt, layout = inputs
    ctx.save_for_backward(q, k, v, *captures, *output)
    ctx.numbers = (floats, ints, program, wrt, layout)
    ctx.captures = len(captures)
    ctx.mark_non_differentiable(*output[1 + len(programs.find(program).outputs) :])
    ctx.set_materialize_grads(False)


def _forward_backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    every = forward_backward(ctx, grads, backward)
    return (*every[:3], every[3:], *_of_numbers(*ctx.numbers[:2]), None, None, None)


def forward_backward(ctx: Any, grads: Sequence[Tensor | None], gradients: Any) -> list[Tensor | None]:
    """The gradients of q, k, v and the captures by those of the results; `gradients` is `backward`, or what computes it."""
    floats, ints, program, wrt, layout = ctx.numbers
    saved = list(ctx.saved_tensors)
    inputs, captures, results = saved[:3], saved[3 : 3 + ctx.captures], saved[3 + ctx.captures :]
    count = 1 + len(programs.find(program).outputs)
    if not wrt:
        raise UnsupportedError("this result was computed without the values that a gradient needs: name what needs one in `wrt`")
    check_row_gradients(program, grads[1:count])
    given = [or_zeros(grad, result) for grad, result in zip(grads[:count], results[:count], strict=True)]
    made = gradients(inputs, captures, floats, ints, results, given, program, wrt, layout)
    return spread(made, inputs, captures, program, wrt)


def check_row_gradients(program: str, grads: Sequence[Tensor | None]) -> None:
    """Refuses gradients of row outputs where there is no rule for them."""
    if programs.find(program).is_written and any(grad is not None for grad in grads):
        raise UnsupportedError("the row outputs have no gradient where `backward` is written: leave it out, and all gradients are derived")


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    qkv, captures, floats, ints, results, grads, program, wrt, layout = inputs
    ctx.save_for_backward(*qkv, *captures, *results, *grads)
    ctx.numbers = (floats, ints, program, wrt, layout)
    ctx.counts = (len(captures), len(results))
    ctx.set_materialize_grads(False)


def _backward_backward(ctx: Any, grads2: Sequence[Tensor | None]) -> tuple[Any, ...]:
    floats, ints, program, wrt, layout = ctx.numbers
    saved = list(ctx.saved_tensors)
    inputs, rest = saved[:3], saved[3:]
    captures, rest = rest[: ctx.counts[0]], rest[ctx.counts[0] :]
    results, grads = rest[: ctx.counts[1]], rest[ctx.counts[1] :]
    likes = _wanted(inputs, captures, program, wrt)
    given = [or_zeros(grad, like) for grad, like in zip(grads2, likes, strict=True)]
    made = backward2(inputs, captures, floats, ints, results, grads, given, program, wrt, layout)
    first = made[: len(likes)]
    every = spread(first, inputs, captures, program, wrt)
    return (every[:3], every[3:], *_of_numbers(floats, ints), [None] * len(results), made[len(likes) :], None, None, None)


def _of_numbers(floats: Sequence[float], ints: Sequence[int]) -> tuple[Any, Any]:
    """What stands for their gradients; torch takes an empty list for one of tensors."""
    return None if floats else [], None if ints else []


def no_third_derivative(ctx: Any, *grads: Any) -> NoReturn:
    """The gradient of `backward2`."""
    raise UnsupportedError("there are derivatives of attention up to the second: pass create_graph=False, or detach the second gradient")


def no_mixed_derivative(*_: Any) -> NoReturn:
    """The gradient of `tangent`."""
    raise UnsupportedError(
        "a forward-mode derivative of attention has no gradient: compute second derivatives with torch.autograd.grad(create_graph=True) "
        "or torch.func.jacrev(torch.func.jacrev(f)); where just the output needs a gradient, detach the tangent"
    )


forward.register_autograd(_forward_backward, setup_context=_setup_forward)
backward.register_autograd(_backward_backward, setup_context=_setup_backward)
backward2.register_autograd(no_third_derivative)
tangent.register_autograd(no_mixed_derivative)
for _operator in (forward, backward, backward2, tangent):
    _operator.register_vmap(loop_over_batch(_operator))


def _call(
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
    return derivative, [*inputs, *found.join(captures, floats, ints), *more]


def _wanted(inputs: Sequence[Tensor], captures: Sequence[Tensor], program: str, wrt: str) -> list[Tensor]:
    """The tensors that `wrt` names, in the order of the arguments."""
    found = programs.find(program)
    tensors = dict(zip(found.tensor_positions(), [*inputs, *captures], strict=True))
    return [tensors[position] for position in sorted(found.position(name) for name in wrt.split("+"))]


def spread(
    gradients: Sequence[Tensor], inputs: Sequence[Tensor], captures: Sequence[Tensor], program: str, wrt: str
) -> list[Tensor | None]:
    """Gradients of what `wrt` names in the places of all tensors: q, k, v and the captures."""
    found = programs.find(program)
    wanted = sorted(found.position(name) for name in wrt.split("+"))
    by_position = dict(zip(wanted, gradients, strict=True))
    return [by_position.get(position) for position in found.tensor_positions()]


def _gradients(inputs: Sequence[Tensor], captures: Sequence[Tensor], program: str, wrt: str, layout: str) -> list[Tensor]:
    """Empty gradients of what `wrt` names: those of q, k and v in the memory order of `layout`, those of captures dense."""
    found = programs.find(program)
    wanted = sorted(found.position(name) for name in wrt.split("+"))
    likes = zip(wanted, _wanted(inputs, captures, program, wrt), strict=True)
    return [empty([(t.shape, t.dtype)], t.device, layout if position < 3 else "bhsd")[0] for position, t in likes]


def empty(results: Sequence[tuple[Sequence[int], torch.dtype]], device: torch.device, layout: str) -> list[Tensor]:
    """Uninitialised results; those of rank 4 have the memory order of `layout`."""
    made = []
    for shape, dtype in results:
        if layout == "bshd" and len(shape) == 4:
            _, heads, length, columns = shape
            strides = (heads * length * columns, columns, heads * columns, 1)
            made.append(torch.empty_strided(tuple(shape), strides, dtype=dtype, device=device))
        else:
            made.append(torch.empty(tuple(shape), dtype=dtype, device=device))
    return made


def or_zeros(grad: Tensor | None, like: Tensor) -> Tensor:
    """The gradient; where there is none, zeros that take no memory."""
    return like.new_zeros(()).expand(like.shape) if grad is None else grad


def _as(gradient: Tensor, like: Tensor) -> Tensor:
    return gradient if gradient.dtype == like.dtype else gradient.to(like.dtype)
