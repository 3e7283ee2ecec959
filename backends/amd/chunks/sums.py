"""Prints running sums along the rows of a tile."""

from attn_mlir.backends.amd.chunks.copies import Copies
from attn_mlir.backends.amd.chunks.core import Core
from attn_mlir.backends.amd.chunks.tiles import THREADS, Uniform, Vector, Wide
from attn_mlir.backends.gpu.structure import hint, is_row
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class Sums:
    """Prints `tile.cumsum`."""

    def __init__(self, core: Core, copies: Copies) -> None:
        self.core, self.copies = core, copies

    def print(self, op: ir.Operation) -> None:
        """Running sums along the first dimension."""
        core, value = self.core, op.operands[0]
        reverse = ir.BoolAttr(op.attributes["reverse"]).value
        if not is_row(value.type):
            self._cumsum_columns(op, reverse)
            return
        tile = self.copies.vector(value)
        name = core.names.fresh(hint(op.results[0], "prefix"))
        reverse_ = "true" if reverse else "false"
        if isinstance(tile, Uniform) or tile.parts == 1:
            source = tile.name if isinstance(tile, Uniform) else f"{tile.name}[0]"
            if tile.length > 64:
                raise UnsupportedError(f"amd: running sums of the same number for {tile.length} rows ({op.location})")
            core.writer.line(f"const attn::Array<float, 1> {name} = {{attn::wave_cumsum<{tile.length}, {reverse_}>({source})}};")
        else:
            count = f"{tile.parts}, {tile.length}, {reverse_}"
            core.writer.line(f"const attn::Array<float, {tile.parts}> {name} = attn::wave_cumsum<{count}>({tile.name});")
        core.tiles[op.results[0]] = Vector(name, tile.length)

    def _cumsum_columns(self, op: ir.Operation, reverse: bool) -> None:
        core, value, writer = self.core, op.operands[0], self.core.writer
        rows, columns = ir.RankedTensorType(value.type).shape
        made = Wide(core.names.fresh(hint(op.results[0], "prefix")), rows, columns)
        stride = core.float_stride(made)
        buffer = core.memory.buffer(core.names.fresh(f"{made.name}_at"), 4 * stride * core.padded(rows))
        core.copies[made.name, "floats"] = buffer
        self.copies.floats(value)
        source = self.copies.floats(value)
        core.memory.write(buffer)
        with core.scope(f"for (int column = attn::thread(); column < {columns}; column += {THREADS})"):
            writer.line("float total = 0.0f;")
            with core.unrolled("r", rows):
                row = f"({rows - 1} - r)" if reverse else "r"
                writer.line(f"total += ((const float *)({source.at}))[{row} * {stride} + column];")
                writer.line(f"((float *)({buffer.at}))[{row} * {stride} + column] = total;")
        core.tiles[op.results[0]] = made
