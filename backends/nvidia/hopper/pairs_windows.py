"""Windows of captured tensors in kernels of pairs: they travel with the values of query rows."""

from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.windows import bind_element, form_of, place_window
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def check_windows(kernel: PairsKernel, slots: int) -> None:
    """Raises UnsupportedError unless all steps read the same windows and a warp brings values of rows, `slots` of them, with these."""
    forms = {tuple(map(form_of, ops_of(step, "tile.load_window"))) for step in kernel.steps}
    if any(ops_of(step, "tile.band") for step in kernel.steps):
        raise UnsupportedError("hopper: kernels of pairs read no bands of captured tensors")
    if len(forms) > 1 or (forms != {()} and not slots):
        raise UnsupportedError("hopper: windows of captured tensors come with values of query rows, the same ones in all steps")


def load_windows(core: Core, layout: BackwardLayout, block: ir.Block, stage: str, full: str) -> None:
    """Prints what the warp of the values of query rows does: every lane arrives once more when its copies are there."""
    if not layout.windows:
        return
    writer = core.writer
    writer.line("bool written = false;")
    for op, buffer in zip(ops_of(block, "tile.load_window"), layout.windows, strict=True):
        start, row_stride, column_stride, rows, columns = place_window(core, op)
        element = c_type(ir.MemRefType(op.operands[0].type).element_type)
        size = f"{element}, {layout.kernel.queries}, {layout.kernel.keys}, 32, {buffer.columns}"
        to = f"shared + {buffer.offset} + {buffer.bytes} * {stage}"
        writer.line(f"attn::load_window<{size}>({start}, {column_stride}, {row_stride}, 0, {columns}, {rows}, {to}, lane, written);")
    writer.line(f"attn::window_arrive({full}, written);")


class PairWindows:
    """What one map reads of them, as floats [2 h + e] of two keys and two queries."""

    def __init__(self, core: Core, layout: BackwardLayout, block: ir.Block, step: ir.Block, stage: str) -> None:
        self.core = core
        buffers = {op.results[0]: buffer for op, buffer in zip(ops_of(step, "tile.load_window"), layout.windows, strict=False)}
        reads = [op for op in operations(block) if op.name == "tensor.extract" and op.operands[0] in buffers]
        self._reads = {op.results[0]: (op, buffers[op.operands[0]]) for op in reads}
        self._starts: dict[ir.Value, str] = {}
        self._stage = stage

    def declare(self) -> None:
        """Prints where this thread's elements are."""
        for value, (_, buffer) in self._reads.items():
            name = self._starts[value] = self.core.names.fresh("window_at")
            place = f"column * {buffer.columns} + row * {value.type.width // 8}"
            self.core.writer.line(f"const uint32_t {name} = shared + {buffer.offset} + {buffer.bytes} * {self._stage} + {place};")

    def load(self, needed: set[ir.Value]) -> None:
        """Reads the elements of queries `c`, which the map's reads stand for in this scope."""
        core = self.core
        for value, (op, buffer) in self._reads.items():
            if value not in needed:
                continue
            name, size = core.names.fresh("of_window"), value.type.width // 8
            core.writer.line(f"float {name}[4];")
            with core.writer.unrolled("n", 4):
                place = f"{self._starts[value]} + {buffer.columns} * (8 * c + n % 2) + {8 * size} * (n / 2)"
                core.writer.line(f"{name}[n] = attn::window_element({place}, {c_type(op.results[0].type)}());")
            bind_element(core, value, f"{name}[2 * h + e]")
