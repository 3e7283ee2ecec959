"""Attention under the transforms of torch.func: the operators of `ops` as autograd functions of the form that these need.

First derivatives are `Backward` (by rows of the Jacobian J) and `Tangent` (by columns). The second ones are made of `Second`, which
gives d<y, J u> / dx for a gradient y and a direction u: it is what a gradient's gradient needs, its tangent (the Hessian of <y, o> is
symmetric) and a tangent's gradient. A tangent of a tangent is d(J u) w, for which there is no program.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch

from attn_mlir.errors import UnsupportedError
from attn_mlir.runtime import compute, ops, programs
from attn_mlir.runtime.vmap import for_each, has_batch

__all__ = ["Call", "backward", "for_each", "forward", "has_batch", "needs_gradient", "tangent_of"]


@dataclasses.dataclass(frozen=True)
class Call:
    """What an operator takes besides tensors."""

    program: str
    wrt: str
    layout: str
    floats: tuple[float, ...]
    ints: tuple[int, ...]
    captures: int
    """How many captured tensors there are."""

    @property
    def positions(self) -> tuple[int, ...]:
        """The places, among q, k, v and the captured tensors, of what `wrt` names."""
        return programs.find(self.program).wanted(self.wrt) if self.wrt else ()

    def by(self, places: Iterable[int]) -> "Call":
        """The same by other arguments: those at these places."""
        found = programs.find(self.program)
        numbers = found.tensor_positions()
        return dataclasses.replace(self, wrt="+".join(found.argument(numbers[place]) for place in sorted(set(places))))

    @property
    def outputs(self) -> int:
        """Each o and the row outputs."""
        return programs.find(self.program).made

    def apart(self, made: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What a tangent's program gives, each o with its tangent and then the rows and theirs, as results and their tangents."""
        pairs = 2 * programs.find(self.program).weights
        rows = self.outputs - pairs // 2
        return [*made[:pairs:2], *made[pairs : pairs + rows]], [*made[1:pairs:2], *made[pairs + rows :]]


def needs_gradient(tensor: Tensor) -> bool:
    """Whether the tensor requires a gradient, at any level of nested transforms."""
    while not tensor.requires_grad and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def forward(call: Call, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Tensor]) -> list[Tensor]:
    """What `ops.forward` computes; also where no gradient is needed, since transforms further out may bring tangents."""
    return list(Forward.apply(call, q, k, v, *captures))  # type: ignore[no-untyped-call]


def backward(
    inputs: Sequence[Tensor], captures: Sequence[Tensor], floats: Sequence[float], ints: Sequence[int], results: Sequence[Tensor],
    grads: Sequence[Tensor], program: str, wrt: str, layout: str,
) -> list[Tensor]:  # fmt: skip
    """What `ops.backward` computes, on tensors that may have tangents."""
    call = Call(program, wrt, layout, tuple(floats), tuple(ints), len(captures))
    return list(Backward.apply(call, *inputs, *captures, *results, *grads))  # type: ignore[no-untyped-call]


class Forward(torch.autograd.Function):
    """`ops.forward`; its gradient is `Backward`, its tangent `Tangent`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        numbers = (list(call.floats), list(call.ints), call.program, call.wrt, call.layout)
        return tuple(ops.forward(q, k, v, list(captures), *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call, ctx.results = call, len(output)
        ctx.mark_non_differentiable(*output[call.outputs :])
        _save(ctx, *tensors, *programs.find(call.program).kept(output))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        call: Call = ctx.call
        saved, given = ctx.saved_tensors, grads[: call.outputs]
        inputs, captures, results = saved[:3], saved[3 : 3 + call.captures], saved[3 + call.captures :]
        made = _gradients(call, inputs, captures, results, given)
        return (None, *compute.spread(made, inputs, captures, call.program, call.wrt))

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        call: Call = ctx.call
        primals = ctx.saved_tensors[: 3 + call.captures]
        changes = tangent_of(call, primals, tangents)[call.outputs :]
        return (*changes, *[None] * (ctx.results - len(changes)))


def tangent_of(call: Call, primals: Sequence[Tensor], tangents: Sequence[Tensor | None]) -> list[Tensor]:
    """Each o and the row outputs, and the tangents of all of these; None where an argument is a constant."""
    found = programs.find(call.program)
    numbers = found.tensor_positions()
    moved = [place for place, change in enumerate(tangents) if change is not None and found.takes_derivative(numbers[place])]
    if not moved:
        results = forward(call, primals[0], primals[1], primals[2], primals[3:])[: call.outputs]
        return [*results, *map(torch.zeros_like, results)]
    call = call.by(moved)
    made = Tangent.apply(call, *primals, *[tangents[place] for place in moved])  # type: ignore[no-untyped-call]
    results, changes = call.apart(made)
    return [*results, *changes]


def _save(ctx: Any, *tensors: Tensor) -> None:
    """Keeps tensors for gradient and tangent; they must be the same, since torch.vmap remembers dimensions of the latest ones."""
    ctx.save_for_backward(*tensors)
    ctx.save_for_forward(*tensors)
    ctx.set_materialize_grads(False)


def _gradients(
    call: Call, inputs: Sequence[Tensor], captures: Sequence[Tensor], results: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> Sequence[Tensor]:
    """The gradients by what the call names."""
    compute.check_row_gradients(call.program, grads[programs.find(call.program).weights :])
    results, filled = compute.results_and_gradients(inputs, captures, (call.floats, call.ints, call.program), results, grads)
    return Backward.apply(call, *inputs, *captures, *results, *filled)  # type: ignore[no-untyped-call]


def _kept(call: Call, inputs: Sequence[Tensor], captures: Sequence[Tensor]) -> Sequence[Tensor]:
    """What a forward pass keeps for the gradients that the call names."""
    return programs.find(call.program).kept(forward(call, inputs[0], inputs[1], inputs[2], captures))


def _directional(
    call: Call, primals: Sequence[Tensor], kept: Sequence[Tensor] | None, grads: Sequence[Tensor | None], changes: dict[int, Tensor]
) -> dict[int, Tensor]:
    """d<y, J u> / dx by place, for the gradients y of the results and the changes u; the call names all x and all that changes.

    `kept` are the results of the forward pass for this call, None if they are not at hand.
    """
    inputs, captures = primals[:3], primals[3:]
    kept = _kept(call, inputs, captures) if kept is None else kept
    results, filled = compute.results_and_gradients(inputs, captures, (call.floats, call.ints, call.program), kept, grads)
    directions = [compute.or_zeros(changes.get(place), primals[place]) for place in call.positions]
    made = Second.apply(call, *primals, *results, *filled, *directions)  # type: ignore[no-untyped-call]
    return dict(zip(call.positions, made, strict=False))


class Tangent(torch.autograd.Function):
    """`ops.tangent` of (inputs, captures, tangents), which has a gradient, but no tangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        first = 3 + call.captures
        numbers = (list(call.floats), list(call.ints), list(tensors[first:]), call.program, call.wrt, call.layout)
        return tuple(ops.tangent(list(tensors[:3]), list(tensors[3:first]), *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call = inputs[0]
        _save(ctx, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """By the primals: the gradient of the results, and what a change of J does to that of their tangents."""
        call, first = ctx.call, 3 + ctx.call.captures
        primals, changes = ctx.saved_tensors[:first], dict(zip(call.positions, ctx.saved_tensors[first:], strict=True))
        of_results, of_changes = call.apart(grads)
        found: list[Tensor | None] = [None] * (len(primals) + len(changes))
        wanted = [place for place in range(len(primals)) if ctx.needs_input_grad[1 + place]]
        if wanted and any(grad is not None for grad in of_results):
            narrow = call.by(wanted)
            kept = _kept(narrow, primals[:3], primals[3:])
            for place, made in zip(narrow.positions, _gradients(narrow, primals[:3], primals[3:], kept, of_results), strict=True):
                found[place] = made
        if any(grad is not None for grad in of_changes):
            wide = call.by([*wanted, *changes])
            kept = _kept(wide, primals[:3], primals[3:])
            by_change = dict(zip(wide.positions, _gradients(wide, primals[:3], primals[3:], kept, of_changes), strict=True))
            found[len(primals) :] = [by_change[place] for place in call.positions]
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


class Backward(torch.autograd.Function):
    """`ops.backward` of (inputs, captures, results, gradients); its gradient is `ops.backward2`, and so is its tangent."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(ops.backward(*_parts(call, tensors), call.program, call.wrt, call.layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call = inputs[0]
        _save(ctx, *inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        call: Call = ctx.call
        inputs, captures, _, _, results, _ = _parts(call, ctx.saved_tensors)
        likes = compute.named_tensors(inputs, captures, call.program, call.wrt)
        given = [compute.or_zeros(grad, like) for grad, like in zip(grads, likes, strict=True)]
        made = Second.apply(call, *ctx.saved_tensors, *given)  # type: ignore[no-untyped-call]
        spread = compute.spread(made[: len(grads)], inputs, captures, call.program, call.wrt)
        return (None, *spread, *[None] * len(results), *made[len(grads) :])

    @staticmethod
    def jvp(ctx: Any, _: Any, *tangents: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        """J^T dy, and what a change of J does to J^T y; the results change as their arguments say, whatever their tangents."""
        call: Call = ctx.call
        primals = ctx.saved_tensors[: 3 + call.captures]
        results, grads = _parts(call, ctx.saved_tensors)[4:]
        parts: list[Sequence[Tensor]] = []
        changes = tangents[len(tangents) - call.outputs :]
        if any(change is not None for change in changes):
            filled = [compute.or_zeros(change, grad) for change, grad in zip(changes, grads, strict=True)]
            parts.append(Backward.apply(call, *primals, *results, *filled))  # type: ignore[no-untyped-call]
        moved = {place: change for place, change in enumerate(tangents[: len(primals)]) if change is not None}
        if moved:
            wide = call.by([*call.positions, *moved])
            kept = results if wide.wrt == call.wrt else None
            second = _directional(wide, primals, kept, grads, moved)
            parts.append([second[place] for place in call.positions])
        made = parts[0] if len(parts) == 1 else [a + b for a, b in zip(*parts, strict=True)]
        return tuple(made)


class Second(torch.autograd.Function):
    """`ops.backward2`, which has no derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        count = 1 + call.wrt.count("+")
        parts = _parts(call, tensors[: len(tensors) - count])
        return tuple(ops.backward2(*parts, list(tensors[len(tensors) - count :]), call.program, call.wrt, call.layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:  # type: ignore[override]
        ops.no_third_derivative(ctx, *grads)

    jvp = staticmethod(ops.no_third_derivative)


def _parts(call: Call, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """(inputs, captures, results, gradients) as the operators take them."""
    inputs, rest = list(tensors[:3]), list(tensors[3:])
    captures, rest = rest[: call.captures], rest[call.captures :]
    results, grads = rest[: len(rest) - call.outputs], rest[len(rest) - call.outputs :]
    return inputs, captures, list(call.floats), list(call.ints), results, grads
