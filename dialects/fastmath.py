"""The fast-math flag `afn` of MLIR's `math` ops: the function may be approximated."""

from attn_mlir.mlir import ir

APPROXIMATE = "afn"


def approximate() -> ir.Attribute:
    """The attribute `fastmath` of a function that may be approximated."""
    return ir.Attribute.parse(f"#arith.fastmath<{APPROXIMATE}>")


def is_approximate(op: ir.Operation) -> bool:
    """Whether `op` is a function that may be approximated."""
    return "fastmath" in op.attributes and op.attributes["fastmath"] == approximate()
