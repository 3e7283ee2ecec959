"""The registers and instructions of AMX as LLVM has them: tiles are values, whose registers and configuration LLVM chooses.

All tiles have 16 rows of 16 32-bit words: LLVM sets registers apart for each shape in a function, and fails where they do not suffice.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

SIDE = 16
"""Rows of a tile, and 32-bit words in a row."""


class TileRegisters:
    """Makes tiles; strides are in bytes (i64)."""

    def zero(self) -> ir.Value:
        """A tile of zeros."""
        return self._call("llvm.x86.tilezero.internal", _rows(), _bytes())

    def load(self, address: ir.Value, stride: ir.Value) -> ir.Value:
        """Rows that are `stride` apart in memory."""
        return self._call("llvm.x86.tileloadd64.internal", _rows(), _bytes(), address, stride)

    def multiply(self, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
        """total + left x right, of f32 and pairs of bf16: the words of a row of left go with the rows of right."""
        return self._call("llvm.x86.tdpbf16ps.internal", _rows(), _bytes(), _bytes(), total, left, right)

    def store(self, tile: ir.Value, address: ir.Value, stride: ir.Value) -> None:
        """Writes a tile."""
        _intrinsic("llvm.x86.tilestored64.internal", [], [_rows(), _bytes(), address, stride, tile])

    def _call(self, name: str, *operands: ir.Value) -> ir.Value:
        return _intrinsic(name, [ir.Type.parse("!llvm.x86_amx")], list(operands)).results[0]


def uses_tiles(module: ir.Module) -> bool:
    """Whether a module in the LLVM dialect has instructions of AMX."""
    calls = (op for op in walk(module.operation) if op.name == "llvm.call_intrinsic")
    return any(ir.StringAttr(op.attributes["intrin"]).value.startswith("llvm.x86.tile") for op in calls)


def _intrinsic(name: str, results: list[ir.Type], operands: list[ir.Value]) -> ir.Operation:
    attributes = {
        "intrin": ir.StringAttr.get(name),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(operands), 0]),
        "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
    }
    return ir.Operation.create("llvm.call_intrinsic", results=results, operands=operands, attributes=attributes)


def _rows() -> ir.Value:
    return emit.integer(SIDE, 16)


def _bytes() -> ir.Value:
    return emit.integer(4 * SIDE, 16)
