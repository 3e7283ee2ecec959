"""What regions of maps are made of."""

from attn_mlir.backends.gpu.structure import maker, operations
from attn_mlir.mlir import ir

PAIRED = ("tensor.extract", "arith.addf", "arith.subf", "arith.mulf", "arith.divf", "arith.negf", "arith.truncf", "math.fma", "math.exp2",
           "math.exp", "math.log2", "math.log", "math.sqrt", "math.rsqrt", "math.absf")  # fmt: skip
"""What can be printed for two neighbouring elements at once: the hardware adds and multiplies pairs as fast as single numbers."""


def float_positions(block: ir.Block) -> list[ir.Value]:
    """The column's number as f32, where a map uses it."""
    found = []
    for op in operations(block):
        if op.name == "arith.sitofp" and isinstance(op.results[0].type, ir.F32Type):
            source = maker(op.operands[0])
            if source is not None and source.name == "arith.index_cast" and source.operands[0] == block.arguments[1]:
                found.append(op.results[0])
    return found


def is_read(value: ir.Value) -> bool:
    """Whether a value is made of elements of captured tensors."""
    pending, found = [value], set[ir.Value]()
    while pending:
        value = pending.pop()
        op = maker(value)
        if value in found or op is None:
            continue
        if op.name == "memref.load":
            return True
        found.add(value)
        pending += op.operands
    return False


def used(values: list[ir.Value], known: dict[ir.Value, int], block: ir.Block) -> list[ir.Operation]:
    """The ops of a block that values are made of, apart from what is known."""
    pending, found = list(values), set[ir.Operation]()
    while pending:
        value = pending.pop()
        op = maker(value)
        if value not in known and op is not None and op.block == block and op not in found:
            found.add(op)
            pending += list(op.operands)
    return [op for op in operations(block) if op in found]


def combined(kind: str, a: str, b: str) -> str:
    """Two numbers of a reduction as one."""
    if kind == "sum":
        return f"{a} + ({b})" if "?" in b else f"{a} + {b}"
    return f"f{kind}f({a}, {b})"
