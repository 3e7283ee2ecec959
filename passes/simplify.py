"""Folds and strength-reduces the scalar pieces of attentions and derivatives, and drops pieces that do nothing."""

from dataclasses import dataclass

from attn_mlir.dialects.attn.partners import partner_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.patterns import apply_rules
from attn_mlir.passes.regions import block_of, find_all
from attn_mlir.passes.simplification import RULES
from attn_mlir.passes.simplification.folding import truth

_IDENTITIES = ("attn.query", "attn.key", "attn.value", "attn.score", "attn.decay", "attn.result")
_OWNERS = ("attn.attention", "attn.online", "attn.linear_attention", "attn.chunk", "attn.pairs", "attn.elements")


@dataclass(frozen=True)
class Simplify(Pass):
    """Simplifies every scalar piece without changing what happens to NaN and infinities.

    MLIR's pattern driver applies rules to one op after the other: constants are folded, divisions by constants become products, small
    powers products or roots. Mods that return their input and masks that keep everything disappear. MLIR's `cse` runs before and after, so
    that rules see equal values as one, equal expressions are computed once, and what nothing uses goes.
    """

    name = "attn-simplify"
    before = after = "func.func(cse)"

    def run(self, module: ir.Operation) -> bool:
        for owner in find_all(module, *_OWNERS):
            _simplify(owner)
            for piece in [op.operation for op in block_of(owner).operations if op.operation.regions and _does_nothing(op.operation)]:
                piece.erase()
        for scatter in find_all(module, "attn.scatter"):
            _simplify(scatter)
        return True


def _simplify(op: ir.Operation) -> None:
    """Applies the rules to the ops inside until none of them changes anything."""
    while apply_rules(op, RULES):
        pass


def _does_nothing(piece: ir.Operation) -> bool:
    block = block_of(piece)
    yielded = list(block.operations[-1].operation.operands)
    if piece.name in _IDENTITIES:
        scalars = [argument for argument in block.arguments if not isinstance(argument.type, ir.IndexType)]
        return yielded == (scalars[:1] if partner_of(piece) else scalars)
    return piece.name == "attn.mask" and truth(yielded[0]) is True
