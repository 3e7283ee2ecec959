"""Prints `tile.store`: tiles through shared memory and TMA, or element by element, and row values."""

from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, atoms, tile_bytes
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_BARRIER = 8
"""Named barriers of the warpgroups' stores: 8 + warpgroup."""


class Stores:
    """Prints stores of a kernel whose consumers hold `rows` rows.

    `staging` is the constant that is the offset of the shared memory that tiles pass through, reserved when it is first needed, or one
    that is given (that of the queries).
    """

    def __init__(self, core: Core, memory: SharedMemory, rows: int, staging: str | None = None) -> None:
        self.core, self.memory, self.rows = core, memory, rows
        self.staging = staging
        self.thread = "threadIdx.x"
        self.fresh = False
        """Whether the staging memory is free at the first store of a program."""

    def reserve(self, columns: int) -> None:
        """Makes room for tiles of so many columns."""
        if self.staging is None:
            self.staging = self.memory.layout.tile("kStaging", tile_bytes(self.rows, columns))

    @for_op
    def store(self, op: ir.Operation) -> None:
        """Writes the rows of a tile that exist."""
        tile, target = self.core.tiles[op.operands[0]], op.operands[1]
        if isinstance(tile, RegRow):
            self._row(op, tile)
        elif isinstance(tile, RegTile) and tile.element in PACKS and through_tma(target.type):
            self._through(op, tile)
        elif isinstance(tile, RegTile):
            self._elements(op, tile)
        else:
            raise UnsupportedError(f"hopper: {op.operands[0]} is stored from shared memory ({source_line(op.location)})")

    def _place(self, op: ir.Operation) -> tuple[str, str, str, str]:
        batch, head, begin, count = (self.core.value(value) for value in list(op.operands)[2:])
        return batch, head, begin, count

    def _row(self, op: ir.Operation, tile: RegRow) -> None:
        batch, head, begin, count = self._place(op)
        target, first = op.operands[1], "column == 0" if self.core.cluster == 1 else "column == 0 && attn::cluster_rank() == 0"
        with self.core.unrolled("h", 2):
            element = self.core.arguments.element(target, [batch, head, f"({begin} + row + 8 * h)"])
            self.core.writer.line(f"if ({first} && row + 8 * h < {count}) {element} = {tile.name}[h];")

    def _elements(self, op: ir.Operation, tile: RegTile) -> None:
        core = self.core
        batch, head, begin, count = self._place(op)
        target = op.operands[1]
        columns = ir.MemRefType(target.type).shape[3]
        if tile.element == "f32" and columns == tile.columns and of_one_query(op):  # of memory whose rows begin at even places
            with core.unrolled("c", tile.columns // 8), core.unrolled("h", 2):
                element = core.arguments.element(target, [batch, head, f"({begin} + row + 8 * h)", "(column + 8 * c)"], align=2)
                pair = f"make_float2({tile.name}[4 * c + 2 * h], {tile.name}[4 * c + 2 * h + 1])"
                core.writer.line(f"if (row + 8 * h < {count}) reinterpret_cast<float2 &>({element}) = {pair};")
            return
        with core.unrolled("c", tile.columns // 8), core.unrolled("h", 2), core.unrolled("e", 2):
            value = f"{tile.name}[4 * c + 2 * h + e]"
            value = core.narrow(value, tile.element) if tile.element in PACKS else value
            element = core.arguments.element(target, [batch, head, f"({begin} + row + 8 * h)", "(column + 8 * c + e)"])
            inside = f" && column + 8 * c + e < {columns}" if columns != tile.columns else ""
            core.writer.line(f"if (row + 8 * h < {count}{inside}) {element} = {value};")

    def _through(self, op: ir.Operation, tile: RegTile) -> None:
        """Registers, shared memory (each warpgroup its rows), TMA, which leaves out rows past the end of the tensor."""
        core, writer = self.core, self.core.writer
        batch, head, begin, count = self._place(op)
        self.reserve(tile.columns)
        descriptor = core.arguments.descriptor(op.operands[1], COLUMNS, ROWS)
        threads = f"attn::named_sync({_BARRIER} + warpgroup, 128);"
        atom_bytes = self.rows * ROW_BYTES
        with core.scope(""):
            writer.line(f"const uint32_t staging = shared + {self.staging} + warpgroup * {ROWS * ROW_BYTES};")
            if not self.fresh:
                writer.line(f"if ({self.thread} % 128 == 0) attn::bulk_wait_read<0>();", threads)
            self.fresh = False
            at = f"({self.thread} / 32 % 4 * 16 + lane % 16) * 128 + lane / 16 * 16"
            writer.line(f"const uint32_t place = {at};")
            pack = f"attn::{PACKS[tile.element]}"
            full, rest = divmod(tile.columns, 16)
            with writer.unrolled("c", full):
                words = [f"{pack}({tile.name}[8 * c + {i}], {tile.name}[8 * c + {i + 1}])" for i in (0, 2, 4, 6)]
                address = f"staging + c / 4 * {atom_bytes} + attn::swizzle_128(place + c % 4 * 32)"
                writer.line(
                    f"attn::store_matrices({address},",
                    *(f"                     {word}{',' if n < 3 else ');'}" for n, word in enumerate(words)),
                )
            if rest:
                words = [f"{pack}({tile.name}[{8 * full + i}], {tile.name}[{8 * full + i + 1}])" for i in (0, 2)]
                address = f"staging + {full // 4 * atom_bytes} + attn::swizzle_128(place + {full % 4 * 32})"
                writer.line(f"attn::store_matrices({address}, {', '.join([*words, '0', '0'])});")
            # TMA stores what all warps have written to shared memory.
            writer.line("attn::fence_proxy_async();", threads)
            exists = f" && warpgroup * {ROWS} < {count}" if of_one_query(op) else ""
            with writer.block(f"if ({self.thread} % 128 == 0{exists})"):
                for atom in range(atoms(tile.columns)):
                    address = f"staging + {atom * atom_bytes}" if atom else "staging"
                    where = core.arguments.copied_at(op.operands[1], f"{begin} + warpgroup * {ROWS}", head, batch)
                    column = core.column_at(op.operands[1], atom * COLUMNS)
                    writer.line(f"attn::tma_store({descriptor}, {address}, {column}, {where});")
                writer.line("attn::bulk_commit();")

    def finish(self) -> None:
        """Before the kernel ends: shared memory must stay until TMA has read it."""
        if self.staging is not None:
            self.core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait<0>();")


def of_one_query(op: ir.Operation) -> bool:
    """Whether heads are the rows of the one query of a sequence, which may have none: then its place is that of the next one."""
    target = op.operands[1]
    if not isinstance(target.owner, ir.Block):
        return False
    facts = ir.DictAttr(target.owner.owner.attributes["tile.kernel"])
    ragged = list(ir.DenseI64ArrayAttr(facts["ragged"])) if "ragged" in facts else []
    return "lengths" in facts and ir.BlockArgument(target).arg_number not in ragged


def through_tma(type_: ir.Type) -> bool:
    """Whether rows of a tensor start at multiples of 16 bytes when it is contiguous."""
    memory = ir.MemRefType(type_)
    return memory.rank == 4 and str(memory.element_type) in PACKS and memory.shape[3] % 8 == 0
