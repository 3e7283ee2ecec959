"""The fast-math flag `afn` of MLIR's `math` ops: the function may be approximated."""

from attn_mlir.mlir import ir

APPROXIMATE = "afn"
_TEXT = f"#arith.fastmath<{APPROXIMATE}>"


def approximate() -> ir.Attribute:
    """The attribute `fastmath` of a function that may be approximated, in the context at hand."""
    return ir.Attribute.parse(_TEXT)


def is_approximate(op: ir.Operation) -> bool:
    """Whether `op` is a function that may be approximated; needs no context."""
    return "fastmath" in op.attributes and str(op.attributes["fastmath"]) == _TEXT
