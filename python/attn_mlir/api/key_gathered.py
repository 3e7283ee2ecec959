"""Gradients of key lists by copies of what they list, where no kernel follows their inverse: single keys, blocks of other sizes.

Each block of queries is a sequence of packed tensors, whose keys are copied beside each other; gradients of these are added to those of the
keys in float32. The forward pass is run again in the backward, for some sequences at a time, so that copies take little memory; functions
are traced once, before it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from attn_mlir import driver
from attn_mlir.api.dropout import NONE
from attn_mlir.api.kept_calls import Dense, KeptCall, keep_call
from attn_mlir.api.key_numbers import check_at_call, check_prepared
from attn_mlir.api.key_pages import Lists, paged_call
from attn_mlir.api.key_sequences import (
    SequenceForm,
    causal_shift,
    in_whole,
    looks_at_scores_alone,
    packed_rows,
    places_of,
    sequences_of_lists,
    shapes_of,
    wanted_of,
    wrapped,
)
from attn_mlir.api.options import Options
from attn_mlir.api.varlen_inputs import problem_of
from attn_mlir.backends.allocation import empty
from attn_mlir.backends.prepared import ListShapes, PreparedLists
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.performance import told
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import dispatch, gradient_task, needing_gradient
from attn_mlir.runtime.listed import gradients_again
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.prepared_lists import prepare
from attn_mlir.runtime.varlen import largest

COPIED_BYTES = 1 << 28
"""Of keys and values at a time, where there is a choice."""
_ROWS, _COST = 64, 1.5
"""Rows that kernels compute for a sequence at least; what a pair of copied keys costs, of one that a table masks."""
Tensor = torch.Tensor
_FIRST = 1 << 40
"""Stands for the first sequence of a part where functions are traced; no captured number is this object."""
_SEQUENCE, _OF_LISTS = "first", ("listed", "shifts", "seen")
"""Names of what differs between parts: that sequence, and fields of `PreparedLists`."""
_KNOWN: dict[tuple[str, str, str, bool], str] = {}
"""Why a device has no fast kernels for the gradients of a program, which may be `deterministic`; "" where it has."""


@dataclass(frozen=True)
class GatheredLists:
    """What calls for parts of the sequences are made of."""

    options: Options
    lists: Lists
    made: SequenceForm
    shapes: ListShapes
    prepared: PreparedLists
    deterministic: bool

    @property
    def order(self) -> str:
        """That of q, k and v."""
        return input_order(self.lists[2].layout)

    def parts(self, q: Tensor, columns: int) -> list[tuple[int, int]]:
        """The sequences of each part."""
        index, form, _ = self.lists
        count = self.made.batch * self.made.heads * self.made.blocks
        most = max(1, COPIED_BYTES // (index.shape[3] * form.listed * columns * q.element_size()))
        return [(first, min(first + most, count)) for first in range(0, count, most)]

    def row(self, sequence: int) -> int:
        """Where the rows of a sequence begin."""
        whole, block = divmod(sequence, self.made.blocks)
        return (whole * self.made.queries + min(block * self.lists[1].queries, self.made.queries)) * self.made.fold

    def keys(self, part: tuple[int, int]) -> Tensor:
        """The rows of k, [B Hkv S, D], that sequences list, those of no block included."""
        _, form, problem = self.lists
        pages, length = self.prepared.pages[part[0] : part[1]].long(), problem.sizes["Skv"]
        if form.listed == 1:
            return pages.flatten()
        blocks = -(-length // form.listed)
        inside = (pages % blocks * form.listed)[..., None] + torch.arange(form.listed, device=pages.device)
        return ((pages // blocks * length)[..., None] + inside.clamp_(max=length - 1)).flatten()

    def own(self, part: tuple[int, int], first: int) -> dict[str, Any]:
        """What calls of parts have of their own, by name, of some sequences, which functions count from the `first`."""
        index, form, _ = self.lists
        begin, end = part
        places, room = places_of(self.made, form.queries, index.device), index.shape[3] * form.listed
        values = {
            "q_begins": places["q_begins"][begin:end] - self.row(begin),
            "q_lengths": places["q_lengths"][begin:end],
            "k_begins": torch.arange(0, (end - begin) * room, room, dtype=torch.int32, device=index.device),
            "k_lengths": self.prepared.used[begin:end],
            _SEQUENCE: first,
        }
        lists = {name: getattr(self.prepared, name) for name in _OF_LISTS}
        return values | {name: value[begin:end] for name, value in lists.items() if value is not None}

    def traced(self, qkv: Sequence[Tensor], own: Mapping[str, Any]) -> Call:
        """A call whose functions are traced now, for tensors as those of one sequence, without data."""
        index, form, problem = self.lists
        rows, room = min(form.queries, problem.sizes["Sq"]) * self.made.fold, index.shape[3] * form.listed
        q, k, v = (heads_first(x, self.order) for x in qkv)
        sizes = ((rows, self.made.apart, q.shape[3]), (room, 1, k.shape[3]), (room, 1, v.shape[3]))
        like = [empty(size, dtype=x.dtype, device=x.device) for size, x in zip(sizes, (q, k, v), strict=True)]
        q, k, v = (x.requires_grad_(given.requires_grad) for x, given in zip(like, qkv, strict=True))
        lists = self.prepared._replace(**{name: own.get(name) for name in _OF_LISTS})
        functions = wrapped(self.options.functions, self.shapes, self.made, lists, own[_SEQUENCE])
        options = self.options
        asked = Options(functions, options.scale, "bshd", options.lse, options.states, options.device, options.deterministic)
        return asked.call(problem_of(q, k, v, False), [x.unsqueeze(0) for x in (q, k, v)], NONE, own)

    def call(
        self, kept: KeptCall, part: tuple[int, int], qkv: tuple[Tensor, Tensor, Tensor], captured: Sequence[Tensor]
    ) -> tuple[Call, tuple[int, int]]:
        """The call of some sequences on their rows, [rows, heads, D], and keys, [keys, D], and the largest lengths."""
        index, form, _ = self.lists
        packed = qkv[0], qkv[1].unsqueeze(1), qkv[2].unsqueeze(1)
        most = min(form.queries, self.made.queries) * self.made.fold, index.shape[3] * form.listed
        own = self.own(part, part[0])
        return kept.of([x.unsqueeze(0) for x in packed], captured, own, problem_of(*packed, False)), most


def attention_gathered(qkv: tuple[Tensor, Tensor, Tensor], options: Options, lists: Lists, dense: Callable[[], Dense]) -> tuple[Any] | None:
    """What `attention` returns with these lists where something needs a gradient, as the only element; None where a table has to do.

    It is for lists of a fraction of all keys. `dense` traces what computes the results by a table, for second derivatives.
    """
    index, form, problem = lists
    if not index.numel() or problem.is_empty:
        return None
    made = sequences_of_lists(problem, form, index.shape[1], False, (False, False))
    if not _pays(made, lists):
        return None
    index = index.clone()  # the caller's may change before a backward
    lists, device = (index, form, problem), options.target(problem)
    shapes = shapes_of(made, index, form, problem.sizes["Skv"], causal_shift(options.functions[4], problem.sizes))
    prepared = prepare(index, shapes, wanted_of(options.functions, shapes, False, False), device)
    check_at_call(prepared, index, shapes.blocks, form.listed)
    gathered = GatheredLists(options, lists, made, shapes, prepared, options.deterministic or torch.are_deterministic_algorithms_enabled())
    own = gathered.own((0, 1), _FIRST)
    call = gathered.traced(qkv, own)
    if not needing_gradient(call.values) or not looks_at_scores_alone(call.entry.traced.text):
        return None
    reason = _no_kernels(call, device, gathered.deterministic)
    if reason and made.fold > 1:  # a gradient may then be that of a row, where it is that of a head if heads have rows of their own
        apart = sequences_of_lists(problem, form, index.shape[1], False, (False, True))
        gathered = dataclasses.replace(gathered, made=apart)
        if _pays(apart, lists):
            own = gathered.own((0, 1), _FIRST)
            call = gathered.traced(qkv, own)
            reason = _no_kernels(call, device, gathered.deterministic)
    if reason:
        told(
            f"gradients of key_index are those of a mask of all keys, since there are no kernels for copies: {reason}", "docs/key-lists.md"
        )
        return None
    by_table, stand_in, table = dense()
    captured: list[Tensor] = []
    calls = keep_call(call, own, captured), keep_call(by_table, stand_in, captured)
    found = list(GatheredForward.apply(gathered, calls, table, *qkv, *captured))  # type: ignore[no-untyped-call]
    check_prepared(prepared, index, shapes)
    return (options.named(found, call.entry),)


def _pays(made: SequenceForm, lists: Lists) -> bool:
    """Whether copies of what is listed are a fraction of all keys."""
    index, form, problem = lists
    room, rows, sizes = index.shape[3] * form.listed, min(form.queries, problem.sizes["Sq"]) * made.fold, problem.sizes
    pairs = made.batch * made.heads * made.blocks * made.apart * -(-rows // _ROWS) * _ROWS * room
    return _COST * pairs <= sizes["B"] * sizes["Hq"] * sizes["Sq"] * sizes["Skv"]


def _no_kernels(call: Call, device: str, deterministic: bool) -> str:
    """Why a device has no fast kernels for the gradients of a call of some sequences; "" where it has."""
    task, _ = gradient_task(call)
    key = task.program.name, device, task.wrt, deterministic
    if key not in _KNOWN:
        try:
            text, wrt = task.program.text, task.wrt.split("+")
            made: Any = [driver.compile_derivative(text, device, name, wrt, deterministic) for name in ("fwd", "bwd")]
            _KNOWN[key] = "; ".join([why for each in made for why in getattr(each, "slow", {}).values()])
        except (CompileError, UnsupportedError) as error:
            _KNOWN[key] = str(error)
    return _KNOWN[key]


class GatheredForward(torch.autograd.Function):
    """Attention to lists of keys, whose gradient is that of attention to copies of these keys; q, k and v have the order of the layout."""

    @staticmethod
    def forward(
        ctx: Any, gathered: GatheredLists, calls: tuple[KeptCall, KeptCall], table: Callable[..., Any], *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.gathered, ctx.calls, ctx.table = gathered, calls, table
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        qkv = tensors[0].detach(), tensors[1].detach(), tensors[2].detach()
        paged = paged_call(qkv, gathered.options, NONE, gathered.lists)
        if paged is not None:
            return tuple(paged.attended())
        q, k, v = _flat(gathered, qkv)
        found = []
        for part in gathered.parts(q, k.shape[1] + v.shape[1]):
            rows = gathered.keys(part)
            copies = q[gathered.row(part[0]) : gathered.row(part[1])], k[rows], v[rows]
            call, most = gathered.call(calls[0], part, copies, tensors[3:])
            with largest(*most):
                found.append(dispatch(call))
        whole = [torch.cat(each, 1 if each[0].dim() == 4 else 2).squeeze(0) for each in zip(*found, strict=True)]
        return tuple([in_whole(x, gathered.made, output_order(gathered.lists[2].layout)) for x in whole])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[3:]
        gathered, (call, by_table) = ctx.gathered, ctx.calls
        if not torch.is_grad_enabled() and forward_ad._current_level < 0:
            return None, None, None, *_gradients(gathered, call, tensors, needed, grads)

        def dense(given: Sequence[Tensor]) -> Sequence[Tensor]:
            return dispatch(by_table.of(given[:3], given[3:], ctx.table(gathered.lists[0])))

        return None, None, None, *gradients_again(dense, tensors, needed, grads)


def _flat(gathered: GatheredLists, qkv: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """q as the rows of all sequences, k and v as [B Hkv S, D]."""
    q, k, v = (heads_first(x, gathered.order) for x in qkv)
    return packed_rows(q, gathered.made), k.flatten(0, 2), v.flatten(0, 2)


def _gradients(
    gathered: GatheredLists, kept: KeptCall, tensors: Sequence[Tensor], needed: Sequence[bool], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """The gradients of q, k, v and captured tensors, as far as `needed`, by those of o and values of rows."""
    q, k, v = _flat(gathered, tensors[:3])
    given = _packed_gradients(gathered, grads)
    likes = zip((q, k, v), needed, strict=False)
    sums: list[Tensor | None] = [x.new_zeros(x.shape, dtype=torch.float32) if need else None for x, need in likes]
    sums += [None] * len(tensors[3:])  # not 0: what only second derivatives read has none here
    for part in gathered.parts(q, k.shape[1] + v.shape[1]):
        first, last = (gathered.row(sequence) for sequence in part)
        rows = gathered.keys(part)
        leaves = [x.detach().requires_grad_(need) for x, need in zip((q[first:last], k[rows], v[rows]), needed, strict=False)]
        captured = [x.detach().requires_grad_(need) for x, need in zip(tensors[3:], needed[3:], strict=True)]
        with torch.enable_grad():
            call, most = gathered.call(kept, part, (leaves[0], leaves[1], leaves[2]), captured)
            with largest(*most):
                results = dispatch(call)
            pairs = [(x, grad[first:last]) for x, grad in zip(results, given, strict=False) if grad is not None]
        outputs, of_outputs = [x for x, _ in pairs], [_like(grad, x) for x, grad in pairs]
        wanted = [(n, x) for n, x in enumerate([*leaves, *captured]) if x.requires_grad]
        found = torch.autograd.grad(outputs, [x for _, x in wanted], of_outputs, allow_unused=True) if outputs else [None] * len(wanted)
        for (number, _), gradient in zip(wanted, found, strict=True):
            total = sums[number]
            if gradient is None:
                continue
            if total is None:
                sums[number] = gradient.float()
            elif number == 0:
                total[first:last] = gradient
            elif number > 2:
                sums[number] = total + gradient
            elif gathered.deterministic:
                total.index_put_((rows,), gradient.float(), accumulate=True)  # which sorts rows
            else:
                total.index_add_(0, rows, gradient.float())
    return _in_layout(gathered, tensors, sums)


def _packed_gradients(gathered: GatheredLists, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Gradients of o, [rows, heads, D], and of values of rows, [rows, heads]."""
    order, made = output_order(gathered.lists[2].layout), gathered.made
    packed: list[Tensor | None] = []
    for grad in grads:
        if grad is None:
            packed.append(None)
        elif grad.dim() == 4:
            packed.append(packed_rows(heads_first(grad, order), made))
        else:
            packed.append(packed_rows(grad.unsqueeze(-1), made).squeeze(-1))
    return packed


def _like(grad: Tensor, result: Tensor) -> Tensor:
    """The gradient of rows in the shape of a result, [1, rows, heads, D] or [1, heads, rows]."""
    return grad.unsqueeze(0) if result.dim() == 4 else grad.T.unsqueeze(0)


def _in_layout(gathered: GatheredLists, tensors: Sequence[Tensor], sums: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The sums as gradients of the tensors, in their dtypes and orders."""
    made: list[Tensor | None] = []
    for number, (x, total) in enumerate(zip(tensors, sums, strict=True)):
        if total is None:
            made.append(None)
            continue
        if number == 0:
            total = in_whole(total, gathered.made, gathered.order)
        elif number < 3:
            total = in_order(total.view(heads_first(x, gathered.order).shape), gathered.order)
        made.append(total.to(x.dtype))
    return made
