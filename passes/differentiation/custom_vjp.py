"""The gradients of an online attention whose user wrote the weight of a key and the gradient of its score.

What is written is taken as it is: p = weight(s, rows), ds = dscore(dp, p, <do, o>, rows). Derived is only what follows from
them: dv from p, and the gradients of q, k and of the tensors that `attn.score` and the mods read from ds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.expr import Expr, Graph, text
from attn_mlir.passes.derivation.row import RowReader
from attn_mlir.passes.differentiation.functions import Derivatives
from attn_mlir.passes.differentiation.host import Primal
from attn_mlir.passes.differentiation.model import PAIR, ModelReduction, RowModel, RowValue
from attn_mlir.passes.differentiation.read import PieceReader
from attn_mlir.passes.differentiation.reverse import Reverse, Seeds
from attn_mlir.passes.regions import block_of, inline, piece

_INDICES = ("b", "h", "q_idx", "kv_idx")


class OnlinePrimal(Primal):
    """A function that holds an `attn.online`."""

    @property
    def score(self) -> ir.Type:
        return block_of(piece(self.attention, "attn.step") or self.attention).arguments[0].type


@dataclass(eq=False, kw_only=True)
class CustomDerivatives(Derivatives):
    """`weight` and `dscore` are functions of scalars.

    weight: (score, b, h, q_idx, kv_idx, rows..., inputs...) -> p. dscore: (dp, p, b, h, q_idx, kv_idx, doosum, rows..., inputs...)
    -> ds. `rows` are the row outputs of the attention, `inputs` the arguments of its function.
    """

    weight: ir.Operation
    dscore: ir.Operation

    @cached_property
    def program(self) -> RowModel:
        """The scores; nothing is known of the row."""
        graph = Graph()
        program = RowModel(graph, [("q", "k")], [], [], [])
        program.rows += [RowValue(name, graph.const(0.0)) for name in self.primal.outputs]
        x, score = graph.leaf("x", 0), piece(self.primal.attention, "attn.score")
        if score is None:
            program.scores.append(x)
        else:
            block = block_of(score)
            program.scores += PieceReader(program, block, {block.arguments[0]: x}, PAIR).results()
        return program

    @cached_property
    def saved(self) -> list[int]:
        return []

    @cached_property
    def reverse(self) -> Reverse:
        reverse = _WrittenReverse(self.program, Seeds({}))
        reverse.read(self)
        return reverse


def formulas(weight: ir.Operation, dscore: ir.Operation, rows: Sequence[str]) -> list[str]:
    """What the two functions of scalars compute, for people."""
    found = []
    for function, result, names in ((weight, "p", ["s", *rows]), (dscore, "ds", ["dp", "p", "doosum", *rows])):
        block, graph = function.regions[0].blocks[0], Graph()
        pairs = len(names) - len(rows) - (result == "ds")
        scalars = list(block.arguments)
        leaves = {graph.leaf("old", i): name for i, name in enumerate(names)}
        known = [*scalars[:pairs], *scalars[pairs + len(_INDICES) : len(_INDICES) + len(names)]]
        reader = RowReader(graph, block, dict(zip(known, leaves, strict=True)))
        (node,) = reader.results()
        found.append(f"{result} = {text(node, {**leaves, **reader.params.names})}")
    return found


class _WrittenReverse(Reverse):
    """Reverse mode below the scores; what is above is written."""

    def read(self, written: CustomDerivatives) -> None:
        """Fills `result`."""
        g, result = self.primal.graph, self.result
        rows = [result.row_leaf(f"row_{name}") for name in written.primal.outputs]
        s, dp = g.leaf("s", 0), result.product("do", "v")
        p = self._expression(written.primal, written.weight, [s], rows)
        kept = [g.leaf("s", k) for k in range(1, len(self.primal.scores))]  # dropout's factor of the weight
        dp, dropped = (g.mul(value, *kept) if kept else value for value in (dp, p))
        result.reductions.append(ModelReduction("sum", g.mul(dp, p), "doosum", ("row_dot", "do", "o")))
        doosum = result.red(len(result.reductions) - 1)
        self._of_pair[s] = self._expression(written.primal, written.dscore, [dp, p], [doosum, *rows])
        self._sums["key", "v"] = [(dropped, "do")]
        self._scores_and_products()
        self._collect()

    def _expression(self, primal: Primal, function: ir.Operation, pairs: Sequence[Expr], rows: Sequence[Expr]) -> Expr:
        """What a function of (pairs..., b, h, q_idx, kv_idx, rows..., inputs...) returns."""
        block, count = function.regions[0].blocks[0], len(pairs)
        score, index = block.arguments[0].type, ir.IndexType.get()
        inputs = list(primal.entry.arguments)

        def body(first: ir.Value, *rest: ir.Value) -> list[ir.Value]:
            indices, values = rest[: len(_INDICES)], [first, *rest[len(_INDICES) :]]
            return inline(block, [*values[:count], *indices, *values[count:], *inputs])

        # It becomes a piece of the attention, which is erased later: then what it captures are the attention's own inputs.
        further = [(f"value_{i}", score) for i in range(count - 1 + len(rows))]
        with function.location, ir.InsertionPoint(block_of(primal.attention)):
            piece_ = build.piece("score", [("x", score), *((name, index) for name in _INDICES), *further], body)
        arguments = list(block_of(piece_).arguments)
        known = dict(zip([arguments[0], *arguments[1 + len(_INDICES) :]], [*pairs, *rows], strict=True))
        return PieceReader(self.result, block_of(piece_), known, PAIR).results()[0]
