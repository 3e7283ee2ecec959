"""Makes `attn.finalize` right for rows that have no key: o = 0 and lse = -inf."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation.emit import output_name
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.derivation.program import LOWEST
from attn_mlir.passes.derivation.row import RowReader
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.magnitudes import scores_may_be_large
from attn_mlir.passes.regions import block_of, find_all, inline, piece, pieces, scores_in

ROWS = 16


@dataclass(frozen=True)
class GuardEmptyRows(Pass):
    """Selects o = 0 and lse = -inf for fully masked rows, where the formulas do not give that by themselves.

    Nothing changes where `rows_nonempty = true` proves that there are none.

    `every`: also where the formulas give it, if they compute anything: their derivatives may be no numbers there.

    A fully masked row is told by a count, or by a maximum that is still the lowest number. Where scores may be that number, too, sums
    must be 0 as well.
    """

    every: bool = False

    name = "attn-guard-empty-rows"

    def run(self, module: ir.Operation) -> bool:
        for online in find_all(module, "attn.online"):
            proof = online.attributes["rows_nonempty"] if "rows_nonempty" in online.attributes else None
            if proof is None or not ir.BoolAttr(proof).value:
                _guard(online, self.every)
        return True


def _guard(online: ir.Operation, every: bool) -> None:
    finalize = piece(online, "attn.finalize")
    if finalize is None:
        return
    names: list[str | None] = [*[None] * outputs_of(online), *[ir.StringAttr(a).value for a in online.attributes["outputs"]]]
    wrong = _wrong_outputs(online, finalize, names)
    if every:
        computed = [not isinstance(value.owner, ir.Block) for value in block_of(finalize).operations[-1].operation.operands]
        wrong = sorted({*wrong, *[i for i, name in enumerate(names) if name in (None, "lse") and computed[i]]})
    if not wrong:
        return
    state, identity = _telling_state(online) or _add_count(online)
    finalize = piece(online, "attn.finalize") or finalize
    block = block_of(finalize)
    last = block.operations[-1].operation
    values = list(last.operands)
    accumulators = ir.IntegerAttr(online.attributes["accumulators"]).value
    argument = block.arguments[accumulators + 3 + state]
    with last.location, ir.InsertionPoint(last):
        same = _is(argument, identity)
        for sum_ in _sums(online) if identity and scores_may_be_large(online) else []:
            same = arith.andi(same, _is(block.arguments[accumulators + 3 + sum_], 0.0))
        for i in wrong:
            value = -np.inf if names[i] == "lse" else 0.0
            with ir.Location.name(names[i] or output_name(i), last.location):
                values[i] = arith.select(same, arith.constant(values[i].type, value), values[i])
        build.yield_(values)
    last.erase()


def _is(state: ir.Value, number: float) -> ir.Value:
    return arith.cmpf(arith.CmpFPredicate.OEQ, state, arith.constant(state.type, number))


def _sums(online: ir.Operation) -> list[int]:
    """The states that begin as 0: where the lowest number masks scores it is a row's maximum, but its weights have a sum."""
    initial = _initial_states(online)
    return [number for number, value in enumerate(initial) if (value == 0).all()]


def _wrong_outputs(online: ir.Operation, finalize: ir.Operation, names: list[str | None]) -> list[int]:
    """Which results are not as they should be when the states are still the initial ones; all, where that is unknown.

    Row outputs have names, sums of weighted tensors have none.
    """
    try:
        got = _finalized_initial(online, finalize)
    except DerivationError:
        return list(range(len(names)))
    return [i for i, (name, value) in enumerate(zip(names, got, strict=True)) if not _is_right(name, value)]


def _is_right(name: str | None, value: Array) -> bool:
    if name is None:
        return bool((value == 0).all())
    return bool((value == -np.inf).all()) if name == "lse" else bool(np.isfinite(value).all())


def _finalized_initial(online: ir.Operation, finalize: ir.Operation) -> list[Array]:
    states = _initial_states(online)
    accumulators = ir.IntegerAttr(online.attributes["accumulators"]).value
    graph, block = Graph(), block_of(finalize)
    arguments = list(block.arguments)
    known = {a: graph.leaf("acc", i) for i, a in enumerate(arguments[:accumulators])}
    known |= {a: graph.leaf("old", i) for i, a in enumerate(arguments[accumulators + 3 :])}
    reader = RowReader(graph, block, known)
    results = reader.results()
    dtype = _dtype(arguments[0].type)
    env = {graph.leaf("acc", i): np.zeros((ROWS, 1), dtype) for i in range(accumulators)}
    env |= {graph.leaf("old", i): x for i, x in enumerate(states)}
    evaluator = Evaluator(env | _random_parameters(reader, dtype), None, dtype)
    return [evaluator(n) for n in results]


def _initial_states(online: ir.Operation) -> list[Array]:
    init = piece(online, "attn.init")
    if init is None:
        return []
    reader = RowReader(Graph(), block_of(init), {})
    results = reader.results()
    yielded = list(block_of(init).operations[-1].operation.operands)
    dtype = _dtype(yielded[0].type) if yielded else np.float32
    evaluator = Evaluator(_random_parameters(reader, dtype), None, dtype)
    return [evaluator(n) for n in results]


def _random_parameters(reader: RowReader, dtype: type) -> dict[Expr, Array]:
    """Numbers for what does not vary along a row. Saved values of the row are, without keys, also 0, -inf and not a number."""
    rng = np.random.default_rng(3)
    out: dict[Expr, Array] = {}
    for leaf in reader.params.leaves:
        drawn = rng.normal(size=(ROWS, 1))
        if leaf.type != "i1" and reader.params.is_saved(leaf):
            drawn[::4], drawn[1::4], drawn[2::4] = 0, -np.inf, np.nan
        out[leaf] = drawn > 0 if leaf.type == "i1" else drawn.astype(dtype)
    return out


def _dtype(type_: ir.Type) -> type:
    return np.float64 if isinstance(type_, ir.F64Type) else np.float32


def _telling_state(online: ir.Operation) -> tuple[int, float] | None:
    """A state that keeps its initial value exactly as long as no key was seen: a count, or a maximum or minimum."""
    init = piece(online, "attn.init")
    if init is None:
        return None
    graph = Graph()
    try:
        initial = RowReader(graph, block_of(init), {}).results()
        updates = [_updates(graph, step, len(initial)) for step in pieces(online, "attn.step")]
    except DerivationError:
        return None
    for kind in ("sum", "max", "min"):
        for k, start in enumerate(initial):
            old = graph.leaf("old", k)
            changed = [u[k] for u in updates if u[k] is not old]
            if start.is_const and len(changed) == 1 and _tells(changed[0], old, kind, float(start.attr)):  # type: ignore[arg-type]
                return k, float(start.attr)  # type: ignore[arg-type]
    return None


def _updates(graph: Graph, step: ir.Operation, states: int) -> list[Expr]:
    block = block_of(step)
    arguments = list(block.arguments)
    scores = scores_in(block)
    known = {a: graph.leaf("s", k) for k, a in enumerate(arguments[:scores])}
    known |= {a: graph.leaf("old", i) for i, a in enumerate(arguments[scores + 3 :])}
    return RowReader(graph, block, known).results()[:states]


def _tells(update: Expr, old: Expr, kind: str, start: float) -> bool:
    op = {"sum": "arith.addf", "max": "arith.maximumf", "min": "arith.minimumf"}[kind]
    if update.op != op or old not in update.args:
        return False
    block = update.args[1] if update.args[0] is old else update.args[0]
    if block.op != "reduce" or block.attr != kind:
        return False
    if kind == "sum":
        value = block.args[0]
        return start == 0 and value.is_const and float(value.attr) > 0  # type: ignore[arg-type]
    return start <= LOWEST if kind == "max" else start >= -LOWEST


def _add_count(online: ir.Operation) -> tuple[int, float]:
    """Adds a state that counts the keys of the row; returns its index and its value for none."""
    init, merge = piece(online, "attn.init"), piece(online, "attn.merge")
    if init is None:
        raise DerivationError("an 'attn.online' without 'attn.init'")
    states = len(list(block_of(init).operations[-1].operation.operands))
    type_ = _score_type(online)
    _extend_yield(init, states, lambda: arith.constant(type_, 0.0))
    for i, step in enumerate(pieces(online, "attn.step")):
        count = _add_argument(step, type_)
        _extend_yield(step, states, (lambda c=count: _counted(c)) if i == 0 else (lambda c=count: c))
    finalize = piece(online, "attn.finalize")
    if finalize is not None:
        _add_argument(finalize, type_)
    if merge is not None:
        _extend_merge(merge, states, type_)
    return states, 0.0


def _score_type(online: ir.Operation) -> ir.Type:
    return block_of(pieces(online, "attn.step")[0]).arguments[0].type


def _counted(count: ir.Value) -> ir.Value:
    return arith.addf(count, build.reduce(arith.constant(count.type, 1.0), "sum"))


def _add_argument(owner: ir.Operation, type_: ir.Type) -> ir.Value:
    with owner.location:
        return block_of(owner).add_argument(type_, ir.Location.name("count", owner.location))


def _extend_yield(owner: ir.Operation, position: int, make: Callable[[], ir.Value]) -> None:
    last = block_of(owner).operations[-1].operation
    values = list(last.operands)
    with last.location, ir.InsertionPoint(last):
        with ir.Location.name("count", last.location):
            values.insert(position, make())
        build.yield_(values)
    last.erase()


def _extend_merge(merge: ir.Operation, states: int, type_: ir.Type) -> None:
    """Rebuilds the merge: its new arguments stand in the middle and at the end."""
    block = block_of(merge)
    names = [location_name(a.location) or f"state{i}" for i, a in enumerate(block.arguments)]
    names = [*names[:states], "count_a", *names[states:], "count_b"]
    arguments = [(name, type_) for name in names]

    def body(*values: ir.Value) -> list[ir.Value]:
        old = [*values[:states], *values[states + 1 : -1]]
        results = inline(block, old)
        total = arith.addf(values[states], values[-1])
        return [*results[:states], total, *results[states:]]

    with merge.location, ir.InsertionPoint(merge):
        build.piece("merge", arguments, body)
    merge.erase()
