"""What the torch operators of an attention and its derivatives do: `torch.ops.attn_mlir.forward`, `backward`, `backward2`, `tangent`.

`schemas` registers them, and finds their parts here by name: run_forward, fake_forward, setup_forward, differentiate_forward,
batch_forward.

They take the name of a traced program (see `programs`), and `wrt`, the arguments that need a derivative, joined by "+".
q, k and v are [B, H, S, D]; with `layout` "bshd" or "sbhd" the memory of results has that order, with "bshd->bhsd" that of gradients of
q, k and v the first, and that of o and its tangent the second. Further arguments of the
program come by kind: tensors, floats and ints. The gradients of a result that has none may be anything that expands.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime import programs
from attn_mlir.runtime.compute import (
    as_dtype_of,
    compute_backward,
    compute_forward,
    derivative_call,
    empty,
    empty_forward,
    empty_gradients,
    forward_backward,
    named_tensors,
    or_zeros,
    spread,
)
from attn_mlir.runtime.orders import input_order, output_order
from attn_mlir.runtime.schemas import OPERATORS
from attn_mlir.runtime.vmap import loop_over_batch

__all__ = ["backward", "backward2", "forward", "tangent"]

MAX_LENGTH = 2**31

forward, backward, backward2, tangent = (OPERATORS[name] for name in ("forward", "backward", "backward2", "tangent"))


def without_tangents(compute: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """The function, which refuses tensors with tangents: an operator would drop them, and what it returns would seem constant.

    They come here from compiled graphs only; `transforms` and `eager` know how to take them.
    """

    @functools.wraps(compute)
    def checked(*arguments: Any) -> list[Tensor]:
        if forward_ad._current_level >= 0 and _have_tangents(arguments):
            raise UnsupportedError(
                "a function compiled by torch.compile takes no tensors with tangents (torch.autograd.forward_ad) through attention: call "
                "it uncompiled, or compile a function that calls torch.func.jvp itself"
            )
        return compute(*arguments)

    return checked


def _have_tangents(values: Any) -> bool:
    floats = [value for value in torch.utils._pytree.tree_leaves(values) if isinstance(value, Tensor) and value.is_floating_point()]
    nothing = torch._C.DispatchKeySet(torch._C.DispatchKey.Undefined)
    # An operator runs behind autograd, which has to be let in again to be asked.
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), nothing):
        return any(forward_ad.unpack_dual(value).tangent is not None for value in floats)


@without_tangents
def run_forward(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> list[Tensor]:
    """See `compute_forward`. A packaged graph may be given shapes that nobody has looked at."""
    shapes = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    (b, _, _, dim), (kb, _, keys, key_dim), (vb, _, values, _) = shapes
    if (b, b, keys, dim) != (kb, vb, values, key_dim):
        raise ArgumentError(f"q, k and v have shapes {list(shapes[0])}, {list(shapes[1])} and {list(shapes[2])}, which do not go together")
    if max(map(max, shapes)) >= MAX_LENGTH:
        raise ArgumentError(f"q, k or v has a dimension of {max(map(max, shapes))} elements; the limit is {MAX_LENGTH - 1}")
    return compute_forward(q, k, v, *rest)


@without_tangents
def run_backward2(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    grads2: list[Tensor], program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """The gradients of `backward` where its results have the gradients `grads2`: for what `wrt` names, then for `grads`."""
    derivative, arguments = derivative_call("bwd2", inputs, captures, floats, ints, [*results, *grads, *grads2], program, wrt)
    made = derivative.run(arguments, input_order(layout))
    return [
        as_dtype_of(gradient, like) for gradient, like in zip(made, [*named_tensors(inputs, captures, program, wrt), *grads], strict=True)
    ]


@without_tangents
def run_tangent(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], tangents: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """Each o and its tangent, then the row outputs and theirs; `tangents` are those of what `wrt` names."""
    found = programs.find(program)
    found.check(found.kinds.unpack((captures, floats, ints)), found.sizes(inputs[0], inputs[1], inputs[2]), inputs[0].device)
    derivative, arguments = derivative_call("jvp", inputs, captures, floats, ints, tangents, program, wrt)
    made = derivative.run(arguments, output_order(layout))
    if inputs[1].shape[2] == 0:
        found.fill_empty(made[2 * found.weights : found.weights + found.made])
    return made


def fake_backward(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    return empty_gradients(inputs, captures, program, wrt, layout)


def fake_backward2(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], results: list[Tensor], grads: list[Tensor],
    grads2: list[Tensor], program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    upstream = empty([(grad.shape, grad.dtype) for grad in grads], inputs[0].device, input_order(layout))
    return [*empty_gradients(inputs, captures, program, wrt, layout), *upstream]


def fake_tangent(
    inputs: list[Tensor], captures: list[Tensor], floats: list[float], ints: list[int], tangents: list[Tensor],
    program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    derivative, arguments = derivative_call("jvp", inputs, captures, floats, ints, tangents, program, wrt)
    return empty(derivative.results(arguments), inputs[0].device, output_order(layout))


def setup_forward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k, v, captures, floats, ints, program, wrt, layout = inputs
    found = programs.find(program)
    ctx.save_for_backward(q, k, v, *captures, *found.kept(output))
    ctx.numbers = (floats, ints, program, wrt, layout)
    ctx.captures = len(captures)
    ctx.mark_non_differentiable(*output[found.made :])
    ctx.set_materialize_grads(False)


def differentiate_forward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    _check_wanted(ctx)
    every = forward_backward(ctx, ctx.saved_tensors, grads, backward)
    return (*every[:3], every[3:], *_of_numbers(*ctx.numbers[:2]), None, None, None)


def _check_wanted(ctx: Any) -> None:
    """Refuses a gradient that `wrt` does not name, as of a graph that was exported when nothing needed it; torch would take it for 0."""
    program, wrt = ctx.numbers[2:4]
    found = programs.find(program)
    wanted = found.wanted(wrt) if wrt else ()
    needed = [*ctx.needs_input_grad[:3], *(ctx.needs_input_grad[3] or ())]
    names = ("q", "k", "v", *found.names)
    missing = [names[at] for place, at in enumerate(found.tensor_positions()) if needed[place] and place not in wanted]
    if missing:
        raise UnsupportedError(
            f"a gradient of {', '.join(missing)} is asked for, but this graph was made where it was not needed: make it (torch.export) "
            "outside of torch.no_grad(), with inputs and parameters that have requires_grad=True"
        )


def setup_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    qkv, captures, floats, ints, results, grads, program, wrt, layout = inputs
    ctx.save_for_backward(*qkv, *captures, *results, *grads)
    ctx.numbers = (floats, ints, program, wrt, layout)
    ctx.counts = (len(captures), len(results))
    ctx.set_materialize_grads(False)


def differentiate_backward(ctx: Any, grads2: Sequence[Tensor | None]) -> tuple[Any, ...]:
    floats, ints, program, wrt, layout = ctx.numbers
    saved = list(ctx.saved_tensors)
    inputs, rest = saved[:3], saved[3:]
    captures, rest = rest[: ctx.counts[0]], rest[ctx.counts[0] :]
    results, grads = rest[: ctx.counts[1]], rest[ctx.counts[1] :]
    likes = named_tensors(inputs, captures, program, wrt)
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
    raise UnsupportedError(
        "there are derivatives of attention up to the second, and this asks for a third one: pass create_graph=False, or detach the second "
        "gradient; torch.autograd.functional.vhp gives a product with the Hessian, for which hvp takes a third derivative"
    )


def no_mixed_derivative(*_: Any) -> NoReturn:
    """The gradient of `tangent`, and of what stands for attention in a graph; `transforms` has one."""
    raise UnsupportedError(
        "a forward-mode derivative of attention that torch.compile made has no gradient: compile the function that computes the second "
        "derivative as a whole, or call it uncompiled"
    )


def old_vmap(*_: Any) -> NoReturn:
    """What the operators do under the vmap that torch.autograd.functional still uses, which does not tell how large its batch is."""
    raise UnsupportedError(
        "attention takes no batched gradients from torch.autograd.grad(is_grads_batched=True) or torch.autograd.functional's "
        "vectorize=True: use torch.func.jacrev, jacfwd or hessian, or vectorize=False"
    )


def setup_backward2(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    """Nothing: there is no derivative."""


setup_tangent = setup_backward2
run_backward, fake_forward = without_tangents(compute_backward), empty_forward
differentiate_backward2, differentiate_tangent = no_third_derivative, no_mixed_derivative
batch_forward, batch_backward, batch_backward2, batch_tangent = map(loop_over_batch, (forward, backward, backward2, tangent))
