"""Prints running sums along the columns of tiles that are too large for shared memory: each thread goes down a column of its own.

Loads, maps and sums of such tiles are printed where one of them is stored, once for each element.
"""

from dataclasses import dataclass, field

from attn_mlir.backends.amd.chunks.copies import ChunkCopies
from attn_mlir.backends.amd.chunks.core import ChunkCore, Place
from attn_mlir.backends.amd.chunks.tiles import THREADS, ChunkVector, Deferred
from attn_mlir.backends.gpu.structure import body, is_row, operations, yielded
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_MOST = 16
"""Rows of a tile that has its running sums in shared memory, in kernels without products."""


@dataclass
class Streams:
    """The tiles of a kernel that are never whole."""

    core: ChunkCore
    copies: ChunkCopies
    _shapes: set[tuple[int, ...]] = field(default_factory=set)

    def __post_init__(self) -> None:
        if find_all(self.core.kernel, *DOTS):
            return
        for op in find_all(self.core.kernel, "tile.cumsum"):
            shape = tuple(ir.RankedTensorType(op.results[0].type).shape)
            if len(shape) == 2 and shape[0] > _MOST:
                self._shapes.add(shape)

    def takes(self, op: ir.Operation) -> bool:
        """Whether an op makes, or stores, such a tile."""
        value = op.operands[0] if op.name == "tile.store" else op.results[0] if list(op.results) else None
        if op.name not in ("tile.load", "tile.map", "tile.cumsum", "tile.store") or value is None:
            return False
        return isinstance(value.type, ir.RankedTensorType) and tuple(value.type.shape) in self._shapes

    def print(self, op: ir.Operation) -> None:
        """Prints a store of such a tile; keeps other ops for it."""
        if op.name == "tile.store":
            self._store(op)
            return
        core = self.core
        if op.name == "tile.load":
            for value in list(op.operands)[1:]:
                core.value(value)
        elif op.name == "tile.map":
            for read in operations(body(op)):
                if read.name == "tensor.extract" and is_row(read.operands[0].type):
                    if isinstance(self.copies.vector(read.operands[0]), ChunkVector):
                        self.copies.vector_copy(read.operands[0])
        for result in op.results:
            core.tiles[result] = Deferred(op)

    def _store(self, op: ir.Operation) -> None:
        core, writer = self.core, self.core.writer
        value, target = op.operands[0], op.operands[1]
        place, first, count = [core.value(v) for v in list(op.operands)[2:4]], core.value(op.operands[4]), core.value(op.operands[5])
        rows, columns = ir.RankedTensorType(value.type).shape
        sums = self._sums(value)
        if len(sums) != 1:
            raise UnsupportedError(f"amd: a large tile with {len(sums)} running sums ({op.location})")
        reverse = ir.BoolAttr(sums[0].attributes["reverse"]).value
        with core.scope(f"for (int column = attn::thread(); column < {columns}; column += {THREADS})"):
            writer.line("float total = 0.0f;")
            with core.scope(f"for (int r = 0; r < {rows}; ++r)"):
                writer.line(f"const int i = {f'{rows - 1} - r' if reverse else 'r'};")
                core.place = Place(("i", "column"), None)
                writer.line(f"total += {self._element(sums[0].operands[0])};")
                core.scalars.bind(sums[0].results[0], "total")
                made = self._element(value)
                writer.line(f"if (i < {count}) {core.item(target, [*place, f'({first} + i)', 'column'])} = {made};")
                core.place = None

    def _sums(self, value: ir.Value) -> list[ir.Operation]:
        """The running sums that a tile is made of."""
        tile = self.core.tiles.get(value)
        if not isinstance(tile, Deferred):
            return []
        if tile.op.name == "tile.cumsum":
            return [tile.op]
        reads = (
            [read.operands[0] for read in operations(body(tile.op)) if read.name == "tensor.extract"] if tile.op.name == "tile.map" else []
        )
        return list(dict.fromkeys(found for read in reads for found in self._sums(read)))

    def _element(self, value: ir.Value) -> str:
        """C++: the element of a tile in this thread's column and row `i`; prints what it needs."""
        core, tile = self.core, self.core.tiles[value]
        if not isinstance(tile, Deferred):
            raise UnsupportedError(f"amd: {value} is no tile that can be made element by element")
        op = tile.op
        if op.name == "tile.cumsum":
            return "total"
        if op.name == "tile.load":
            batch, head, first, count = (core.value(v) for v in list(op.operands)[1:])
            return core.item(op.operands[0], [batch, head, f"({first} + min(i, (int){count} - 1))", "column"])
        block = body(op)
        core.scalars.bind(block.arguments[0], "i")
        core.scalars.bind(block.arguments[1], "column")
        for read in operations(block):
            if read.name == "tensor.extract" and isinstance(core.tiles.get(read.operands[0]), Deferred):
                if list(read.operands)[1:] != list(block.arguments):
                    raise UnsupportedError(f"amd: a large tile is read at another place than its own ({read.location})")
                core.scalars.bind(read.results[0], self._element(read.operands[0]))
        return core.value(yielded(block)[[result == value for result in op.results].index(True)])
