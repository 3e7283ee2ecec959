"""Windows and bands of captured tensors in kernels of pairs: they travel with the values of query rows."""

from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.windows import WINDOWS, bind_element, form_of, place_window
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def check_windows(kernel: PairsKernel, slots: int) -> None:
    """Raises UnsupportedError unless all steps read the same windows and a warp brings values of rows, `slots` of them, with these."""
    forms = {tuple(map(_form, ops_of(step, *WINDOWS))) for step in kernel.steps}
    if any(str(ir.RankedTensorType(op.results[0].type).element_type) != "f32" for step in kernel.steps for op in ops_of(step, "tile.band")):
        raise UnsupportedError("hopper: bands of captured tensors are of f32")
    if len(forms) > 1 or (forms != {()} and not slots):
        raise UnsupportedError("hopper: windows of captured tensors come with values of query rows, the same ones in all steps")


def _form(op: ir.Operation) -> tuple[str, ...]:
    """What windows of several steps have in common; a band has a computation of its own in each, whose tiles may have other columns."""
    return (op.name,) if op.name == "tile.band" else form_of(op)


def load_windows(core: Core, layout: BackwardLayout, block: ir.Block, stage: str, full: str) -> None:
    """Prints what the warp of the values of query rows does: every lane arrives once more when its copies are there."""
    if not layout.windows and not layout.bands:
        return
    writer = core.writer
    writer.line(f"int copies = {'attn::kWritten' if layout.bands else 'attn::kBulk'};")
    for op, buffer in zip(ops_of(block, "tile.load_window"), layout.windows, strict=True):
        start, row_stride, column_stride, rows, columns = place_window(core, op)
        element = c_type(ir.MemRefType(op.operands[0].type).element_type)
        size = f"{element}, {layout.kernel.queries}, {layout.kernel.keys}, 32, {buffer.columns}"
        to = f"shared + {buffer.offset} + {buffer.bytes} * {stage}"
        writer.line(f"attn::load_window<{size}>({start}, {column_stride}, {row_stride}, 0, {columns}, {rows}, {to}, lane, {full}, copies);")
    for op, buffer in zip(ops_of(block, "tile.band"), layout.bands, strict=True):
        _band(core, layout, op, f"shared + {buffer.offset} + {buffer.bytes} * {stage}")
    writer.line(f"attn::window_arrive({full}, copies);")


def _band(core: Core, layout: BackwardLayout, op: ir.Operation, to: str) -> None:
    """Each lane computes the numbers of some diagonals, four at a time, as each may wait for memory."""
    inner, queries = body(op), layout.kernel.queries
    size, last = layout.kernel.keys + queries - 1, f"max({core.value(op.operands[1])} - 1, 0)"
    core.writer.line("#pragma unroll 1")
    with core.scope(f"for (int first = lane; first < {size}; first += 128)"):
        core.writer.line("float of_diagonal[4];")
        with core.unrolled("part", 4):
            core.writer.line(f"const int diagonal = min(first + 32 * part, {size - 1}) - {queries - 1};")
            core.scalars.bind(inner.arguments[0], "max(diagonal, 0)")
            core.scalars.bind(inner.arguments[1], f"min(max(-diagonal, 0), {last})")
            core.writer.line(f"of_diagonal[part] = {core.scalars.emit(yielded(inner)[0])};")
        with core.unrolled("part", 4):
            core.writer.line(f"attn::store_shared({to} + 4 * min(first + 32 * part, {size - 1}), of_diagonal[part]);")


class PairWindows:
    """What one map reads of them, as floats [2 h + e] of two keys and two queries."""

    def __init__(self, core: Core, layout: BackwardLayout, block: ir.Block, step: ir.Block, stage: str) -> None:
        self.core = core
        buffers = {op.results[0]: buffer for op, buffer in zip(ops_of(step, "tile.load_window"), layout.windows, strict=False)}
        reads = [op for op in operations(block) if op.name == "tensor.extract" and op.operands[0] in buffers]
        self._reads = {op.results[0]: (op, buffers[op.operands[0]]) for op in reads}
        bands = {op.results[0]: buffer for op, buffer in zip(ops_of(step, "tile.band"), layout.bands, strict=False)}
        of_bands = [op for op in operations(block) if op.name == "tensor.extract" and op.operands[0] in bands]
        self._bands = {op.results[0]: bands[op.operands[0]] for op in of_bands}
        self._queries = layout.kernel.queries
        self._starts: dict[ir.Value, str] = {}
        self._stage = stage

    def declare(self) -> None:
        """Prints where this thread's elements are."""
        for value, (_, buffer) in self._reads.items():
            name = self._starts[value] = self.core.names.fresh("window_at")
            place = f"column * {buffer.columns} + row * {value.type.width // 8}"
            self.core.writer.line(f"const uint32_t {name} = shared + {buffer.offset} + {buffer.bytes} * {self._stage} + {place};")

        for value, buffer in self._bands.items():
            name = self._starts[value] = self.core.names.fresh("band_at")
            place = f"4 * (row - column + {self._queries - 1})"
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
        for value in self._bands:
            if value in needed:
                name = core.names.fresh("of_band")
                core.writer.line(f"float {name}[4];")
                with core.writer.unrolled("n", 4):
                    core.writer.line(f"{name}[n] = attn::load_shared({self._starts[value]} + 4 * (8 * (n / 2) - 8 * c - n % 2));")
                bind_element(core, value, f"{name}[2 * h + e]")
