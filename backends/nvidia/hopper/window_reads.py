"""What a map reads of windows and bands of captured tensors in shared memory: four elements of a thread at a time."""

from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, WindowTile
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES
from attn_mlir.backends.nvidia.hopper.windows import bind_element
from attn_mlir.mlir import ir


class WindowReads:
    """The reads of one map, as floats [2 h + e] of two rows and two columns."""

    def __init__(self, core: Core, block: ir.Block) -> None:
        self.core = core
        self._reads: list[tuple[ir.Operation, WindowTile]] = []
        for op in operations(block):
            tile = core.tiles.get(op.operands[0]) if op.name == "tensor.extract" else None
            if isinstance(tile, WindowTile):
                self._reads.append((op, tile))
        self._starts: list[str] = []
        self._bits: list[str] = []

    def declare(self, whole: bool = True) -> None:
        """Prints where this thread's elements are. `whole`: columns follow each other in one loop, which then reads 8x8 matrices."""
        core, writer = self.core, self.core.writer
        self._starts = [core.names.fresh("window_at") for _ in self._reads]
        self._bits = ["" for _ in self._reads]
        for number, ((op, tile), name) in enumerate(zip(self._reads, self._starts, strict=True)):
            size = op.results[0].type.width // 8
            place = ""
            if tile.atom and whole and size == 2:
                # Lane l gives row l % 8 of matrix l / 8: rows above and below, of two chunks.
                place = f" + (row % {ROWS} / 16 * 16 + lane % 16) * {ROW_BYTES} + (lane / 16 ^ lane % 8) * 16"
                self._bits[number] = core.names.fresh("window_bits")
                writer.line(f"uint32_t {self._bits[number]}[4];")
            elif tile.atom:
                place = f" + row % {ROWS} * {ROW_BYTES} + (column * {size} ^ row % 8 * 16)"
            writer.line(f"const uint32_t {name} = {tile.start}{place};")

    def load(self) -> None:
        """Reads the elements of columns `c`, which the map's reads stand for in this scope."""
        core = self.core
        for (op, tile), start, bits in zip(self._reads, self._starts, self._bits, strict=True):
            name, kind = core.names.fresh("of_window"), c_type(op.results[0].type)
            step = op.results[0].type.width  # bytes of 8 columns
            at = f"({start} ^ {step} * c % {ROW_BYTES}) + {step} * c / {ROW_BYTES} * {tile.atom}"
            core.writer.line(f"float {name}[4];")
            if bits:
                core.writer.line(f"if (c % 2 == 0) attn::load_matrices({at}, {bits});")
                with core.writer.unrolled("h", 2):
                    core.writer.line(f"attn::window_floats({bits}[c % 2 * 2 + h], {kind}(), {name}[2 * h], {name}[2 * h + 1]);")
            elif tile.atom:
                with core.writer.unrolled("h", 2):
                    core.writer.line(f"attn::window_pair({at} + {8 * ROW_BYTES} * h, {kind}(), {name}[2 * h], {name}[2 * h + 1]);")
            else:
                with core.writer.unrolled("n", 4):
                    core.writer.line(f"{name}[n] = attn::load_shared({start} + 4 * (8 * (n / 2) - 8 * c - n % 2));")
            bind_element(core, op.results[0], f"{name}[2 * h + e]")
