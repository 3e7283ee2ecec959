"""What the torch operators of an attention and its derivatives do: `torch.ops.attn_mlir.forward`, `backward`, `backward2`, `tangent`.

`schemas` registers them, and finds their parts here by name: run_forward, fake_forward, setup_forward, differentiate_forward,
batch_forward.

They take the name of a traced program (see `programs`), and `wrt`, the arguments that need a derivative, joined by "+".
q, k and v are [B, H, S, D]; with `layout` "bshd" or "sbhd" the memory of results has that order, with "bshd->bhsd" that of gradients of
q, k and v the first, and that of o and its tangent the second. Further arguments of the
program come by kind, tensors first (`capture_kinds`). The gradients of a result that has none may be anything that expands.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from attn_mlir.capture_kinds import COUNT
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime import compute
from attn_mlir.runtime.orders import input_order, output_order
from attn_mlir.runtime.schemas import OPERATORS
from attn_mlir.runtime.task import Task, task_of
from attn_mlir.runtime.vmap import loop_over_batch

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
    # An operator runs below autograd, which has to be let in again to be asked.
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), nothing):
        return any(forward_ad.unpack_dual(value).tangent is not None for value in floats)


def call_forward(task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor]) -> list[Tensor]:
    """The operator `forward` for a task. A graph gets q where nothing is captured: AOTInductor makes None of an empty list."""
    return forward(*inputs, list(captures) or [inputs[0]], *map(list, task.numbers), *task.words)


def _call(operator: Callable[..., list[Tensor]], task: Task, *lists: Sequence[Tensor]) -> list[Tensor]:
    """The operator of a derivative for a task.

    `lists` are inputs and captures; with `tangent` tangents, with `backward` results of the forward pass and their gradients, to which
    `backward2` adds gradients of what `backward` gives.
    """
    return operator(*map(list, (*lists[:2], *task.numbers, *lists[2:])), *task.words)


call_backward, call_backward2, call_tangent = (functools.partial(_call, each) for each in (backward, backward2, tangent))


def _told(inputs: list[Tensor], captures: list[Tensor], *rest: Any) -> tuple[Any, ...]:
    """The task that the arguments of a derivative's operator tell, inputs, captures, and its lists of tensors."""
    numbers, lists, words = rest[: COUNT - 1], rest[COUNT - 1 : -3], rest[-3:]
    return task_of(captures, *numbers, *words), inputs, captures, *lists


@without_tangents
def run_forward(q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], *rest: Any) -> list[Tensor]:
    """See `compute_forward`. A packaged graph may be given shapes that nobody has looked at."""
    shapes = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    (b, _, _, dim), (kb, _, keys, key_dim), (vb, _, values, _) = shapes
    task = task_of(captures, *rest)
    paged = getattr(task.program, "paged", False)  # then k and v have pages where q has batch entries
    if (kb if paged else b, kb, keys, dim) != (kb, vb, values, key_dim):
        raise ArgumentError(f"q, k and v have shapes {list(shapes[0])}, {list(shapes[1])} and {list(shapes[2])}, which do not go together")
    if max(map(max, shapes)) >= MAX_LENGTH:
        raise ArgumentError(f"q, k or v has a dimension of {max(map(max, shapes))} elements; the limit is {MAX_LENGTH - 1}")
    return compute.compute_forward(task, (q, k, v), captures)


@without_tangents
def run_backward(*arguments: Any) -> list[Tensor]:
    """See `compute_backward`."""
    return compute.compute_backward(*_told(*arguments))


@without_tangents
def run_backward2(*arguments: Any) -> list[Tensor]:
    """The gradients of `backward` where its results have the gradients `grads2`: for what `wrt` names, then for `grads`."""
    task, inputs, captures, results, grads, grads2 = _told(*arguments)
    made = task.run("bwd2", task.arguments(inputs, captures, *results, *grads, *grads2), input_order(task.layout))
    likes = [*task.named([*inputs, *captures]), *grads]
    return [compute.as_dtype_of(gradient, like) for gradient, like in zip(made, likes, strict=True)]


@without_tangents
def run_tangent(*arguments: Any) -> list[Tensor]:
    """Each o and its tangent, then the row outputs and theirs; `tangents` are those of what `wrt` names."""
    task, inputs, captures, tangents = _told(*arguments)
    found = task.program
    found.check(task.arguments((), captures), found.sizes(*inputs), inputs[0].device)
    made = task.run("jvp", task.arguments(inputs, captures, *tangents), output_order(task.layout))
    if inputs[1].shape[2] == 0:
        found.fill_empty(made[2 * found.weights : found.weights + found.made])
    return made


def fake_forward(q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], *rest: Any) -> list[Tensor]:
    return compute.empty_forward(task_of(captures, *rest), (q, k, v), captures)


def fake_backward(*arguments: Any) -> list[Tensor]:
    task, inputs, captures, *_ = _told(*arguments)
    return compute.empty_gradients(task, inputs, captures)


def fake_backward2(*arguments: Any) -> list[Tensor]:
    task, inputs, captures, _, grads, _ = _told(*arguments)
    upstream = compute.empty([(grad.shape, grad.dtype) for grad in grads], inputs[0].device, input_order(task.layout))
    return [*compute.empty_gradients(task, inputs, captures), *upstream]


def fake_tangent(*arguments: Any) -> list[Tensor]:
    task, inputs, captures, tangents = _told(*arguments)
    results = task.derivative("jvp", inputs[0]).results(task.arguments(inputs, captures, *tangents))
    return compute.empty(results, inputs[0].device, output_order(task.layout))


def setup_forward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k, v, captures, *rest = inputs
    compute.keep(ctx, task_of(captures, *rest), (q, k, v, *captures), output)


def differentiate_forward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    task: Task = ctx.task
    _check_wanted(task, ctx.needs_input_grad)
    every = compute.gradients_of(task, ctx.saved_tensors, grads, call_backward)
    return (*every[:3], every[3:], *_of_numbers(task), None, None, None)


def _check_wanted(task: Task, needs: Sequence[Any]) -> None:
    """Refuses a gradient that `wrt` does not name, as of a graph that was exported when nothing needed it; torch would take it for 0."""
    needed = [*needs[:3], *(needs[3] or ())]
    names = ("q", "k", "v", *task.program.names)
    missing = [names[at] for place, at in enumerate(task.program.tensor_positions()) if needed[place] and place not in task.places]
    if missing:
        raise UnsupportedError(
            f"a gradient of {', '.join(missing)} is asked for, but this graph was made where it was not needed: make it (torch.export) "
            "outside of torch.no_grad(), with inputs and parameters that have requires_grad=True"
        )


def setup_backward(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    ctx.task, qkv, captures, results, grads = _told(*inputs)
    ctx.save_for_backward(*qkv, *captures, *results, *grads)
    ctx.results = len(results)
    ctx.set_materialize_grads(False)


def differentiate_backward(ctx: Any, grads2: Sequence[Tensor | None]) -> tuple[Any, ...]:
    task: Task = ctx.task
    inputs, captures, results, grads = split(task, ctx.saved_tensors, ctx.results)
    likes = task.named([*inputs, *captures])
    given = [compute.or_zeros(grad, like) for grad, like in zip(grads2, likes, strict=True)]
    made = call_backward2(task, inputs, captures, results, grads, given)
    every = task.spread(made[: len(likes)])
    return (every[:3], every[3:], *_of_numbers(task), [None] * ctx.results, made[len(likes) :], None, None, None)


def split(task: Task, tensors: Sequence[Tensor], results: int) -> tuple[Sequence[Tensor], ...]:
    """Inputs, captures, so many results, and their gradients."""
    ends = [3, 3 + task.captures, 3 + task.captures + results]
    return tuple([tensors[i:j] for i, j in zip([0, *ends], [*ends, len(tensors)], strict=True)])


def _of_numbers(task: Task) -> list[Any]:
    """What stands for their gradients; torch takes an empty list for one of tensors."""
    return [None if numbers else [] for numbers in task.numbers]


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
differentiate_backward2, differentiate_tangent = no_third_derivative, no_mixed_derivative
batch_forward, batch_backward, batch_backward2, batch_tangent = map(loop_over_batch, (forward, backward, backward2, tangent))
