"""Gradients of key lists on GPUs: the forward pass reads listed blocks as pages, the backward kernels follow the inverse of the lists.

The inverse is made on the GPU by operations of torch, which wait for nothing: for each tile of keys the blocks of queries that list it, in
their order. A block that is listed twice is there once.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.api.dropout import Dropout
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.kept_calls import Dense, KeptCall, keep_call
from attn_mlir.api.key_numbers import tell_wrong
from attn_mlir.api.key_pages import Lists, PagedCall, paged_call
from attn_mlir.api.key_queries import query_gradient
from attn_mlir.api.key_sequences import ready_made_shift
from attn_mlir.api.options import Options
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.frontend.given import LISTS
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import dispatch, gradient_task
from attn_mlir.runtime.key_lists import ListForm, fold, unfold
from attn_mlir.runtime.listed import forward_listed
from attn_mlir.runtime.orders import all_heads_first, all_in_order, input_order, output_order
from attn_mlir.runtime.programs import Program
from attn_mlir.runtime.task import Task

TILES = (128, 64)
"""Keys of a tile, which a program of a backward kernel has: the first that divides a listed block and that a device has kernels for."""
FEW_QUERIES = 32
"""Blocks of queries that are no multiple of so many are better off with the smaller tile: more registers are left."""
FEWEST_QUERIES = 16
"""Queries of a block are a multiple of so many."""
MOST_ENTRIES = (1 << 24) - (1 << 12)
"""Loops of kernels for GPUs count so far."""
Tensor = torch.Tensor
_READY: "dict[tuple[Any, ...], tuple[Call, Task, int, TableCall | None]]" = {}
_PROBLEMS: dict[tuple[Any, ...], Problem] = {}
_MOST = 256
"""Shapes whose problems, and calls whose tasks, are kept."""
_BACKWARD: dict[tuple[str, str, str, bool], int] = {}
"""How many results of a forward pass a backward takes, -1 where a device has no kernels for it.

By program, device, what needs a gradient, and whether sums have an order.
"""


def attention_listed_with_gradients(
    qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, group: int, dense: Callable[[], Dense]
) -> tuple[Any] | None:
    """What `attention` returns with these lists where something needs a gradient, as the only element; None where a table has to do.

    Blocks have a multiple of 64 keys and of 16 queries, those of the `group` heads that become rows counted, and the row looks at nothing
    but its scores. `dense` traces what computes the results by a table, for second derivatives.
    """
    index, form, problem = lists
    if not 0 < index.numel() <= MOST_ENTRIES or problem.is_empty or form.queries * group % FEWEST_QUERIES:
        return None
    for tile in TILES if form.queries * group % FEW_QUERIES == 0 else TILES[::-1]:
        if form.listed % tile == 0:
            made = _attended(qkv, options, dropout, (index, dataclasses.replace(form, tile=tile), problem), group, dense)
            if made is not None:
                return made
    return None


def _attended(
    qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, group: int, dense: Callable[[], Dense]
) -> tuple[Any] | None:
    index, form, problem = lists
    folded, order = qkv, output_order(problem.layout)
    if group > 1:
        q, k, v = all_heads_first(qkv, input_order(problem.layout), 3)
        folded = fold(q, group), k, v
    key = _key_of(qkv, options, dropout, lists, group)
    known = _READY.get(key) if key is not None else None
    call, task, results, table = known or (*_call_of(folded, options, dropout, lists, group), None)
    if results < 0:
        return None
    with torch.no_grad():
        paged = paged_call(qkv, options, dropout, lists, decoded=False, folded=folded[0] if group > 1 else None)
        if paged is None:
            return None
        saved: Sequence[Tensor]
        saved, of_sequences = paged.saved(_of_pages(task.wrt))
        if len(saved) != results:
            return None
        if group > 1 and not paged.folded:
            saved = [fold(x, group) for x in all_heads_first(saved, order, task.program.weights)]
        apart = group == 1 and "q" in task.wrt.split("+") and dropout.form is None
        queries = query_gradient(paged, options.functions, of_sequences, form.tile) if apart else None
        queries = queries if queries is not None and _can_leave_queries(task, results, index.device.type) else None
        made = paged.lists.inverse(form.tile, queries is None and is_in_order(task.program))
    captures: Sequence[Tensor] = made
    if table is None:
        task, captures = gradient_task(call._replace(values=(*folded, *made, *call.values[3 + len(LISTS) :])))
        # Functions may capture something else when second derivatives are taken.
        table, captures = _table_call(dense(), captures)
        if key is not None:
            if len(_READY) == _MOST:
                _READY.clear()
            _READY[key] = call._replace(values=()), task, results, table
    again = table.computing(paged.lists.listing, problem.layout, group)
    seen = group == 1 or problem.sizes["Sq"] == 1  # else the results are copied
    of_queries, tensors = None if queries is None else queries.of, (*folded, *captures)
    found: Sequence[Any] = forward_listed(task, saved, again, tensors, seen, of_queries, _checking(paged))
    paged.check()
    if group > 1:
        found = [x.contiguous() for x in all_in_order([unfold(x, group) for x in found], order, task.program.weights)]
    return (options.named(found, call.entry),)


def _checking(paged: PagedCall) -> Callable[[], None]:
    """What a backward asks about the lists of a call, of which no tensor is kept."""
    wrong = paged.lists.wrong
    return lambda: None if wrong is None else tell_wrong(wrong(False))


def _call_of(folded: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, group: int) -> tuple[Call, Task, int]:
    """The call whose backward follows the inverse of lists, its task, and what `_results_of` says."""
    index, form, problem = lists
    call = options.call(_problem_of_lists(problem, folded, form, group), folded, dropout, dict.fromkeys(LISTS))
    task, _ = gradient_task(call)
    return call, task, _results_of(task, index.device.type) if task.wrt else -1


def _key_of(qkv: tuple[Tensor, Tensor, Tensor], options: Options, dropout: Dropout, lists: Lists, group: int) -> tuple[Any, ...] | None:
    """Of calls of ready-made functions, which capture nothing: what their tasks follow from."""
    _, form, problem = lists
    shift = ready_made_shift(options.functions, problem.sizes)
    asked = options.by_value(problem.layout)
    if asked is None or shift is None or dropout.form is not None:
        return None
    flags = torch.are_deterministic_algorithms_enabled(), *[x.requires_grad for x in qkv]
    return shift, asked, problem.inputs, tuple(problem.sizes.values()), problem.layout, problem.device, form, group, flags


def _problem_of_lists(problem: Problem, folded: tuple[Tensor, Tensor, Tensor], form: ListForm, group: int) -> Problem:
    """What shapes say of a call whose backward follows the inverse of lists; q of `folded` has the heads of a group as rows."""
    key = (problem.inputs, problem.layout, *[x.shape for x in folded], problem.device, form, group)
    found = _PROBLEMS.get(key)
    if found is None:
        made = check_inputs(*folded, "bhsd") if group > 1 else problem
        sizes = form.queries * group, *form.sizes[1:]
        found = dataclasses.replace(made, inputs=dataclasses.replace(made.inputs, lists=sizes, group=group))
        if len(_PROBLEMS) == _MOST:
            _PROBLEMS.clear()
        _PROBLEMS[key] = found
    return found


@dataclass(frozen=True)
class TableCall:
    """A call by a table of all keys, for second derivatives, without its tensors."""

    kept: KeptCall
    values: Callable[[Tensor], Mapping[str, Any]]
    """What it reads that is made of the numbers of lists."""

    def computing(self, listing: Callable[[], Tensor], layout: str, group: int) -> Callable[[Sequence[Tensor]], list[Tensor]]:
        """Computes results of q, k, v and what is captured; the heads of a `group` of more than one are rows of q, and of results."""

        def made(tensors: Sequence[Tensor]) -> list[Tensor]:
            qkv, captured = tensors[:3], tensors[3:]
            if group > 1:
                qkv = all_in_order((unfold(qkv[0], group), *qkv[1:]), input_order(layout), 3)
            results = dispatch(self.kept.of(qkv, captured, self.values(listing())))
            if group == 1:
                return list(results)
            return [fold(x, group) for x in all_heads_first(results, output_order(layout), len([x for x in results if x.dim() == 4]))]

        return made


def _table_call(dense: Dense, captures: Sequence[Tensor]) -> tuple[TableCall, list[Tensor]]:
    """The call to keep, and `captures` with what it reads besides."""
    call, stand_in, values = dense
    captured = list(captures)
    return TableCall(keep_call(call, stand_in, captured), values), captured


def _can_leave_queries(task: Task, results: int, device: str) -> bool:
    """Whether a backward by all but q takes as many `results` of the forward pass: that by v alone may take fewer."""
    rest = task.by([place for place in task.places if place])
    return not rest.wrt or _results_of(rest, device) == results


def _of_pages(wrt: str) -> str:
    """What the program of pages names for it: its captures have other numbers, so that all of them stand for one."""
    return "" if "arg" in wrt else wrt


def is_in_order(program: Program) -> bool:
    """Whether gradients have the same bits in every run."""
    return program.deterministic or torch.are_deterministic_algorithms_enabled()


def _results_of(task: Task, device: str) -> int:
    """See `_BACKWARD`."""
    program: Program = task.program
    device, deterministic = program.device or device, is_in_order(program)
    key = (program.name, device, task.wrt, deterministic)
    if key not in _BACKWARD:
        try:
            made: Any = driver.compile_derivative(program.text, device, "bwd", task.wrt.split("+"), deterministic)
            known = 3 + len(program.names) + program.made
            _BACKWARD[key] = -1 if getattr(made, "slow", {}) else len(made.host.arguments) - known
        except (CompileError, UnsupportedError):
            _BACKWARD[key] = -1
    return _BACKWARD[key]
