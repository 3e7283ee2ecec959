"""Attention under the transforms of torch.func: the operators of `ops` as autograd functions of the form that these need."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter

from attn_mlir.errors import UnsupportedError
from attn_mlir.runtime import compute, ops, programs
from attn_mlir.runtime.vmap import loop_over_batch


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
    def outputs(self) -> int:
        """o and the row outputs."""
        return 1 + len(programs.find(self.program).outputs)


def needs_gradient(tensor: Tensor) -> bool:
    """Whether the tensor requires a gradient, at any level of nested transforms."""
    while not tensor.requires_grad and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    return tensor.requires_grad


def forward(call: Call, q: Tensor, k: Tensor, v: Tensor, captures: Sequence[Tensor]) -> list[Tensor]:
    """What `ops.forward` computes."""
    if not call.wrt:
        return ops.forward(q, k, v, list(captures), list(call.floats), list(call.ints), call.program, call.wrt, call.layout)
    return list(Forward.apply(call, q, k, v, *captures))  # type: ignore[no-untyped-call]


def has_batch(values: Sequence[Any]) -> bool:
    """Whether the innermost transform is `torch.vmap`, and some value has a dimension that one hides."""
    inner = retrieve_current_functorch_interpreter() if _functorch.maybe_current_level() is not None else None
    if inner is None or inner.key() != _functorch.TransformType.Vmap:
        return False
    return any(isinstance(value, Tensor) and _functorch.is_batchedtensor(value) for value in values)


def for_each(run: Callable[..., list[Tensor]], values: Sequence[Any]) -> list[Tensor]:
    """`run(*values)` for each element of the batch that `torch.vmap` hides, with whatever transforms are outside of it."""
    return list(Loop.apply(run, *values))  # type: ignore[no-untyped-call]


class Loop(torch.autograd.Function):
    """Calls its first argument; under `torch.vmap`, for which alone it is meant, once for each element of the batch."""

    @staticmethod
    def forward(run: Callable[..., list[Tensor]], *values: Any) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(run(*values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], run: Callable[..., list[Tensor]], *values: Any) -> tuple[Any, ...]:  # type: ignore[override]
        made, dims = loop_over_batch(run)(info, in_dims[1:], *values)
        return tuple(made), tuple(dims)


def _no_mixed_derivative(ctx: Any, *grad_inputs: Any) -> NoReturn:
    raise UnsupportedError(
        "there is no forward-mode derivative of a gradient of attention: compute second derivatives with "
        "torch.func.jacrev(torch.func.jacrev(f)) or torch.autograd.functional.hessian, not with jacfwd over jacrev"
    )


class WithoutGradient(torch.autograd.Function):
    """The first `count` tensors, as what depends on the others; asking for that dependence is an error."""

    generate_vmap_rule = True

    @staticmethod
    def forward(count: int, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(tensor.clone() for tensor in tensors[:count])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        return None

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> NoReturn:  # type: ignore[override]
        ops.no_mixed_derivative(ctx, *grads)


class Forward(torch.autograd.Function):
    """`ops.forward`; its gradient is `Backward`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, q: Tensor, k: Tensor, v: Tensor, *captures: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        numbers = (list(call.floats), list(call.ints), call.program, call.wrt, call.layout)
        return tuple(ops.forward(q, k, v, list(captures), *numbers))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        call, *tensors = inputs
        ctx.call = call
        ctx.mark_non_differentiable(*output[call.outputs :])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors, *programs.find(call.program).kept(output))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        call: Call = ctx.call
        saved, given = ctx.saved_tensors, grads[: call.outputs]
        inputs, captures, results = saved[:3], saved[3 : 3 + call.captures], saved[3 + call.captures :]
        compute.check_row_gradients(call.program, given[1:])
        results, filled = compute.results_and_gradients(inputs, captures, (call.floats, call.ints, call.program), results, given)
        made = Backward.apply(call, *inputs, *captures, *results, *filled)  # type: ignore[no-untyped-call]
        spread = compute.spread(made, inputs, captures, call.program, call.wrt)
        return (None, *spread)

    jvp = staticmethod(_no_mixed_derivative)


class Backward(torch.autograd.Function):
    """`ops.backward` of (inputs, captures, results, gradients); its gradient is `ops.backward2`."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: Call, *tensors: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(ops.backward(*_parts(call, tensors), call.program, call.wrt, call.layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.call = inputs[0]
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        call: Call = ctx.call
        parts = _parts(call, ctx.saved_tensors)
        inputs, captures, _, _, results, _ = parts
        made = Second.apply(call, *ctx.saved_tensors, *grads)  # type: ignore[no-untyped-call]
        spread = compute.spread(made[: len(grads)], inputs, captures, call.program, call.wrt)
        return (None, *spread, *[None] * len(results), *made[len(grads) :])

    jvp = staticmethod(_no_mixed_derivative)


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

    jvp = staticmethod(_no_mixed_derivative)


def _parts(call: Call, tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """(inputs, captures, results, gradients) as the operators take them."""
    inputs, rest = list(tensors[:3]), list(tensors[3:])
    captures, rest = rest[: call.captures], rest[call.captures :]
    results, grads = rest[: len(rest) - call.outputs], rest[len(rest) - call.outputs :]
    return inputs, captures, list(call.floats), list(call.ints), results, grads
