"""A call on one rank, traced: what its ranks tell each other, where positions lie, and which keys its queries see."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.options import Options
from attn_mlir.distributed.cut_program import CutProgram, cut_program
from attn_mlir.distributed.group import Ranks, agreed, digest
from attn_mlir.distributed.placement import Placement, Range, Ranges, placed
from attn_mlir.distributed.plan import Sees, Steps, steps
from attn_mlir.distributed.whole import Asked
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.program import TracedCall as Program
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.dispatch import needing_gradient
from attn_mlir.runtime.programs import program_of

_PLANS = 64
"""Plans of a program that are kept."""
_SHORTEST = 1024
"""The fewest queries of a range that is made so."""
_WIDE = {torch.float16, torch.bfloat16}
_SHOWN = ("the batch size", "the number of heads of q", "the number of heads of k", "the head dimension of q", "that of v")
_NAMES = (
    *_SHOWN,
    "the dtype, the device, the strategy or what needs a gradient",
    "the functions",
    "the placement or numbers that functions capture",
)


_LAST: dict[Any, list[list[int]]] = {}
"""What the ranks told last time where this one told the same."""


class Changed(Exception):
    """The ranks agree, but hold other positions than last time."""

    def __init__(self, every: list[list[int]]) -> None:
        super().__init__("the shards of other ranks have other lengths than in the last call")
        self.every = every


@dataclasses.dataclass(frozen=True)
class TracedCall:
    """A call on this rank's shards: the traced program, the captured values, and where everything lies."""

    entry: Entry
    captures: list[Any]
    problem: Problem
    program: CutProgram
    queries: Ranges
    keys: Ranges
    wanted: list[int]
    """Which of q, k, v and the captured values need a gradient."""
    element_size: int
    confirm: Callable[[], None]
    """Waits for what the other ranks told; raises ArgumentError where they differ, and `Changed` where they are other than last time."""


def trace_call(
    problem: Problem,
    qkv: tuple[Tensor, Tensor, Tensor],
    call: Asked,
    ranks: Ranks,
    placement: Placement,
    same: bool = False,
    every: Any = None,
) -> TracedCall:
    """Traces the call, tells the other ranks, and hears of theirs. Raises on all ranks where they differ.

    `same`: all ranks have the same queries, the last positions of the sequence. `every`: what they told.
    """
    q = qkv[0]
    target = call.device or problem.device_type
    narrow = target != "cpu" and q.dtype in _WIDE
    inputs = dataclasses.replace(problem.inputs, element=problem.inputs.element if narrow or q.dtype not in _WIDE else "f32", parts=True)
    options = Options(call.functions, call.scale, lse=call.return_lse, states=call.return_states)
    entry, scan, factor = options.find(inputs, problem.device)
    places = {"q_offset": 0, "kv_offset": 0, "q_total": 0, "kv_total": 0}
    captures = entry.captures(scan, factor, places)
    wanted = needing_gradient([*qkv, *captures])
    whole = program_of(entry)
    wanted = [i for i in wanted if whole.takes_derivative(i)]
    wrt = "+".join(whole.argument(i) for i in wanted)
    numbers = [value for value in captures if not isinstance(value, Tensor)]
    sizes = problem.sizes
    told = [
        *(sizes[name] for name in ("B", "Hq", "Hkv", "D", "Dv")),
        digest(str(q.dtype), target, wrt, call.deterministic, call.strategy),
        digest(entry.traced.text),
        digest(placement, numbers, [tuple(x.shape) for x in captures if isinstance(x, Tensor)]),
        sizes["Sq"],
        sizes["Skv"],
    ]
    key = (ranks.rank, ranks.count, id(ranks.group), *told)
    coming = None if every is not None else ranks.told(told, problem.device)
    every = every or _LAST.get(key)  # that they are as last time is found out while kernels run

    def confirm(expected: list[list[int]] | None = every) -> None:
        found = expected if coming is None or expected is None else coming.wait()
        if found is not None and found != expected:
            agreed(found, _NAMES, _SHOWN)
            raise Changed(found)

    if every is None:
        every = coming.wait() if coming is not None else []
        agreed(every, _NAMES, _SHOWN)
        if len(_LAST) >= _PLANS:
            _LAST.clear()
    _LAST[key] = every
    keys = placed(placement, [each[-1] for each in every], "k and v")
    totals = {"q_total": sum(each[-2] for each in every), "kv_total": sum(each[-1] for each in every)}
    if same:
        agreed([[each[-2]] for each in every], ["the number of queries"], ["the number of queries"])
        totals["q_total"] = totals["kv_total"]
        begin = totals["kv_total"] - sizes["Sq"]
        if begin < 0:
            raise ArgumentError(f"there are {sizes['Sq']} queries, the last positions of a sequence of {totals['kv_total']} keys: too many")
        queries = (((begin, begin + sizes["Sq"]),) if sizes["Sq"] else (),) * ranks.count
    else:
        queries = placed(placement, [each[-2] for each in every], "q")
    captures = entry.captures(scan, factor, {**places, **totals})
    program = cut_program(entry.traced, target, wrt, call.deterministic)
    return TracedCall(
        entry, captures, dataclasses.replace(problem, inputs=inputs), program, queries, keys, wanted, q.element_size(), confirm
    )


def planned(traced: TracedCall, ranks: Ranks) -> Steps:
    """What this rank does step by step, found once for the same positions and numbers."""

    def make() -> Steps:
        sees = seen_by(traced.program, traced.captures, traced.problem.sizes)
        return steps(ranks.rank, pieces(traced, ranks), traced.keys, sees)

    return remembered(traced, ("steps", ranks.rank), make)


def remembered(traced: TracedCall, what: Any, make: Callable[[], Any]) -> Any:
    """What `make` gives, once for the same positions, sizes and numbers, by which it and `what` are told apart."""
    plans = traced.program.plans
    numbers = tuple(value for value in traced.captures if not isinstance(value, Tensor))
    shapes = tuple(tuple(value.shape) for value in traced.captures if isinstance(value, Tensor))
    key = (what, traced.queries, traced.keys, numbers, shapes, tuple(traced.problem.sizes.values()))
    if key not in plans:
        if len(plans) >= _PLANS:
            plans.clear()
        plans[key] = make()
    return plans[key]


def pieces(traced: TracedCall, ranks: Ranks) -> Ranges:
    """The queries, those of this rank in two ranges at least, so that work on one of them begins before anything is exchanged."""
    own = traced.queries[ranks.rank]
    if len(own) == 1 and own[0][1] - own[0][0] >= 2 * _SHORTEST:
        begin, end = own[0]
        middle = begin + (end - begin) // 2 // _SHORTEST * _SHORTEST
        own = ((begin, middle), (middle, end))
    return (*traced.queries[: ranks.rank], own, *traced.queries[ranks.rank + 1 :])


def seen_by(program: CutProgram, captures: Sequence[Any], sizes: dict[str, int]) -> Sees:
    """What queries see of keys, by the program's own bounds."""
    bounds = program.bounds
    known: dict[tuple[Range, Range], Range] = {}

    def sees(query: Range, key: Range) -> Range:
        if bounds is None or query[0] == query[1] or key[0] == key[1]:
            return key
        found = known.get((query, key))
        if found is None:
            rows, columns = query[1] - query[0], key[1] - key[0]
            shapes = [
                torch.empty(0).expand(sizes["B"], heads, length, 0)
                for heads, length in ((sizes["Hq"], rows), *[(sizes["Hkv"], columns)] * 2)
            ]
            indices = [torch.arange(sizes["B"]).reshape(-1, 1), torch.arange(sizes["Hq"]).reshape(1, -1)]
            outer = [*shapes, *program.moved(captures, query[0], key[0])]
            with torch.no_grad():
                begin, _, _, end = bounds(outer, [*indices, 0, rows], torch.float64)
            first, last = int(torch.as_tensor(begin).min()), int(torch.as_tensor(end).max())
            found = known[query, key] = (key[0] + max(first, 0), key[0] + max(min(last, columns), first, 0))
        return found

    return sees


def of_pass(traced: TracedCall, one: Program, qkv: tuple[Tensor, Tensor, Tensor], rows: Sequence[Tensor]) -> TracedCall:
    """The call of one pass over keys; `rows` are what earlier ones gave."""
    captures = [*traced.captures, *rows]
    entry = Entry(one)
    whole = program_of(entry)
    wanted = [i for i in needing_gradient([*qkv, *captures]) if whole.takes_derivative(i)]
    wrt = "+".join(whole.argument(i) for i in wanted)
    made = cut_program(one, traced.program.device, wrt, traced.program.deterministic)
    return dataclasses.replace(traced, entry=entry, captures=captures, program=made, wanted=wanted)
