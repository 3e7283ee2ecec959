"""How a map goes through its tiles, and what must be in shared memory for it."""

from attn_mlir.backends.amd.chunks.copies import ChunkCopies
from attn_mlir.backends.amd.chunks.core import ChunkCore, layout_of
from attn_mlir.backends.amd.chunks.layout import held_wants, own_tiles
from attn_mlir.backends.amd.chunks.tiles import ChunkVector, Grid, Held, PartialSum
from attn_mlir.backends.gpu.structure import body, constant, is_row, operations
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import is_constant, walk


class Reading:
    """Facts of maps, and copies of what they read."""

    def __init__(self, core: ChunkCore, copies: ChunkCopies) -> None:
        self.core, self.copies = core, copies

    def layout(self, op: ir.Operation) -> Grid | Held:
        """How the tiles lie in registers that a map of two dimensions goes through."""
        core = self.core
        tiles = [result for result in op.results if not is_row(result.type)]
        for value in [*tiles, *own_tiles(op)]:
            if value in core.layout.fragments and (value in tiles or self._same_shape(op, value)):
                return core.grid(value)
        rows, columns = self.extents(op)
        return Held("", rows, columns, "", self.patches(op), core.padded(rows))

    def extents(self, op: ir.Operation) -> tuple[int, int]:
        """Rows and columns of a map."""
        rows, columns = (constant(value) for value in op.operands)
        if rows is None or columns is None:
            raise UnsupportedError(f"amd: maps of a chunk scan have static sizes ({op.location})")
        return int(rows), int(columns)

    def _same_shape(self, op: ir.Operation, value: ir.Value) -> bool:
        return tuple(ir.RankedTensorType(value.type).shape) == self.extents(op)

    def patches(self, op: ir.Operation) -> bool:
        """Whether pieces of tiles in registers are patches: the columns of one of them, or of what maps make of it, are needed."""
        block = body(op)
        tiles = [result for result in op.results if not is_row(result.type)]
        for read in operations(block):
            if read.name == "tensor.extract" and list(read.operands)[1:] == list(block.arguments):
                tile = self.core.tiles.get(read.operands[0])
                if isinstance(tile, Held):
                    return tile.patches
        return any("columns" in held_wants(tile) for tile in tiles)

    def prepare(self, op: ir.Operation, layout: Grid | Held | None) -> None:
        """Sees to it that everything the map reads can be read where it is."""
        core, copies, block = self.core, self.copies, body(op)
        reads = [read for read in walk(op) if read.name == "tensor.extract"]
        for read in reads * 2:
            value, indices = read.operands[0], list(read.operands)[1:]
            if is_row(value.type):
                sums = core.tiles.get(value)
                if isinstance(sums, PartialSum) and sums.groups == 1 and layout is not None:
                    core.memory.read(core.copies[sums.name, "parts"])
                    continue
                tile = copies.vector(value)
                own = layout is None and indices == list(block.arguments)
                if isinstance(tile, ChunkVector) and not own and not is_constant(indices[0]):
                    copies.vector_copy(value)
                continue
            if layout is not None and indices == list(block.arguments) and layout_of(core.tiles[value]) == layout:
                continue
            copies.readable(value)


def groups_of(layout: Grid | Held) -> int:
    """How many parts sums along rows have in shared memory: one, where the threads of a row are neighbours that can add them up."""
    if isinstance(layout, Grid):
        return layout.across * layout.wide
    return 1 if are_neighbours(layout) else layout.padded // layout.width


def are_neighbours(layout: Held) -> bool:
    """Whether the threads of a row are a power of two of neighbouring lanes."""
    count = layout.padded // layout.width
    return not layout.patches and count in (4, 8, 16, 32, 64)
