"""Numbers and flags as attributes of ops."""

from attn_mlir.mlir import ir


def i64(value: int) -> ir.IntegerAttr:
    """An i64 attribute; needs an active context."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)


def number(op: ir.Operation, name: str) -> int:
    """An integer attribute."""
    return ir.IntegerAttr(op.attributes[name]).value


def flag(op: ir.Operation, name: str) -> bool:
    """A boolean attribute, false where there is none."""
    return name in op.attributes and ir.BoolAttr(op.attributes[name]).value
