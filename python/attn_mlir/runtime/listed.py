"""Programs with lists of keys: they are several kernels, and the tensors of their lists must fit to each other."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from torch.autograd import forward_ad

from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.given import LISTS
from attn_mlir.runtime.eager import gradients, whole
from attn_mlir.runtime.orders import all_heads_first, in_order, input_order, output_order
from attn_mlir.runtime.programs import Program
from attn_mlir.runtime.task import Task

Dense = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
Queries = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor | None]], torch.Tensor]
_DTYPES = {"i32": torch.int32, "i64": torch.int64}


@dataclasses.dataclass(eq=False)
class ListedProgram(Program):
    """A traced attention whose first captures are those of `frontend.given.LISTS`, as `runtime.key_lists` makes them."""

    has_kernel: ClassVar[bool] = False

    def check(self, captures: Sequence[Any], sizes: dict[str, int], device: torch.device) -> None:
        """See `Program.check`; what entries hold was checked where the lists were made."""
        for (name, (element, rank)), tensor in zip(LISTS.items(), captures, strict=False):
            fits = isinstance(tensor, torch.Tensor) and tensor.dtype == _DTYPES[element] and tensor.dim() == rank
            if not fits or tensor.device != device or not tensor.is_contiguous():
                raise ArgumentError(f"`{name}` of key_index is a contiguous {_DTYPES[element]} tensor of rank {rank} on {device}")
        super().check(captures, sizes, device)


def forward_listed(
    task: Task,
    saved: Sequence[torch.Tensor],
    dense: Dense,
    tensors: Sequence[torch.Tensor],
    seen: bool = True,
    queries: Queries | None = None,
    check: Callable[[], None] | None = None,
) -> list[torch.Tensor]:
    """The results of a forward pass that was `saved`, with a gradient by `tensors`, inputs and captures: the program's backward.

    `seen`: results are not copied before the caller gets them, so that they must be no views. `queries` makes the gradient of q, which
    the program's backward then leaves out: of q, k, v, results and gradients with heads first. `check` is asked once a backward was
    started.

    `dense` computes them of such tensors in another way, which has second derivatives, and may read more of them.
    """
    given = [whole(x) for x in saved] if seen else saved
    made: Any = ListedForward.apply(task, given, (dense, queries, check), *tensors)  # type: ignore[no-untyped-call]
    return list(made)[: task.program.made]


class ListedForward(torch.autograd.Function):
    """The forward pass of a listed program that was computed by kernels of another one. See `EagerForward`."""

    @staticmethod
    def forward(
        ctx: Any,
        task: Task,
        saved: Sequence[torch.Tensor],
        ways: tuple[Dense, Queries | None, Callable[[], None] | None],
        *tensors: torch.Tensor,
    ) -> tuple[Any, ...]:
        first = 3 + task.captures
        ctx.task, ctx.turned, ctx.more = task, task.layout != "bhsd", len(tensors) - first
        ctx.dense, ctx.queries, ctx.check = ways
        ctx.save_for_backward(*tensors[:first], *saved, *tensors[first:])
        ctx.mark_non_differentiable(*saved[task.program.made :])
        ctx.set_materialize_grads(False)
        return tuple(saved)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        saved, more = ctx.saved_tensors, ctx.more
        kept = saved[: len(saved) - more]
        if not torch.is_grad_enabled() and forward_ad._current_level < 0:
            # Not 0: what only second derivatives read has none here.
            found = _gradients(ctx, kept, grads)
            if ctx.check is not None:
                ctx.check()
            return None, None, None, *found, *[None] * more
        tensors = (*kept[: 3 + ctx.task.captures], *saved[len(kept) :])
        return None, None, None, *gradients_again(ctx.dense, tensors, ctx.needs_input_grad[3:], grads)


def _gradients(ctx: Any, saved: Sequence[torch.Tensor], grads: tuple[torch.Tensor | None, ...]) -> Sequence[torch.Tensor | None]:
    """Gradients of inputs and captures, by the program's backward alone, or with that of q made beside it."""
    task: Task = ctx.task
    if ctx.queries is None:
        return gradients(task, ctx.turned, saved, grads)
    first, given = 3 + task.captures, output_order(task.layout)
    rest = task.by([place for place in task.places if place])
    found: list[torch.Tensor | None] = [None] * first
    if rest.wrt:
        found = list(gradients(rest, ctx.turned, saved, grads))
    weights = task.program.weights
    results = all_heads_first(saved[first:], given, task.program.kept_weights)
    of_results = all_heads_first(grads[: task.program.made], given, weights)
    made = ctx.queries(all_heads_first(saved[:3], input_order(task.layout), 3), results, of_results)
    found[0] = in_order(made, input_order(task.layout))
    return found


def gradients_again(
    dense: Dense, tensors: Sequence[torch.Tensor], needed: Sequence[bool], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Gradients of the `tensors` that need one, q, k, v and captured ones, by those of what `dense` computes of them.

    They have derivatives themselves.
    """
    made: list[torch.Tensor | None] = [None] * len(tensors)
    again = torch.is_grad_enabled()  # without it, gradients have tangents
    with torch.enable_grad():
        results = [(o, grad) for o, grad in zip(dense(tensors), grads, strict=False) if grad is not None]
    if results:
        wanted = [number for number, need in enumerate(needed) if need]
        outputs, given = zip(*results, strict=True)
        found = torch.autograd.grad(outputs, [tensors[n] for n in wanted], given, create_graph=again, allow_unused=True)
        for number, gradient in zip(wanted, found, strict=True):
            made[number] = gradient
    return made
