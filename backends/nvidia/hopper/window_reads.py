"""What a map reads of windows and bands of captured tensors in shared memory: four elements of a thread at a time."""

from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.tiles import WindowTile
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

    def declare(self) -> None:
        """Prints where this thread's elements are."""
        core = self.core
        self._starts = [core.names.fresh("window_at") for _ in self._reads]
        for (_, tile), name in zip(self._reads, self._starts, strict=True):
            core.writer.line(f"const uint32_t {name} = {tile.start};")

    def load(self) -> None:
        """Reads the elements of columns `c`, which the map's reads stand for in this scope."""
        core = self.core
        for (op, tile), start in zip(self._reads, self._starts, strict=True):
            name = core.names.fresh("of_window")
            core.writer.line(f"float {name}[4];")
            if tile.pitch:
                place = f"{start} + {8 * tile.pitch} * h + {8 * op.results[0].type.width // 8} * c"
                with core.writer.unrolled("h", 2):
                    kind = c_type(op.results[0].type)
                    core.writer.line(f"attn::window_pair({place}, {kind}(), {name}[2 * h], {name}[2 * h + 1]);")
            else:
                with core.writer.unrolled("n", 4):
                    core.writer.line(f"{name}[n] = attn::load_shared({start} + 4 * (8 * (n / 2) - 8 * c - n % 2));")
            bind_element(core, op.results[0], f"{name}[2 * h + e]")
