"""Parts of arguments (`memref.subview`) in the code of chunk scans: where they begin, and which of an argument's dimensions they have."""

from collections.abc import Iterable
from dataclasses import dataclass

from attn_mlir.backends.gpu.core import PrinterCore, Tile
from attn_mlir.backends.gpu.structure import maker
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


@dataclass(frozen=True)
class MemoryView:
    """A part of an argument. `offsets` are C++ expressions, one for each dimension of the argument, "0" where the part begins with it;
    `dims`: which of these the dimensions of the part are.
    """

    argument: ir.Value
    offsets: tuple[str, ...]
    dims: tuple[int, ...]


class ViewCore(PrinterCore[Tile]):
    """Prints the parts that all kernels have, and knows parts of their arguments."""

    def __init__(self, kernel: ir.Operation, width: int, taken: Iterable[str]) -> None:
        super().__init__(kernel, width, taken)
        self.views: dict[ir.Value, MemoryView] = {}

    def view(self, value: ir.Value) -> MemoryView:
        """The argument that a memref is a part of. Raises UnsupportedError for other memory, and parts with gaps."""
        op = maker(value)
        if op is None:
            rank = ir.MemRefType(value.type).rank
            return MemoryView(value, ("0",) * rank, tuple(range(rank)))
        if op.name != "memref.subview":
            raise UnsupportedError(f"{self.emitter}: '{op.name}' makes no memory that a kernel can use ({op.location})")
        if value not in self.views:
            self.views[value] = self._subview(op)
        return self.views[value]

    def _subview(self, op: ir.Operation) -> MemoryView:
        outer, dynamic = self.view(op.operands[0]), list(op.operands)[1:]
        if any(step != 1 for step in ir.DenseI64ArrayAttr(op.attributes["static_strides"])):
            raise UnsupportedError(f"{self.emitter}: a kernel reads parts of tensors without gaps only ({op.location})")
        offsets = list(outer.offsets)
        for dim, static in zip(outer.dims, ir.DenseI64ArrayAttr(op.attributes["static_offsets"]), strict=True):
            text = self.value(dynamic.pop(0)) if static < 0 else str(static)
            offsets[dim] = text if offsets[dim] == "0" else offsets[dim] if text == "0" else f"({offsets[dim]} + {text})"
        sizes, rank = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"])), ir.MemRefType(op.results[0].type).rank
        dropped = [dim for dim, size in enumerate(sizes) if size == 1][: len(sizes) - rank]
        return MemoryView(outer.argument, tuple(offsets), tuple(dim for n, dim in enumerate(outer.dims) if n not in dropped))

    def _other(self, op: ir.Operation, operands: list[str]) -> str:
        if op.name == "memref.dim" and maker(op.operands[0]) is not None:
            view, size = self.view(op.operands[0]), ir.MemRefType(op.operands[0].type).shape[int(operands[0])]
            return str(size) if size >= 0 else self.arguments.size(view.argument, view.dims[int(operands[0])])
        return super()._other(op, operands)
