"""The fast-math flag `afn` of MLIR's `math` ops: the function may be approximated."""

from attn_mlir.mlir import ir

APPROXIMATE = "afn"
_TEXT = f"#arith.fastmath<{APPROXIMATE}>"


def flag_of(op: ir.Operation) -> str | None:
    """APPROXIMATE where an op may be approximated, else None; needs no context."""
    return APPROXIMATE if is_approximate(op) else None


def attributes_of(flag: object) -> dict[str, ir.Attribute]:
    """The attributes of a function with that flag, in the context at hand: `fastmath` for APPROXIMATE, none for others."""
    return {"fastmath": ir.Attribute.parse(_TEXT)} if flag == APPROXIMATE else {}


def is_approximate(op: ir.Operation) -> bool:
    """Whether `op` is a function that may be approximated; needs no context."""
    return "fastmath" in op.attributes and str(op.attributes["fastmath"]) == _TEXT
