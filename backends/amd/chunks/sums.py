"""Prints running sums along the rows of a tile."""

from attn_mlir.backends.amd.chunks.copies import ChunkCopies
from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.tiles import FLOATS, SIZES, THREADS, ChunkVector, Uniform, Wide
from attn_mlir.backends.gpu.structure import hint, is_row
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class ChunkSums:
    """Prints `tile.cumsum`."""

    def __init__(self, core: ChunkCore, copies: ChunkCopies) -> None:
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
        element = str(ir.RankedTensorType(value.type).element_type)
        kind = FLOATS[element]
        reverse_ = "true" if reverse else "false"
        if isinstance(tile, Uniform) or tile.parts == 1:
            source = tile.name if isinstance(tile, Uniform) else f"{tile.name}[0]"
            if tile.length > 64:
                raise UnsupportedError(f"amd: running sums of the same number for {tile.length} rows ({op.location})")
            source = f"({kind}){source}" if isinstance(tile, Uniform) else source
            core.writer.line(f"const attn::Array<{kind}, 1> {name} = {{attn::wave_cumsum<{tile.length}, {reverse_}>({source})}};")
        else:
            count = f"{tile.parts}, {tile.length}, {reverse_}"
            core.writer.line(f"const attn::Array<{kind}, {tile.parts}> {name} = attn::wave_cumsum<{count}>({tile.name});")
        core.tiles[op.results[0]] = ChunkVector(name, tile.length, element)

    def _cumsum_columns(self, op: ir.Operation, reverse: bool) -> None:
        core, value, writer = self.core, op.operands[0], self.core.writer
        type_ = ir.RankedTensorType(value.type)
        rows, columns = type_.shape
        made = Wide(core.names.fresh(hint(op.results[0], "prefix")), rows, columns, str(type_.element_type))
        stride, kind = core.float_stride(made), FLOATS[made.element]
        name = core.tiles[value].name  # type: ignore[union-attr]
        if (name, "floats") in core.copies:  # others may still read it
            buffer = core.memory.buffer(core.names.fresh(f"{made.name}_at"), SIZES[made.element] * stride * core.padded(rows))
            self.copies.floats(value)
            source = self.copies.floats(value)
        else:  # sums take its place
            source = buffer = self.copies.floats(value)
            del core.copies[name, "floats"]
        core.copies[made.name, "floats"] = buffer
        core.memory.write(buffer)
        with core.scope(f"for (int column = attn::thread(); column < {columns}; column += {THREADS})"):
            writer.line(f"{kind} total = 0.0f;")
            with core.unrolled("r", rows):
                row = f"({rows - 1} - r)" if reverse else "r"
                writer.line(f"total += ((const {kind} *)({source.at}))[{row} * {stride} + column];")
                writer.line(f"(({kind} *)({buffer.at}))[{row} * {stride} + column] = total;")
        core.tiles[op.results[0]] = made
