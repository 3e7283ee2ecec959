"""A call on one rank, traced: what its ranks tell each other, where positions lie, and which keys its queries see."""

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.eight_bit import refuse_eight_bit
from attn_mlir.api.options import Options
from attn_mlir.distributed.cut_program import CutProgram, cut_program, document_of
from attn_mlir.distributed.group import Ranks, agreed, digest
from attn_mlir.distributed.placement import Placement, Range, Ranges, placed
from attn_mlir.distributed.plan import RingSteps, Sees, steps
from attn_mlir.distributed.whole import Asked
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.given import DOCUMENT
from attn_mlir.frontend.program import Traced as Program
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.dispatch import needing_gradient
from attn_mlir.runtime.programs import program_of

_PLANS = 64
"""Plans of a program that are kept."""
_WIDE = {torch.float16, torch.bfloat16}
_SHOWN = ("the batch size", "the number of heads of q", "the number of heads of k", "the head dimension of q", "that of v")
_NAMES = (
    *_SHOWN,
    "the dtype, the device, the strategy or what needs a gradient",
    "the functions",
    "the placement, numbers that functions capture, or cu_seqlens",
    "the probability or the seed of dropout",
)
_SEEDS = len(_NAMES) - 1
"""Where the digest of dropout stands, which differs from call to call."""
_NOWHERE = {"q_offset": 0, "kv_offset": 0, "q_total": 0, "kv_total": 0, DOCUMENT: 0}


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
    confirm: Callable[[], None]
    """Waits for what the other ranks told; raises ArgumentError where they differ, and `Changed` where they are other than last time."""
    documents: tuple[int, ...] = ()
    """Where packed documents begin, and the last one ends; `queries` and `keys` are then each within one, and those of cut ones only."""


@dataclasses.dataclass(frozen=True)
class FoundCall:
    """What a rank has found out of a call before it tells others."""

    problem: Problem
    entry: Entry
    target: str
    wanted: list[int]
    wrt: str
    captures: Callable[[dict[str, int]], list[Any]]
    """The captured values, where the parts lie at these positions."""
    told: list[int]
    """What must be the same on all ranks, in the order of `_NAMES`, and the lengths of q and of k."""


def find_call(
    problem: Problem, qkv: tuple[Tensor, Tensor, Tensor], call: Asked, placement: Placement, documents: Sequence[int] = ()
) -> FoundCall:
    """Traces the functions for parts of a sequence, or of documents."""
    refuse_eight_bit(qkv, "attention over several processes")
    q = qkv[0]
    target = call.device or problem.device_type
    inputs = dataclasses.replace(problem.inputs, element=element_of(problem, target, q), parts=True, documents=bool(documents))
    options = Options(call.functions, call.scale, lse=call.return_lse, states=call.return_states)
    entry, scan, factor = options.find(inputs, problem.device, call.dropout.form)

    def captures(places: dict[str, int]) -> list[Any]:
        return entry.captures(scan, factor, {**places, **call.dropout.values})

    values = captures(_NOWHERE)
    whole = program_of(entry)
    wanted = [i for i in needing_gradient([*qkv, *values]) if whole.takes_derivative(i)]
    return found_call(dataclasses.replace(problem, inputs=inputs), q, call, placement, (entry, target, wanted, captures), documents)


def element_of(problem: Problem, target: str, q: Tensor) -> str:
    """The element type of the program: on a CPU, 16 bits become 32."""
    return problem.inputs.element if target != "cpu" or q.dtype not in _WIDE else "f32"


def found_call(
    problem: Problem, q: Tensor, call: Asked, placement: Placement, traced: tuple[Entry, str, list[int], Any], documents: Sequence[int] = ()
) -> FoundCall:
    """What is told of a traced call: of its program, the device, what needs a gradient, and the captured values."""
    entry, target, wanted, captures = traced
    values, whole, sizes = captures(_NOWHERE), program_of(entry), problem.sizes
    wrt = "+".join(whole.argument(i) for i in wanted)
    told = [
        *(sizes[name] for name in ("B", "Hq", "Hkv", "D", "Dv")),
        digest(str(q.dtype), target, wrt, call.deterministic, call.strategy),
        digest(entry.traced.text),
        digest(placement, numbers_of(entry, values), [tuple(x.shape) for x in values if isinstance(x, Tensor)], list(documents)),
        digest(*call.dropout.values.values()),
        sizes["Sq"],
        sizes["Skv"],
    ]
    return FoundCall(problem, entry, target, wanted, wrt, captures, told)


def numbers_of(entry: Entry, values: Sequence[Any]) -> list[Any]:
    """The captured numbers, but for those of dropout, on which no plan depends."""
    given = zip(entry.traced.captures, values, strict=True)
    return [value for captured, value in given if not isinstance(value, Tensor) and captured.source[0] != "dropout"]


def trace_call(
    problem: Problem,
    qkv: tuple[Tensor, Tensor, Tensor],
    call: Asked,
    ranks: Ranks,
    placement: Placement,
    every: Any = None,
    documents: tuple[int, ...] = (),
) -> TracedCall:
    """Traces the call, tells the other ranks, and hears of theirs, or of `every`. Raises on all ranks where they differ."""
    with ranks.before_told(problem.device) if every is None else contextlib.nullcontext():
        made = find_call(problem, qkv, call, placement, documents)
    return agreed_call(made, ranks, placement, call.deterministic, every=every, documents=documents)


def agreed_call(
    made: FoundCall,
    ranks: Ranks,
    placement: Placement,
    deterministic: bool,
    *,
    same: bool = False,
    every: Any = None,
    documents: tuple[int, ...] = (),
) -> TracedCall:
    """Tells the other ranks of a call. Raises on all ranks where they differ.

    `same`: all ranks have the same queries, the last positions of the sequence. `every`: what they told.
    """
    problem = made.problem
    told = made.told
    key = (ranks.rank, ranks.count, id(ranks.group), *told[:_SEEDS], *told[_SEEDS + 1 :])
    coming = None if every is not None else ranks.told("decode_attention" if same else "ring_attention", told, problem.device)
    every = every or _LAST.get(key)  # that they are as last time is found out while kernels run

    def confirm(expected: list[list[int]] | None = every) -> None:
        found = expected if coming is None or expected is None else coming.wait()
        if found is not None and found != expected:
            agreed(found, _NAMES, _SHOWN)
            if expected is None or any(x[-2:] != y[-2:] for x, y in zip(found, expected, strict=True)):
                raise Changed(found)

    if every is None:
        every = coming.wait() if coming is not None else []
        agreed(every, _NAMES, _SHOWN)
        if len(_LAST) >= _PLANS:
            _LAST.clear()
    _LAST[key] = every
    keys = placed(placement, [each[-1] for each in every], "k and v")
    totals = {"q_total": sum(each[-2] for each in every), "kv_total": sum(each[-1] for each in every)}
    length = problem.sizes["Sq"]
    if same:
        agreed([[each[-2]] for each in every], ["the number of queries"], ["the number of queries"])
        totals["q_total"] = totals["kv_total"]
        begin = totals["kv_total"] - length
        if begin < 0:
            raise ArgumentError(f"there are {length} queries, the last positions of a sequence of {totals['kv_total']} keys: too many")
        queries = (((begin, begin + length),) if length else (),) * ranks.count
    else:
        queries = placed(placement, [each[-2] for each in every], "q")
    captures = made.captures({**_NOWHERE, **totals})
    program = cut_program(made.entry.traced, made.target, made.wrt, deterministic)
    return TracedCall(made.entry, captures, problem, program, queries, keys, made.wanted, confirm, documents)


def planned(traced: TracedCall, ranks: Ranks) -> RingSteps:
    """What this rank does step by step, found once for the same positions and numbers."""

    def make() -> RingSteps:
        sees = seen_by(traced.program, traced.captures, traced.problem.sizes, traced.documents)
        return steps(ranks.rank, traced.queries, traced.keys, sees)

    return remembered(traced, ("steps", ranks.rank), make)


def remembered(traced: TracedCall, what: Any, make: Callable[[], Any]) -> Any:
    """What `make` gives, once for the same positions, sizes and numbers, by which it and `what` are told apart."""
    plans = traced.program.plans
    numbers = tuple(numbers_of(traced.entry, traced.captures))
    shapes = tuple(tuple(value.shape) for value in traced.captures if isinstance(value, Tensor))
    key = (what, traced.queries, traced.keys, traced.documents, numbers, shapes, tuple(traced.problem.sizes.values()))
    if key not in plans:
        if len(plans) >= _PLANS:
            plans.clear()
        plans[key] = make()
    return plans[key]


def seen_by(program: CutProgram, captures: Sequence[Any], sizes: dict[str, int], documents: Sequence[int] = ()) -> Sees:
    """What queries see of keys, by the program's own bounds; of packed documents each range is within one."""
    bounds = program.bounds
    known: dict[tuple[Range, Range], Range] = {}

    def sees(query: Range, key: Range) -> Range:
        if documents and document_of(documents, query[0]) != document_of(documents, key[0]):
            return key[0], key[0]
        if bounds is None or query[0] == query[1] or key[0] == key[1]:
            return key
        found = known.get((query, key))
        if found is None:
            rows, columns = query[1] - query[0], key[1] - key[0]
            shapes = [
                torch.empty(0, device="cpu").expand(sizes["B"], heads, length, 0)
                for heads, length in ((sizes["Hq"], rows), *[(sizes["Hkv"], columns)] * 2)
            ]
            indices = [torch.arange(sizes["B"], device="cpu").reshape(-1, 1), torch.arange(sizes["Hq"], device="cpu").reshape(1, -1)]
            outer = [*shapes, *program.moved(captures, query[0], key[0], documents=documents)]
            with torch.no_grad():
                begin, _, _, end = bounds(outer, [*indices, 0, rows], torch.float64)
            first, last = int(torch.as_tensor(begin, device="cpu").min()), int(torch.as_tensor(end, device="cpu").max())
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
