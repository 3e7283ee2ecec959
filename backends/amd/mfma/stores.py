"""Prints `tile.store`: each lane writes its part of its row."""

from attn_mlir.backends.amd.mfma.core import PACKS, MfmaCore
from attn_mlir.backends.amd.mfma.tiles import MfmaFragment, MfmaRow, PackedTile
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class MfmaStores:
    """Prints stores."""

    def __init__(self, core: MfmaCore) -> None:
        self.core = core

    def store(self, op: ir.Operation) -> None:
        """Writes the rows of a tile that exist."""
        core, tile, target = self.core, self.core.tiles[op.operands[0]], op.operands[1]
        batch, head, begin, count = (core.value(value) for value in list(op.operands)[2:])
        place = [batch, head, f"({begin} + row)"]
        if isinstance(tile, MfmaRow):
            core.writer.line(f"if (half == 0 && row < {count}) {core.arguments.element(target, place)} = {tile.name};")
            return
        memory = ir.MemRefType(target.type)
        element = str(memory.element_type)
        if isinstance(tile, MfmaFragment) and element in PACKS:
            tile = self._rounded(tile, element)
        wanted = tile.element if isinstance(tile, PackedTile) else "f32"
        if not isinstance(tile, (MfmaFragment, PackedTile)) or element != wanted:
            raise UnsupportedError(f"amd: {op.operands[0]} is stored as {element} ({source_line(op.location)})")
        align = core.align(target)
        address = f"&{core.arguments.element(target, [*place, '0'])}"
        kind = "float" if isinstance(tile, MfmaFragment) else "unsigned short"
        core.writer.line(f"if (row < {count})")
        core.writer.line(f"  attn::store_row<{align}, {memory.shape[-1]}>(({kind} *){address}, column, {tile.name});")

    def _rounded(self, tile: MfmaFragment, element: str) -> PackedTile:
        """The tile in 16 bits."""
        core = self.core
        packed = core.packed("rounded", tile.columns, element)
        with core.writer.unrolled("n", tile.parts), core.writer.unrolled("c", 8):
            pair = f"{tile.name}[n][2 * c], {tile.name}[n][2 * c + 1]"
            core.writer.line(f"{packed.name}[2 * n + c / 4][c % 4] = attn::round_{element}({pair});")
        return packed
