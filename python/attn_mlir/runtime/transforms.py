"""Attention under the transforms of torch.func: the operators of `ops` as autograd functions of the form that these need.

First derivatives are `Backward` (by rows of the Jacobian J) and `Tangent` (by columns). The second ones are made of `SecondBackward`, which
gives d<y, J u> / dx for a gradient y and a direction u: it is what a gradient's gradient needs, its tangent (the Hessian of <y, o> is
symmetric) and a tangent's gradient. A tangent of a tangent is d(J u) w, for which there is no program.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch

from attn_mlir.errors import UnsupportedError
from attn_mlir.runtime import compute, ops
from attn_mlir.runtime.task import Task
from attn_mlir.runtime.vmap import for_each, has_batch

__all__ = ["backward", "for_each", "forward", "has_batch", "needs_gradient", "tangent_of"]


def needs_gradient(tensor: Tensor) -> bool:
    """Whether the tensor requires a gradient, at any level of nested transforms."""
    while not tensor.requires_grad and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def forward(task: Task, *tensors: Tensor) -> list[Tensor]:
    """What `ops.forward` computes; also where no gradient is needed, since transforms further out may bring tangents."""
    return list(Forward.apply(task, *tensors))  # type: ignore[no-untyped-call]


def backward(
    task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor], results: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """What `ops.backward` computes, on tensors that may have tangents."""
    return list(Backward.apply(task, *inputs, *captures, *results, *grads))  # type: ignore[no-untyped-call]


class _OfTask(torch.autograd.Function):
    """A function of a task and tensors, which are kept for its gradient and its tangent."""

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.task = inputs[0]
        _save(ctx, *inputs[1:])


class Forward(_OfTask):
    """`ops.forward`; its gradient is `Backward`, its tangent `Tangent`."""

    @staticmethod
    def forward(task: Task, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(ops.call_forward(task, tensors[:3], tensors[3:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        task, *tensors = inputs
        ctx.task, ctx.results = task, len(output)
        ctx.mark_non_differentiable(*output[task.program.made :])
        _save(ctx, *tensors, *task.program.kept(output))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (None, *compute.gradients_of(ctx.task, ctx.saved_tensors, grads, backward))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        task: Task = ctx.task
        changes = tangent_of(task, ctx.saved_tensors[: 3 + task.captures], tangents)[task.program.made :]
        return (*changes, *[None] * (ctx.results - len(changes)))


def tangent_of(task: Task, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor]:
    """Each o and the row outputs, and the tangents of all of these; None where an argument is a constant."""
    found = task.program
    numbers = found.tensor_positions()
    moved = [place for place, change in enumerate(tangents) if change is not None and found.takes_derivative(numbers[place])]
    if not moved:
        results = forward(task, *primals)[: found.made]
        return [*results, *map(torch.zeros_like, results)]
    task = task.by(moved)
    made = Tangent.apply(task, *primals, *[tangents[place] for place in moved])  # type: ignore[no-untyped-call]
    results, changes = task.apart(made)
    return [*results, *changes]


def _save(ctx: Any, *tensors: Tensor) -> None:
    """Keeps tensors for gradient and tangent; they must be the same, since torch.vmap remembers dimensions of the latest ones."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def _gradients(
    task: Task, inputs: Sequence[Tensor], captures: Sequence[Tensor], results: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> Sequence[Tensor]:
    """The gradients by what the task names."""
    compute.check_row_gradients(task, grads)
    return backward(task, inputs, captures, *compute.results_and_gradients(task, inputs, captures, results, grads))


def _kept(task: Task, primals: Sequence[Tensor]) -> Sequence[Tensor]:
    """What a forward pass keeps for the gradients that the task names."""
    return task.program.kept(forward(task, *primals))


def _directional(
    task: Task, primals: Sequence[Tensor], kept: Sequence[Tensor] | None, grads: Sequence[Tensor | None], changes: dict[int, Tensor]
) -> dict[int, Tensor]:
    """d<y, J u> / dx by place, for the gradients y of the results and the changes u; the task names all x and all that changes.

    `kept` are the results of the forward pass for this task, None if they are not at hand.
    """
    kept = _kept(task, primals) if kept is None else kept
    results, filled = compute.results_and_gradients(task, primals[:3], primals[3:], kept, grads)
    directions = [compute.or_zeros(changes.get(place), primals[place]) for place in task.places]
    made = SecondBackward.apply(task, *primals, *results, *filled, *directions)  # type: ignore[no-untyped-call]
    return dict(zip(task.places, made, strict=False))


class Tangent(_OfTask):
    """`ops.tangent` of (inputs, captures, tangents), which has a gradient, but no tangent."""

    @staticmethod
    def forward(task: Task, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        first = 3 + task.captures
        return tuple(ops.call_tangent(task, tensors[:3], tensors[3:first], tensors[first:]))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """By the primals: the gradient of the results, and what a change of J does to that of their tangents."""
        task, first = ctx.task, 3 + ctx.task.captures
        primals, changes = ctx.saved_tensors[:first], dict(zip(task.places, ctx.saved_tensors[first:], strict=True))
        of_results, of_changes = task.apart(grads)
        found: list[Tensor | None] = [None] * (len(primals) + len(changes))
        wanted = [place for place in range(len(primals)) if ctx.needs_input_grad[1 + place]]
        if wanted and any(grad is not None for grad in of_results):
            narrow = task.by(wanted)
            kept = _kept(narrow, primals)
            for place, made in zip(narrow.places, _gradients(narrow, primals[:3], primals[3:], kept, of_results), strict=True):
                found[place] = made
        if any(grad is not None for grad in of_changes):
            wide = task.by([*wanted, *changes])
            kept = _kept(wide, primals)
            by_change = dict(zip(wide.places, _gradients(wide, primals[:3], primals[3:], kept, of_changes), strict=True))
            found[len(primals) :] = [by_change[place] for place in task.places]
            second = _directional(wide, primals, kept, of_changes, changes) if wanted else {}
            for place in wanted:
                known = found[place]
                found[place] = second[place] if known is None else known + second[place]
        return (None, *found)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:  # type: ignore[override]
        raise UnsupportedError(
            "there is no forward-mode derivative of a forward-mode derivative of attention: use reverse mode for one of the two, as in "
            "torch.func.hessian(f), torch.func.jvp(torch.func.grad(f), ...) or torch.func.jacrev(torch.func.jacfwd(f))"
        )


class Backward(_OfTask):
    """`ops.backward` of (inputs, captures, results, gradients); its gradient is `ops.backward2`, and so is its tangent."""

    @staticmethod
    def forward(task: Task, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(ops.call_backward(task, *_parts(task, tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        task: Task = ctx.task
        inputs, captures, results, _ = _parts(task, ctx.saved_tensors)
        given = [compute.or_zeros(grad, like) for grad, like in zip(grads, task.named([*inputs, *captures]), strict=True)]
        made = SecondBackward.apply(task, *ctx.saved_tensors, *given)  # type: ignore[no-untyped-call]
        return (None, *task.spread(made[: len(grads)]), *[None] * len(results), *made[len(grads) :])

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """J^T dy, and what a change of J does to J^T y; the results change as their arguments say, whatever their tangents."""
        task: Task = ctx.task
        primals = ctx.saved_tensors[: 3 + task.captures]
        results, grads = _parts(task, ctx.saved_tensors)[2:]
        parts: list[Sequence[Tensor]] = []
        changes = tangents[len(tangents) - task.program.made :]
        if any(change is not None for change in changes):
            filled = [compute.or_zeros(change, grad) for change, grad in zip(changes, grads, strict=True)]
            parts.append(Backward.apply(task, *primals, *results, *filled))  # type: ignore[no-untyped-call]
        moved = {place: change for place, change in enumerate(tangents[: len(primals)]) if change is not None}
        if moved:
            wide = task.by([*task.places, *moved])
            kept = results if wide.wrt == task.wrt else None
            second = _directional(wide, primals, kept, grads, moved)
            parts.append([second[place] for place in task.places])
        made = parts[0] if len(parts) == 1 else [a + b for a, b in zip(*parts, strict=True)]
        return tuple(made)


class SecondBackward(_OfTask):
    """`ops.backward2`, which has no derivative."""

    @staticmethod
    def forward(task: Task, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        last = len(tensors) - len(task.places)
        inputs, captures, results, grads = _parts(task, tensors[:last])
        return tuple(ops.call_backward2(task, inputs, captures, results, grads, tensors[last:]))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:  # type: ignore[override]
        ops.no_third_derivative(ctx, *grads)

    jvp = staticmethod(ops.no_third_derivative)


def _parts(task: Task, tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], ...]:
    """Inputs, captures, results and their gradients."""
    return ops.split(task, tensors, len(tensors) - 3 - task.captures - task.program.made)
