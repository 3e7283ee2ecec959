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
_PURE_DIALECTS = ("arith", "math", "tensor", "attn")


@dataclass(frozen=True)
class Simplify(Pass):
    """Simplifies every scalar piece without changing what happens to NaN and infinities.

    Constants are folded, divisions by constants become products, small powers products or roots; equal expressions
    are computed once; mods that return their input and masks that keep everything disappear.
    """

    name = "attn-simplify"

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
    while _rewrite(block) | _merge_equal(block) | _drop_dead(block):
        pass


def _rewrite(block: ir.Block) -> bool:
    """Applies the rules once to every op, in order."""
    changed = False
    for op in [o.operation for o in block.operations]:
        if len(list(op.results)) != 1 or not list(op.operands):
            continue
        with op.location, ir.InsertionPoint(op):
            new = rewrite(op)
        if new is not None:
            op.results[0].replace_all_uses_with(new)
            op.erase()
            changed = True
    return changed


def _merge_equal(block: ir.Block) -> bool:
    """Common subexpression elimination; every op in a piece is pure."""
    seen: dict[tuple[object, ...], ir.Operation] = {}
    changed = False
    for op in [o.operation for o in block.operations]:
        if list(op.regions) or not list(op.results):
            continue
        attributes = tuple((name, str(op.attributes[name])) for name in sorted(op.attributes))
        key = (op.name, tuple(op.operands), attributes, tuple(str(r.type) for r in op.results))
        known = seen.setdefault(key, op)
        if known is not op:
            for old, new in zip(list(op.results), list(known.results), strict=True):
                old.replace_all_uses_with(new)
            op.erase()
            changed = True
    return changed


def _drop_dead(block: ir.Block) -> bool:
    changed = False
    for op in reversed([o.operation for o in block.operations]):
        pure = op.name.partition(".")[0] in _PURE_DIALECTS and op.name != "attn.yield"
        if pure and not any(list(r.uses) for r in op.results):
            op.erase()
            changed = True
    return changed


def _does_nothing(piece: ir.Operation) -> bool:
    block = block_of(piece)
    yielded = list(list(block.operations)[-1].operation.operands)
    if piece.name in _IDENTITIES:
        scalars = [argument for argument in block.arguments if not isinstance(argument.type, ir.IndexType)]
        return yielded == (scalars[:1] if partner_of(piece) else scalars)
    return piece.name == "attn.mask" and truth(yielded[0]) is True
