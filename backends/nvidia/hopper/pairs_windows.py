"""Windows and bands of captured tensors in kernels of pairs: they travel with the values of query rows."""

from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer
from attn_mlir.backends.nvidia.hopper.pairs_tiles import element_place
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES
from attn_mlir.backends.nvidia.hopper.windows import WINDOWS, bind_element, form_of, place_window, window_boxes
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
        element, queries, keys = c_type(ir.MemRefType(op.operands[0].type).element_type), layout.kernel.queries, layout.kernel.keys
        size = f"{element}, {queries}, {keys}, 32"
        to = f"shared + {buffer.offset} + {buffer.bytes} * {stage}"
        copied = f"attn::load_window<{size}>({start}, {column_stride}, {row_stride}, 0, {columns}, {rows}, {to}, lane, copies);"
        boxes = window_boxes(core, op, (queries, keys))
        if boxes is None:
            writer.line(copied)
            continue
        name, (column, row, *outer), width = boxes
        with writer.block(f"if (attn::is_described({name}))"), writer.block("if (lane == 0)"):
            writer.line(f"attn::window_expect({full}, {buffer.bytes});")
            for number in range(-(-keys // width)):
                at = ", ".join([f"{column} + {number * width}", row, *outer])
                writer.line(f"attn::tma_load({to} + {number * queries * ROW_BYTES}, &{name}, {full}, {at});")
        with writer.block("else"):
            writer.line(copied)
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
        self._places: dict[SharedBuffer, str] = {}
        self._starts: dict[ir.Value, str] = {}
        self._bits: dict[ir.Value, str] = {}
        self._stage = stage

    def start(self, buffer: SharedBuffer) -> str:
        """The name of where this thread's elements of a window are, of queries c = 0, which is printed where it has none yet.

        Lane l gives row l % 8 of matrix l / 8, the queries, of two chunks of keys; of f32 the place is that of its own first element.
        """
        name = self._places.get(buffer)
        if name is None:
            name = self._places[buffer] = self.core.names.fresh("window_at")
            keys = "(64 * warpgroup + 16 * warp + lane / 8 % 2 * 8)" if buffer.element != "f32" else "row"
            query = "(lane / 16 * 8 + lane % 8)" if buffer.element != "f32" else "column"
            bytes_ = f"{keys} * {4 if buffer.element == 'f32' else 2}"
            base = f"shared + {buffer.offset} + {buffer.bytes} * {self._stage}"
            self.core.writer.line(f"const uint32_t {name} = {base} + attn::window_place<{self._queries}>({query}, {bytes_});")
        return name

    def declare(self) -> None:
        """Prints where this thread's elements are."""
        for value, (_, buffer) in self._reads.items():
            self._starts[value] = self.start(buffer)
        for value, buffer in self._bands.items():
            name = self._starts[value] = self.core.names.fresh("band_at")
            place = f"4 * (row - column + {self._queries - 1})"
            self.core.writer.line(f"const uint32_t {name} = shared + {buffer.offset} + {buffer.bytes} * {self._stage} + {place};")

    def begin(self, needed: set[ir.Value]) -> None:
        """Prints what stays through a loop over columns in which these values are needed."""
        for value, (_, buffer) in self._reads.items():
            if value in needed and buffer.element != "f32":
                self._bits[value] = self.core.names.fresh("window_bits")
                self.core.writer.line(f"uint32_t {self._bits[value]}[4];")

    def load(self, needed: set[ir.Value]) -> None:
        """Reads the elements of queries `c`, which the map's reads stand for in this scope."""
        core, writer = self.core, self.core.writer
        for value, (op, buffer) in self._reads.items():
            if value not in needed:
                continue
            name, start = core.names.fresh("of_window"), self._starts[value]
            writer.line(f"float {name}[4];")
            if buffer.element == "f32":
                with writer.unrolled("n", 4):
                    writer.line(f"{name}[n] = attn::load_shared({element_place(start)});")
            else:
                bits, kind = self._bits[value], c_type(op.results[0].type)
                writer.line(f"if (c % 2 == 0) attn::load_matrices_transposed({start} + {8 * ROW_BYTES} * c, {bits});")
                with writer.unrolled("h", 2):
                    writer.line(f"attn::window_floats({bits}[c % 2 * 2 + h], {kind}(), {name}[2 * h], {name}[2 * h + 1]);")
            bind_element(core, value, f"{name}[2 * h + e]")
        for value in self._bands:
            if value in needed:
                name = core.names.fresh("of_band")
                core.writer.line(f"float {name}[4];")
                with core.writer.unrolled("n", 4):
                    core.writer.line(f"{name}[n] = attn::load_shared({self._starts[value]} + 4 * (8 * (n / 2) - 8 * c - n % 2));")
                bind_element(core, value, f"{name}[2 * h + e]")
