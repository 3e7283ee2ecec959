"""Explains how attentions are computed: what was derived from a row, or what an online program does."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.mlir import ir
from attn_mlir.passes.cost import bytes_of, traffic, work
from attn_mlir.passes.derivation import Derivation, DerivationError, Row, accumulator_limit, derive, is_narrow, read_row
from attn_mlir.passes.derivation.emit import output_name
from attn_mlir.passes.derivation.expr import Expr, Graph, text
from attn_mlir.passes.derivation.plan import OUTPUT
from attn_mlir.passes.derivation.row import RowReader, score_names
from attn_mlir.passes.differentiation.describe import describe
from attn_mlir.passes.explain_linear import explain_chunks, explain_decay_sum, explain_recurrence, explain_scan
from attn_mlir.passes.fit_range import rounding_of, rounds_weights
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.magnitudes import scores_may_be_large
from attn_mlir.passes.regions import block_of, find_all, piece, pieces, scores_in


@dataclass(frozen=True, eq=False)
class OnlineView:
    """An online program as expressions, with the names of its leaves; `sources` names what each accumulator sums."""

    states: list[str]
    sources: list[str]
    outputs: list[str]
    init: list[Expr]
    steps: list[tuple[list[Expr], list[Expr], list[Expr]]]
    merge: tuple[list[Expr], list[Expr], list[Expr]] | None
    finalize: list[Expr]
    names: Mapping[Expr, str]
    graph: Graph


def explain(module: ir.Operation, max_accumulators: int = 2) -> str:
    """How every attention in `module` is (to be) computed, in words and formulas."""
    lines: list[str] = []
    for function in find_all(module, "func.func"):
        for op in find_all(function, "attn.attention", *_EXPLAINED):
            lines.append(f"@{ir.StringAttr(function.attributes['sym_name']).value}: {op.name}")
            told = _attention(op, max_accumulators) if op.name == "attn.attention" else _EXPLAINED[op.name](op)
            lines += [f"  {line}".rstrip() for line in told]
    return "\n".join(lines or ["no attention to explain"]) + "\n"


def _attention(op: ir.Operation, max_accumulators: int) -> Iterator[str]:
    row_piece = piece(op, "attn.row")
    if row_piece is None:
        return
    try:
        row = read_row(row_piece)
        outputs, sources = _output_names(op), _sources(op)
        yield from _row(row, outputs[row.o_count :], sources)
        derivation = derive(row, accumulator_limit(op, max_accumulators), is_narrow(op), scores_may_be_large(op))
    except DerivationError as error:
        yield f"no online form: {error}"
        return
    yield ""
    yield from _decisions(derivation, row, sources)
    program = derivation.program
    merge = program.merge
    view = OnlineView(
        program.names,
        [sources[accumulator.source] for accumulator in program.plan.accumulators],
        outputs,
        program.init,
        [(s.states, s.weights, s.scales) for s in program.steps],
        None if merge is None else (merge.states, merge.scales_a, merge.scales_b),
        [*program.o, *program.outputs],
        dict(zip(row.score_leaves, row.scores, strict=True)) | row.params.names,
        row.graph,
    )
    yield ""
    yield from _program(view)
    report = derivation.report
    yield ""
    ways = "block by block and merged" if merge else "block by block"
    yield f"confirmed in float64, {ways}: {report.points} values, largest relative error {report.error:.1e}"
    yield _cost(op, len(program.steps), len(program.names), len(program.plan.accumulators))
    yield from _eight_bit(op)
    if not is_eight_bit(ir.RankedTensorType(op.operands[2].type).element_type):
        yield ""
        yield from describe(op)


def _eight_bit(op: ir.Operation) -> Iterator[str]:
    """How weights that are rounded to 8 bits keep in range; nothing of other attentions."""
    if rounds_weights(op) is None:
        return
    yield ""
    yield from rounding_of(op)


def _cost(op: ir.Operation, kv_passes: int, states: int, accumulators: int) -> str:
    q, k, v = (operand.type for operand in op.operands)
    dims = [ir.RankedTensorType(t).shape[3] for t in (q, v)]
    products = [dims[0]] * (1 + len(pieces(op, "attn.product")))
    moved = traffic(bytes_of(q) + outputs_of(op) * bytes_of(op.results[0].type), bytes_of(k) + bytes_of(v), len(op.results) - 1)
    passes = f"{kv_passes} pass{'es' if kv_passes > 1 else ''} over K; {states} {'number' if states == 1 else 'numbers'} of state per row"
    return f"cost: {passes}; {work(products, [dims[1]] * accumulators, kv_passes)}; {moved}"


def _row(row: Row, outputs: Sequence[str], sources: Sequence[str]) -> Iterator[str]:
    yield "row"
    shown = dict(row.names)
    for reduction in row.reductions:
        yield f"  {reduction.name} = {reduction.kind} {_factor(text(reduction.value, shown))}"
    for number, weight in enumerate(row.weights):
        used = f"  (of {sources[weight.source]}, in {output_name(weight.output)})" if len(row.weights) > 1 else ""
        yield f"  p{number or ''} = {text(weight.node, shown)}{used}"
    for name, node in zip(outputs, row.outputs, strict=True):
        yield f"  {name} = {text(node, shown)}"


def _decisions(derivation: Derivation, row: Row, sources: Sequence[str]) -> Iterator[str]:
    plan = derivation.program.plan
    yield "derivation"
    for index, decision in sorted(plan.decisions.items(), key=lambda d: (d[0] <= OUTPUT, abs(d[0]))):
        name = row.reductions[index].name if index > OUTPUT else _sum_name(row, OUTPUT - index, sources)
        yield f"  {name}: {decision.method}, {decision.detail}"
    states = ", ".join(derivation.program.names) or "none"
    yield f"  passes over keys: {plan.kv_passes}; state per row: {states}; accumulators: {len(plan.accumulators)}"
    if derivation.choice:
        yield f"  range: {derivation.choice}"


def why_several(op: ir.Operation, max_accumulators: int = 2) -> list[str]:
    """Why the row of an `attn.attention` needs more than one pass over the keys: what does, and its reason; empty where it does not."""
    row_piece = piece(op, "attn.row")
    if row_piece is None:
        return []
    row, sources = read_row(row_piece), _sources(op)
    plan = derive(row, accumulator_limit(op, max_accumulators), is_narrow(op), scores_may_be_large(op)).program.plan
    late = sorted((index, decision) for index, decision in plan.decisions.items() if decision.kv_pass > 1)
    names = [row.reductions[index].name if index > OUTPUT else _sum_name(row, OUTPUT - index, sources) for index, _ in late]
    return [f"{name}: {decision.method}, {decision.detail}" for name, (_, decision) in zip(names, late, strict=True)]


def _sum_name(row: Row, number: int, sources: Sequence[str]) -> str:
    """What weight `number` makes: o, or where there are several its part of an output."""
    weight = row.weights[number]
    return f"{sources[weight.source]} in {output_name(weight.output)}" if len(row.weights) > 1 else "o"


def _online(op: ir.Operation) -> Iterator[str]:
    try:
        view = _view(op)
    except DerivationError as error:
        yield f"not understood: {error}"
        return
    states = ", ".join(view.states) or "none"
    accumulators = ir.IntegerAttr(op.attributes["accumulators"]).value
    yield f"passes over keys: {len(view.steps)}; state per row: {states}; accumulators: {accumulators}"
    yield from _program(view)


def _view(op: ir.Operation) -> OnlineView:
    graph = Graph()
    accumulators = ir.IntegerAttr(op.attributes["accumulators"]).value
    init, merge, finalize = piece(op, "attn.init"), piece(op, "attn.merge"), piece(op, "attn.finalize")
    if init is None or finalize is None:
        raise DerivationError("it lacks a piece")
    names: dict[Expr, str] = {}
    reader = _Pieces(graph, names)
    starts = reader.read(init, [])
    count = len(starts)
    arguments = list(block_of(finalize).arguments)[accumulators + 3 :]
    states = [location_name(a.location) or f"state{i}" for i, a in enumerate(arguments)]
    old = [graph.leaf("old", i) for i in range(count)]
    steps = []
    for step in pieces(op, "attn.step"):
        scores = list(block_of(step).arguments)[: scores_in(block_of(step))]
        leaves = [graph.leaf("s", k) for k in range(len(scores))]
        names.update(zip(leaves, score_names(scores), strict=True))
        got = reader.read(step, [*leaves, None, None, None, *old])
        rest = (len(got) - count) // 2
        steps.append((got[:count], got[count : count + rest], got[count + rest :]))
    merged = None
    if merge is not None:
        got = reader.read(merge, [graph.leaf(side, i) for side in "ab" for i in range(count)])
        merged = (got[:count], got[count : count + accumulators], got[count + accumulators :])
    end = reader.read(finalize, [*[graph.leaf("acc", i) for i in range(accumulators)], None, None, None, *old])
    sources = _sources(op)
    numbers = list(ir.DenseI64ArrayAttr(op.attributes["sources"])) if "sources" in op.attributes else [0] * accumulators
    return OnlineView(states, [sources[n] for n in numbers], _output_names(op), starts, steps, merged, end, names, graph)


@dataclass(eq=False)
class _Pieces:
    """Reads several pieces into one graph; parameters are told apart by where they were read."""

    graph: Graph
    names: dict[Expr, str]
    count: int = 0

    def read(self, owner: ir.Operation, leaves: Sequence[Expr | None]) -> list[Expr]:
        block = block_of(owner)
        known = {a: leaf for a, leaf in zip(block.arguments, leaves, strict=False) if leaf is not None}
        reader = RowReader(self.graph, block, known)
        results = reader.results()
        fresh = {leaf: self.graph.leaf("param", 1000 + self.count + i, leaf.type) for i, leaf in enumerate(reader.params.leaves)}
        self.names.update({fresh[leaf]: name for leaf, name in reader.params.names.items()})
        self.count += len(fresh)
        return [self.graph.substitute(n, fresh.get) for n in results]


def _program(view: OnlineView) -> Iterator[str]:
    graph, count = view.graph, len(view.states)
    old = {graph.leaf("old", i): name for i, name in enumerate(view.states)}
    if count:
        yield "init"
        for name, node in zip(view.states, view.init, strict=True):
            yield f"  {name} = {text(node, view.names)}"
    for number, (states, weights, scales) in enumerate(view.steps, start=1):
        names = {**view.names, **old}
        yield "step" if len(view.steps) == 1 else f"step {number}"
        yield from _assignments(states, [f"{n}'" for n in view.states], names)
        yield from _accumulations(weights, scales, view.sources, names)
    if view.merge is not None:
        yield from _merge(view)
    accumulators = {graph.leaf("acc", i): _acc(i, len(view.steps[-1][1])) for i in range(len(view.steps[-1][1]))}
    names = {**view.names, **old, **accumulators}
    yield "finalize"
    for name, node in zip(view.outputs, view.finalize, strict=True):
        yield f"  {name} = {text(node, names)}"


def _assignments(states: Sequence[Expr], targets: Sequence[str], names: dict[Expr, str]) -> Iterator[str]:
    """One line for each state that changes; later lines use its name."""
    for target, node in zip(targets, states, strict=True):
        if not node.is_leaf:
            yield f"  {target} = {text(node, names)}"
            names[node] = target


def _accumulations(weights: Sequence[Expr], scales: Sequence[Expr], sources: Sequence[str], names: Mapping[Expr, str]) -> Iterator[str]:
    # Only the last pass accumulates.
    for i, (weight, scale, source) in enumerate(zip(weights, scales, sources, strict=False)):
        acc = _acc(i, len(weights))
        yield f"  {acc}' = {_scaled(acc, scale, names)} + sum {_factor(text(weight, names))} {source}"


def _scaled(accumulator: str, scale: Expr, names: Mapping[Expr, str]) -> str:
    return accumulator if scale.is_const and scale.attr == 1.0 else f"{accumulator} * {_factor(text(scale, names))}"


def _merge(view: OnlineView) -> Iterator[str]:
    graph = view.graph
    states, scales_a, scales_b = view.merge or ([], [], [])
    names = dict(view.names)
    for side in "ab":
        names |= {graph.leaf(side, i): f"{name}_{side}" for i, name in enumerate(view.states)}
    yield "merge"
    yield from _assignments(states, view.states, names)
    for i, (a, b) in enumerate(zip(scales_a, scales_b, strict=True)):
        acc = _acc(i, len(scales_a))
        yield f"  {acc} = {_scaled(f'{acc}_a', a, names)} + {_scaled(f'{acc}_b', b, names)}"


def _factor(formula: str) -> str:
    """Parentheses around what is not one name, number or call."""
    if " " not in formula:
        return formula
    depth = 0
    for i, c in enumerate(formula):
        depth += (c == "(") - (c == ")")
        if depth == 0 and (c == " " or (c == ")" and i < len(formula) - 1)):
            return f"({formula})"
    return formula


def _acc(index: int, count: int) -> str:
    return "acc" if count == 1 else f"acc{index}"


def _output_names(op: ir.Operation) -> list[str]:
    """o and the further outputs, then the row outputs."""
    return [*map(output_name, range(outputs_of(op))), *[ir.StringAttr(a).value for a in op.attributes["outputs"]]]


def _sources(op: ir.Operation) -> list[str]:
    """The names of the tensors that are summed: v, and those of the terms or their numbers."""
    names = [location_name(term.operands[0].location) for term in pieces(op, "attn.term")]
    return ["v", *[name or f"v{number}" for number, name in enumerate(names, 1)]]


_EXPLAINED = {
    "attn.online": _online,
    "attn.linear_attention": explain_recurrence,
    "attn.chunk": explain_chunks,
    "attn.decay_sum": explain_decay_sum,
    "attn.state_scan": explain_scan,
    "attn.transition_scan": explain_scan,
}
