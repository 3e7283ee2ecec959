"""Prints matrix products: both factors lie in shared memory, results stay in registers."""

from attn_mlir.backends.amd.chunks.copies import ChunkCopies
from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.layout import transposes
from attn_mlir.backends.amd.chunks.maps import registers
from attn_mlir.backends.amd.chunks.tiles import FACTORS, STEP, ChunkFragment, Terms, Uniform, chunks_of, round_up
from attn_mlir.backends.gpu.structure import hint, operations
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_MANY = 128
"""Terms of a product that may be taken in parts."""


class ChunkProducts:
    """Prints `tile.dot`, `tile.dot_add` and `tile.dot_rescale`."""

    def __init__(self, core: ChunkCore, copies: ChunkCopies) -> None:
        self.core, self.copies = core, copies

    def print(self, op: ir.Operation) -> None:
        """Prints one product."""
        core = self.core
        a, b = list(op.operands)[-2:]
        element = str(ir.RankedTensorType(a.type).element_type)
        if element not in FACTORS:
            raise UnsupportedError(f"amd: matrix products take {', '.join(FACTORS)}, not {element}: cast q, k and v, or use the CPU")
        forms = ["rows" if flag != (number == 0) else "columns" for number, flag in enumerate(transposes(op))]
        scale = self.copies.vector(op.operands[1]) if op.name == "tile.dot_rescale" else None
        factors = list(zip((a, b), forms, strict=True))
        first, *others = self._parts(core.padded(ir.RankedTensorType(a.type).shape[0 if transposes(op)[0] else 1]))
        places = self._places(factors, first)
        if scale is not None:
            self.copies.vector_copy(op.operands[1])
            places = self._places(factors, first)
            self.copies.vector_copy(op.operands[1])
        tile = self._accumulator(op, "o" if op.name != "tile.dot" else "product")
        if scale is not None:
            self._rescale(tile, scale.name if isinstance(scale, Uniform) else core.copies[scale.name, "vector"].at, scale)
        scaled = any(value in core.residuals for value in (a, b))
        if scaled:
            core.writer.line("// One factor is kept 2^11 times as large as it is.")
            self._multiply(tile, "2048.0f")
        self._add(tile, places, element, first.count)
        for terms in others:
            self._add(tile, self._places(factors, terms), element, terms.count)
        if scaled:
            self._multiply(tile, "(1.0f / 2048.0f)")
        self.changed(op, tile)

    def _parts(self, depth: int) -> list[Terms]:
        """The terms of a product of so many that are in shared memory at a time: all, or of the largest products some."""
        count = round_up(-(-depth // self.core.split), STEP) if depth >= _MANY else depth
        return [Terms(begin, min(count, depth - begin)) for begin in range(0, depth, count)]

    def _places(self, factors: list[tuple[ir.Value, str]], terms: Terms) -> list[str]:
        """C++: where two factors can be read. Both are announced twice, for a barrier for one may follow the other."""
        for value, form in factors:
            self.copies.written(value, form, terms)
        for value, form in factors:
            self.copies.factor(value, form, terms)
        return [self.copies.factor(value, form, terms).at for value, form in factors]

    def _add(self, tile: ChunkFragment, places: list[str], element: str, terms: int) -> None:
        """Adds a product of so many terms, whose factors lie at `places`."""
        core, grid = self.core, tile.grid
        factors = [(places[0], grid.wave_row(), grid.high, grid.wide), (places[1], grid.wave_column(), grid.wide, 1)]
        if grid.by_columns:
            factors.reverse()
        (x, x_row, x_blocks, x_stride), (y, y_row, y_blocks, y_stride) = factors
        sizes = [FACTORS[element], grid.size, terms, x_blocks, y_blocks, x_stride, y_stride, chunks_of(terms, element)]
        with core.scope(None if grid.all_waves else f"if (wave < {grid.down * grid.across})"):
            core.writer.line(f"attn::multiply<{', '.join(map(str, sizes))}>({tile.name}, {x}, {x_row}, {y}, {y_row});")

    def _accumulator(self, op: ir.Operation, name: str) -> ChunkFragment:
        """Where the sums are."""
        if op.name == "tile.dot":
            return self.zeros(op.results[0], hint(op.results[0], name), "0.0f")
        return self.summed(op, op.operands[0], name)

    def summed(self, op: ir.Operation, value: ir.Value, name: str) -> ChunkFragment:
        """Where an op changes sums: in their place, if nothing reads them afterwards."""
        core, result, start = self.core, op.results[0], self.core.tiles[value]
        if not isinstance(start, ChunkFragment) or start.grid != core.grid(result):
            raise UnsupportedError(f"amd: products are added to other products only ({op.location})")
        if not _is_read_after(value, op):
            return start
        made = ChunkFragment(core.names.fresh(hint(result, name)), start.grid, "f32", start.rows, start.columns)
        core.writer.line(f"{registers(made)} {made.name} = {start.name};")
        return made

    def changed(self, op: ir.Operation, tile: ChunkFragment) -> None:
        """Says that an op's result is in a tile; copies of what was there before are none of it."""
        for key in [key for key in self.core.copies if key[0] == tile.name]:
            del self.core.copies[key]
        self.core.tiles[op.results[0]] = tile

    def zeros(self, value: ir.Value, name: str, start: str) -> ChunkFragment:
        """Declares registers for a tile of f32, all elements `start`."""
        core = self.core
        made = ChunkFragment(core.names.fresh(name), core.grid(value), "f32", *ir.RankedTensorType(value.type).shape)
        core.writer.line(f"{registers(made)} {made.name};")
        with core.repeated("n", made.grid.parts) as n:
            core.writer.line(f"{made.name}[{n}] = (attn::Block<{made.grid.size}>::Floats)({start});")
        return made

    def _multiply(self, tile: ChunkFragment, factor: str) -> None:
        with self.core.repeated("n", tile.grid.parts) as n:
            self.core.writer.line(f"{tile.name}[{n}] *= {factor};")

    def _rescale(self, tile: ChunkFragment, scale: str, kind: object) -> None:
        core, grid = self.core, tile.grid
        if isinstance(kind, Uniform):
            self._multiply(tile, scale)
            return
        stride = core.vector_stride(kind)  # type: ignore[arg-type]
        with self.copies.blocks(grid) as (row, _, n):
            if grid.by_columns:
                with core.unrolled("r", grid.length):
                    core.writer.line(f"{tile.name}[{n}][r] *= ((const float *)({scale}))[wave * {stride} + {row} + r];")
            else:
                core.writer.line(f"{tile.name}[{n}] *= ((const float *)({scale}))[wave * {stride} + {row}];")


def _is_read_after(value: ir.Value, op: ir.Operation) -> bool:
    """Whether an op behind this one, in its block, reads a value."""
    later = operations(op.block)
    later = later[later.index(op) + 1 :]
    for use in value.uses:
        reader: ir.Operation | None = use.owner.operation
        while reader is not None and reader.block != op.block:
            reader = reader.parent
        if reader is not None and reader in later:
            return True
    return False
