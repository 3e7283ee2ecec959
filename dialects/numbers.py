"""Numbers as attributes of ops."""

from attn_mlir.mlir import ir


def i64(value: int) -> ir.IntegerAttr:
    """An i64 attribute; needs an active context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)
