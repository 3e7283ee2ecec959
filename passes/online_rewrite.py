"""Turns row programs into their online form: `attn.attention` becomes `attn.online`."""

from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation import DerivationError, accumulator_limit, derive, is_narrow, read_row
from attn_mlir.passes.derivation.emit import PieceWriter
from attn_mlir.passes.magnitudes import scores_may_be_large
from attn_mlir.passes.regions import block_of, clone_op, find_all, piece


@dataclass(frozen=True)
class OnlineRewrite(Pass):
    """Replaces each `attn.attention` by the `attn.online` derived from its row, with the fewest passes over keys.

    More than `max-accumulators` accumulators for one weight count as dearer than one more pass; for 16-bit inputs, more
    than one, because weights are rounded to that type, and what several accumulators leave when they cancel would be
    rounding. Accumulators that an earlier weight needs, too, do not count: a tangent shares those of its function.
    """

    name = "attn-online-rewrite"
    max_accumulators: int = 2

    def run(self, module: ir.Operation) -> bool:
        if self.max_accumulators < 1:
            module.location.emit_error(f"{self.name}: max-accumulators must be positive, got {self.max_accumulators}")
            return False
        return all([self._rewrite(op) for op in find_all(module, "attn.attention")])

    def _rewrite(self, attention: ir.Operation) -> bool:
        row_piece = piece(attention, "attn.row")
        if row_piece is None:
            attention.location.emit_error("'attn.attention' lacks its 'attn.row' piece")
            return False
        try:
            row = read_row(row_piece)
            derivation = derive(
                row, accumulator_limit(attention, self.max_accumulators), is_narrow(attention), scores_may_be_large(attention)
            )
        except DerivationError as error:
            row_piece.location.emit_error(f"the row has no online form: {error}")
            return False
        program = derivation.program
        names = [ir.StringAttr(a).value for a in attention.attributes["outputs"]]
        kept = {name: attention.attributes[name] for name in attention.attributes if name != "outputs"}
        with attention.location, ir.InsertionPoint(attention):
            types = [r.type for r in attention.results]
            q, k, v = attention.operands
            online, body = build.attention(q, k, v, types, names, accumulators=len(program.plan.accumulators))
            for name, attribute in kept.items():
                online.attributes[name] = attribute
            sources = [accumulator.source for accumulator in program.plan.accumulators]
            if any(sources):
                online.attributes["sources"] = ir.DenseI64ArrayAttr.get(sources)
        with ir.InsertionPoint(body):
            for kept_piece in [op.operation for op in block_of(attention).operations if op.operation.name != "attn.row"]:
                clone_op(kept_piece, {})
            with row_piece.location:
                PieceWriter(row, program, block_of(row_piece).arguments[0].type).write()
        for old, new in zip(list(attention.results), list(online.results), strict=True):
            old.replace_all_uses_with(new)
        attention.erase()
        return True
