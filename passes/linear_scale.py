"""Mods of a linear attention that multiply by one number, all of q, k or v (a scale) or each of its rows: it may stand elsewhere."""

from collections.abc import Mapping

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import block_of, clone_op, maker, piece, walk

SCALED = {"attn.query": ("leave", "weight"), "attn.key": ("enter", "weight"), "attn.value": ("enter", "weight")}
"""The factors of the chunked form that may take over a scale: of what the state gives to rows or takes from them, and of pairs."""


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
    product = maker(list(block.operations)[-1].operation.operands[0], "arith.mulf")
    if product is None or product.block != block or block.arguments[0] not in list(product.operands):
        return None
    first, second = product.operands
    factor = second if first == block.arguments[0] else first
    op = maker(factor)
    inside = ir.BlockArgument(factor).owner == block if op is None else op.block == block and op.name != "arith.constant"
    return None if inside else factor


def small_scale(linear: ir.Operation) -> float | None:
    """The number that `attn.query` multiplies by, where it is a constant from 1/64 to below 1."""
    found = factor_of(linear, "attn.query")
    constant = None if found is None else maker(found, "arith.constant")
    value = 1.0 if constant is None else ir.FloatAttr(constant.attributes["value"]).value
    return value if 1 / 64 <= value < 1 else None


def read_scale(scale: ir.Value, mapping: Mapping[ir.Value, ir.Value] | None = None) -> ir.Value:
    """A scale where it is needed: a constant once more, or the scalar from outside, through `mapping`."""
    constant = maker(scale, "arith.constant")
    return clone_op(constant, {}).results[0] if constant is not None else (mapping or {}).get(scale, scale)


def scaling(mod: str, scale: ir.Value, score: ir.Type, mapping: Mapping[ir.Value, ir.Value]) -> ir.Operation:
    """Builds a mod (one of SCALED) that multiplies by a scale."""
    index = ir.IndexType.get()
    arguments = [("x", score), *((name, index) for name in ("b", "h", "t", "d"))]
    return build.piece(mod.removeprefix("attn."), arguments, lambda x, *_: [arith.mulf(x, read_scale(scale, mapping))])


def multiplies_rows(mod: ir.Operation) -> bool:
    """Whether a mod of q, k or v multiplies each row by one number: x times, or divided by, what depends on neither x nor the channel."""
    block = block_of(mod)
    x, *_, channel = block.arguments
    of_x, of_channel = reached(block, x), reached(block, channel)
    value = list(block.operations)[-1].operation.operands[0]
    while value != x:
        op = maker(value, "arith.mulf", "arith.divf", "arith.negf")
        if op is None or value not in of_x:
            return False
        others = [operand for operand in op.operands if operand not in of_x]
        if len(others) != len(list(op.operands)) - 1 or any(other in of_channel for other in others):
            return False
        value = next(operand for operand in op.operands if operand in of_x)
        if op.name == "arith.divf" and value != op.operands[0]:
            return False
    return True


def reached(block: ir.Block, source: ir.Value) -> set[ir.Value]:
    """An argument of a piece and the values of the piece that are computed from it."""
    found = {source}
    for op in [view.operation for view in block.operations]:
        if any(operand in found for each in (op, *walk(op)) for operand in each.operands):
            found.update(op.results)
    return found
