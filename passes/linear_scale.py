"""Mods of a linear attention that multiply by one number, all of q, k or v (a scale) or each of its rows: it may stand elsewhere."""

from collections.abc import Callable, Mapping

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir, math
from attn_mlir.passes.regions import block_of, clone_op, maker, piece

SCALED = {
    "attn.query": ("output_decay", "decay_mask"),
    "attn.key": ("input_decay", "decay_mask"),
    "attn.value": ("input_decay", "decay_mask"),
}
"""The factors of the chunked form that may take over a scale: of what the state gives to rows or takes from them, and of pairs."""
SMALL = (1 / 64, 1.0)
"""From where to below where a scale of q may stand with k instead: it makes states smaller there, but not so small that digits are lost."""

_USUAL = (2.0**-64, 2.0**64)


def scale_of(linear: ir.Operation, mod: str) -> ir.Value | None:
    """The number that a mod (one of SCALED) of an `attn.linear_attention` multiplies by: a constant within it, or a scalar from outside.

    None without such a mod, for others, and where channels have decays of their own, whose products multiply q and k by factors anyway.
    """
    return factor_of(linear, mod) if ir.StringAttr(linear.attributes["channels"]).value == "none" else None


def factor_of(linear: ir.Operation, mod: str) -> ir.Value | None:
    """The number of `scale_of`, also where channels have decays of their own."""
    found = piece(linear, mod)
    if found is None:
        return None
    block = block_of(found)
    product = maker(block.operations[-1].operation.operands[0], "arith.mulf")
    if product is None or product.block != block or block.arguments[0] not in list(product.operands):
        return None
    first, second = product.operands
    factor = second if first == block.arguments[0] else first
    op = maker(factor)
    inside = ir.BlockArgument(factor).owner == block if op is None else op.block == block and op.name != "arith.constant"
    return None if inside else factor


def movable_scale(linear: ir.Operation) -> ir.Value | None:
    """The number that `attn.query` multiplies by, where `is_small` may hold for it: of constants only those, and scalars from outside."""
    found = factor_of(linear, "attn.query")
    constant = None if found is None else maker(found, "arith.constant")
    if constant is None:
        return found
    return found if SMALL[0] <= abs(ir.FloatAttr(constant.attributes["value"]).value) < SMALL[1] else None


def is_small(scale: ir.Value) -> ir.Value:
    """Builds whether a scalar is, but for its sign, within `SMALL`."""
    return _is_within(scale, SMALL)


def split(factor: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Builds a factor as the product of two, of which the first is of a size to be divided by again: 1 instead of 0, say."""
    usual, one = _is_within(factor, _USUAL), arith.constant(factor.type, 1.0)
    return arith.select(usual, factor, one), arith.select(usual, one, factor)


def _is_within(number: ir.Value, bounds: tuple[float, float]) -> ir.Value:
    low, high = (arith.constant(number.type, bound) for bound in bounds)
    size = math.absf(number)
    return arith.andi(arith.cmpf(arith.CmpFPredicate.OGE, size, low), arith.cmpf(arith.CmpFPredicate.OLT, size, high))


def read_scale(scale: ir.Value, mapping: Mapping[ir.Value, ir.Value] | None = None) -> ir.Value:
    """A scale where it is needed: a constant once more, or the scalar from outside, through `mapping`."""
    constant = maker(scale, "arith.constant")
    return clone_op(constant, {}).results[0] if constant is not None else (mapping or {}).get(scale, scale)


def scaling(mod: str, scale: ir.Value, score: ir.Type, mapping: Mapping[ir.Value, ir.Value]) -> ir.Operation:
    """Builds a mod (one of SCALED) that multiplies by a scale."""
    return multiplying(mod, score, lambda *_: read_scale(scale, mapping))


def multiplying(mod: str, score: ir.Type, factor: Callable[..., ir.Value]) -> ir.Operation:
    """Builds a mod that multiplies by what `factor` builds of b, h, t and d."""
    index = ir.IndexType.get()
    arguments = [("x", score), *((name, index) for name in ("b", "h", "t", "d"))]
    return build.piece(mod.removeprefix("attn."), arguments, lambda x, *places: [arith.mulf(x, factor(*places))])
