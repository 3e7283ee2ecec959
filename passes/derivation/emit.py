"""Writes expressions as MLIR: the pieces of an `attn.online` from a derived program."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.fastmath import attributes_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.expr import BOOL, FLOAT, Expr
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.row import Params, Row
from attn_mlir.passes.locations import place_of
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import clone_op, scores_in

INDICES = ("b", "h", "q_idx")


def output_name(number: int) -> str:
    """What an output is called: o, o1, o2..."""
    return f"o{number}" if number else "o"


@dataclass(eq=False)
class FormEmitter:
    """Emits into one piece. `known` maps leaves to values; parameters are recomputed from the row's own ops."""

    type: ir.Type
    known: dict[Expr, ir.Value]
    params: Params | None = None
    indices: Sequence[ir.Value] = ()
    names: Mapping[Expr, str] = field(default_factory=dict)
    places: Mapping[Expr, Any] = field(default_factory=dict)
    """Locations of what the author wrote; the others have the current one."""
    _copies: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def emit(self, node: Expr) -> ir.Value:
        for n in deepest_first(node, self.known, lambda n: n.args):
            if n.op == "param":
                self.known[n] = self._parameter(n)
                continue
            name, place = self.names.get(n), self.places.get(n, ir.Location.current)
            with ir.Location.name(name, place) if name else place:
                self.known[n] = self._emit(n, [self.known[a] for a in n.args])
        return self.known[node]

    def _emit(self, n: Expr, args: list[ir.Value]) -> ir.Value:
        if n.is_const:
            if n.type == BOOL:
                return arith.constant(ir.IntegerType.get_signless(1), int(bool(n.attr)))
            return arith.constant(self.type, float(n.attr))  # type: ignore[arg-type]
        if n.op == "reduce":
            return build.reduce(args[0], str(n.attr))
        if n.op == "arith.cmpf":
            return arith.cmpf(arith.CmpFPredicate(n.attr), *args)
        result = self.type if n.type == FLOAT else ir.Type.parse(n.type)
        return ir.Operation.create(n.op, results=[result], operands=args, attributes=attributes_of(n.attr)).result

    def _parameter(self, n: Expr) -> ir.Value:
        if self.params is None:
            raise KeyError(n.attr)
        block = self.params.block
        self._copies.update(zip(list(block.arguments)[scores_in(block) :], self.indices, strict=False))
        return self._copy(self.params.values[int(n.attr)])  # type: ignore[call-overload]

    def _copy(self, value: ir.Value) -> ir.Value:
        """`value` of the row, with the ops of the row that make it, at the insertion point."""
        block = self.params.block if self.params else None

        def operands(value: ir.Value) -> list[ir.Value]:
            inside = not isinstance(value, ir.BlockArgument) and value.owner.operation.block == block
            return list(value.owner.operation.operands) if inside else []

        for v in deepest_first(value, self._copies, operands):
            if isinstance(v, ir.BlockArgument) or v.owner.operation.block != block:
                self._copies[v] = v
            else:
                clone_op(v.owner.operation, self._copies)
        return self._copies[value]


@dataclass(eq=False)
class PieceWriter:
    """Builds the pieces of one program at the insertion point."""

    row: Row
    program: OnlineRow
    type: ir.Type
    _places: dict[Expr, ir.Location] = field(default_factory=dict)

    def write(self) -> None:
        self._init()
        for i in range(len(self.program.steps)):
            self._step(i)
        if self.program.merge is not None:
            self._merge()
        self._finalize()

    def _arguments(self, names: Sequence[str], suffix: str = "") -> list[tuple[str, ir.Type]]:
        return [(name + suffix, self.type) for name in names]

    def _indices(self) -> list[tuple[str, ir.Type]]:
        return [(name, ir.IndexType.get()) for name in INDICES]

    def _emitter(
        self, leaves: Sequence[Expr], values: Sequence[ir.Value], indices: Sequence[ir.Value], names: Mapping[Expr, str]
    ) -> FormEmitter:
        places = {**self.row.graph.places, **self._places}
        return FormEmitter(self.type, dict(zip(leaves, values, strict=True)), self.row.params, indices, names, places)

    def _init(self) -> None:
        def body(*indices: ir.Value) -> list[ir.Value]:
            names = dict(zip(self.program.init, self.program.names, strict=True))
            emitter = self._emitter([], [], indices, names)
            return [emitter.emit(n) for n in self.program.init]

        build.piece("init", self._indices(), body)

    def _step(self, index: int) -> None:
        program, step = self.program, self.program.steps[index]
        names = {n: f"{name}_new" for n, name in zip(step.states, program.names, strict=True) if not n.is_leaf}
        self._place(step.states)
        names |= {n: "weight" for n in step.weights if not n.is_leaf and n not in names}
        names |= {n: "rescale" for n in step.scales if not n.is_leaf}

        scores = self.row.score_leaves

        def body(*values: ir.Value) -> list[ir.Value]:
            count = len(scores)
            leaves = [*scores, *program.side("old")]
            emitter = self._emitter(leaves, [*values[:count], *values[count + 3 :]], values[count : count + 3], names)
            return [emitter.emit(n) for n in (*step.states, *step.weights, *step.scales)]

        build.piece("step", [*self._arguments(self.row.scores), *self._indices(), *self._arguments(program.names)], body)

    def _place(self, states: Sequence[Expr]) -> None:
        """States that stand for a reduction are where that was written."""
        written = {r.name: place for r in self.row.reductions if (place := place_of(r.location)) is not None}
        named = zip(states, self.program.names, strict=True)
        self._places |= {n: written[name] for n, name in named if name in written and not n.is_leaf}

    def _merge(self) -> None:
        program, merge = self.program, self.program.merge
        if merge is None:
            return
        names = {n: name for n, name in zip(merge.states, program.names, strict=True) if not n.is_leaf}

        def body(*values: ir.Value) -> list[ir.Value]:
            emitter = self._emitter([*program.side("a"), *program.side("b")], values, [], names)
            return [emitter.emit(n) for n in (*merge.states, *merge.scales_a, *merge.scales_b)]

        build.piece("merge", [*self._arguments(program.names, "_a"), *self._arguments(program.names, "_b")], body)

    def _finalize(self) -> None:
        program, count = self.program, len(self.program.plan.accumulators)
        accumulators = ["acc"] if count == 1 else [f"acc{i}" for i in range(count)]

        def body(*values: ir.Value) -> list[ir.Value]:
            states = values[count + 3 :]
            leaves = [*program.side("acc", count), *program.side("old")]
            names = {node: output_name(n) for n, node in enumerate(program.o) if not node.is_leaf}
            emitter = self._emitter(leaves, [*values[:count], *states], values[count : count + 3], names)
            return [emitter.emit(n) for n in (*program.o, *program.outputs)]

        build.piece("finalize", [*self._arguments(accumulators), *self._indices(), *self._arguments(program.names)], body)
