"""Scales of a linear attention: mods that multiply all of q or k by one number, which may stand anywhere in the products."""

from collections.abc import Mapping

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import block_of, clone_op, maker, piece

SCALED = {"attn.query": ("leave", "weight"), "attn.key": ("enter", "weight")}
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
