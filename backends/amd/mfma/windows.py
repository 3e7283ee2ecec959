"""What a map reads of bands and of windows of captured tensors; of these a lane has sixteen neighbouring columns of its row at a time."""

from attn_mlir.backends.amd.mfma.bands import MfmaBands, elements_of_bands
from attn_mlir.backends.amd.mfma.core import MfmaCore
from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import maker, operations
from attn_mlir.mlir import ir

HEADER = '#include "attn_amd_windows.h"'


class MfmaWindows:
    """The windows that one map reads, as an `attn::Float16x` for each part `n`, and its numbers of bands."""

    def __init__(self, core: MfmaCore, block: ir.Block, bands: MfmaBands) -> None:
        self.core, self._bands = core, bands
        self.banded = elements_of_bands(block)
        reads = [op for op in operations(block) if op.name == "tensor.extract"]
        self._reads = {op.results[0]: op.operands[0] for op in reads if maker(op.operands[0], "tile.load_window") is not None}
        self._places: dict[ir.Value, tuple[str, str, str]] = {}
        self._names: dict[ir.Value, str] = {}

    @property
    def known(self) -> list[ir.Value]:
        """What is bound for each element: numbers of bands and of windows, those of 16 bits also as f32."""
        return [*self.banded, *self._reads, *(wide for read in self._reads for wide in _widened(read))]

    def place(self) -> None:
        """Declares where the lane's first column is, and how many there are from it on."""
        core = self.core
        for window in dict.fromkeys(self._reads.values()):
            op = window.owner.operation
            source, rows, columns, *offsets = op.operands
            element = c_type(ir.MemRefType(source.type).element_type)
            row, left, start = (core.names.fresh(name) for name in ("window_row", "window_left", "window"))
            core.writer.line(f"const int {row} = min(row, {core.value(rows)} - 1), {left} = {core.value(columns)} - column;")
            stride = self._apart(source, op.attributes["column_steps"])
            begin = " + ".join(f"{core.value(offset)} * {core.arguments.stride(source, n)}" for n, offset in enumerate(offsets))
            begin += f" + {row} * ({self._apart(source, op.attributes['row_steps'])}) + column * ({stride})"
            core.writer.line(f"const {element} *const {start} = {core.arguments.pointer(source)} + {begin};")
            self._places[window] = (start, stride, left)

    def _apart(self, source: ir.Value, steps: ir.Attribute) -> str:
        terms = [(n, step) for n, step in enumerate(ir.DenseI64ArrayAttr(steps)) if step]
        return " + ".join(self.core.arguments.stride(source, n) + (f" * {step}" if step != 1 else "") for n, step in terms)

    def load(self) -> None:
        """Loads the columns of part `n`."""
        for window, (start, stride, left) in self._places.items():
            name = self._names[window] = self.core.names.fresh("bias")
            self.core.writer.line(f"const attn::Float16x {name} = attn::window({start}, {stride}, 32 * n, {left});")

    def bind(self, element: str, position: str = "") -> None:
        """Makes `{}[r]` or a pair of it, of each window, stand for what is read there, and numbers at a column for those of bands."""
        for value, band in self.banded.items():
            self.core.scalars.bind(value, self._bands.element(band, position))
        for read, window in self._reads.items():
            text = element.format(self._names[window])
            kind = str(read.type)
            self.core.scalars.bind(read, text if kind == "f32" else self.core.narrow(text, kind))
            for wide in _widened(read):
                self.core.scalars.bind(wide, text)


def _widened(value: ir.Value) -> list[ir.Value]:
    users = [use.owner.operation for use in value.uses]
    return [op.results[0] for op in users if op.name == "arith.extf" and isinstance(op.results[0].type, ir.F32Type)]
