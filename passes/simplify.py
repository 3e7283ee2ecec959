"""Folds and strength-reduces the scalar pieces of attentions and derivatives, and drops pieces that do nothing."""

from dataclasses import dataclass

from attn_mlir.dialects.attn.partners import partner_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all
from attn_mlir.passes.simplification import rewrite
from attn_mlir.passes.simplification.folding import truth

_IDENTITIES = ("attn.query", "attn.key", "attn.value", "attn.score", "attn.decay", "attn.result")
_OWNERS = ("attn.attention", "attn.online", "attn.linear_attention", "attn.chunk", "attn.pairs", "attn.elements")


@dataclass(frozen=True)
class Simplify(Pass):
    """Simplifies every scalar piece without changing what happens to NaN and infinities.

    Constants are folded, divisions by constants become products, small powers products or roots; mods that return their input and
    masks that keep everything disappear. MLIR's `cse` runs before and after, so that rules see equal values as one, equal expressions are
    computed once, and what nothing uses goes.
    """

    name = "attn-simplify"
    before = after = "func.func(cse)"

    def run(self, module: ir.Operation) -> bool:
        for owner in find_all(module, *_OWNERS):
            for piece in [op.operation for op in block_of(owner).operations if op.operation.regions]:
                _simplify(block_of(piece))
                if _does_nothing(piece):
                    piece.erase()
        for scatter in find_all(module, "attn.scatter"):
            _simplify(block_of(scatter))
        return True


def _simplify(block: ir.Block) -> None:
    """Applies the rules to every op, in order, until none of them changes anything."""
    changed = True
    while changed:
        changed = False
        for op in [view.operation for view in block.operations]:
            if len(op.results) != 1 or not len(op.operands) or not list(op.results[0].uses):
                continue
            with op.location, ir.InsertionPoint(op):
                new = rewrite(op)
            if new is not None:
                op.results[0].replace_all_uses_with(new)
                op.erase()
                changed = True


def _does_nothing(piece: ir.Operation) -> bool:
    block = block_of(piece)
    yielded = list(list(block.operations)[-1].operation.operands)
    if piece.name in _IDENTITIES:
        scalars = [argument for argument in block.arguments if not isinstance(argument.type, ir.IndexType)]
        return yielded == (scalars[:1] if partner_of(piece) else scalars)
    return piece.name == "attn.mask" and truth(yielded[0]) is True
