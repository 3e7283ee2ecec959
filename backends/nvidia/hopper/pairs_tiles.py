"""Gradients of dense captured tensors by tiles: weights take the place of the window that they are the gradient of, and TMA adds it."""

from attn_mlir.backends.gpu.structure import body, yielded
from attn_mlir.backends.host import read_kernel
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, key_count, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer
from attn_mlir.backends.nvidia.hopper.pairs_uses import uses_of
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES
from attn_mlir.backends.nvidia.hopper.windows import boxes_of, row_dimension
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.tiling.positions import Positions, window_of

SLOTS = 3
"""Dimensions in front of what is scattered to: chunks, batch and heads."""
_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
_C_TYPES = {"f32": "float", "f16": "__half", "bf16": "__nv_bfloat16"}


def tiled_scatters(block: ir.Block) -> dict[ir.Operation, int]:
    """The scatters of a step that go to boxes of memory, with the number of a window of the same shape, whose place they take.

    None where no sums over keys are made, before which all weights are in shared memory, or where numbers of other types are read, of
    which there are no windows: the gradient could be theirs.
    """
    windows = ops_of(block, "tile.load_window")
    if not ops_of(block, "tile.accumulate") or _reads_other_numbers(block):
        return {}
    found: dict[ir.Operation, int] = {}
    for scatter in (op for scatters in uses_of(block)[0].scattered.values() for op in scatters):
        steps = _steps(scatter)
        same = [n for n, op in enumerate(windows) if steps is not None and _steps_of_window(op) == steps]
        free = [n for n in same if n not in found.values()]
        if free and len({str(windows[n].results[0].type) for n in same}) == 1:
            found[scatter] = free[0]
    return found


def _reads_other_numbers(block: ir.Block) -> bool:
    """Whether maps read elements of f64 or of 8 bits one by one."""
    loads = [op for map_ in ops_of(block, "tile.map") for op in find_all(map_, "memref.load")]
    types = [op.results[0].type for op in loads]
    return any(isinstance(type_, ir.FloatType) and str(type_) not in _BYTES for type_ in types)


def _steps(scatter: ir.Operation) -> list[list[int]] | None:
    _, _, *indices = yielded(body(scatter))
    window = window_of(Positions(body(scatter)), indices)
    steps = None if window is None else [list(each)[SLOTS:] for each in (window.row_steps, window.column_steps)]
    return steps if steps is not None and steps[0][-1] == 1 and row_dimension(steps) is not None else None


def _steps_of_window(op: ir.Operation) -> list[list[int]]:
    return [list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("row_steps", "column_steps")]


def elements_of(layout: BackwardLayout) -> dict[ir.Operation, str]:
    """The scatters that are made by tiles, and the element type of what is sent."""
    step = layout.kernel.steps[0] if layout.kernel.steps else None
    found = tiled_scatters(step) if step is not None and layout.by_tiles else {}
    windows = [] if step is None else ops_of(step, "tile.load_window")
    return {op: str(ir.RankedTensorType(windows[number].results[0].type).element_type) for op, number in found.items()}


def narrow_sums(layout: BackwardLayout) -> str:
    """What a schedule says of them: "" where there are none."""
    arguments = list(layout.kernel.function.regions[0].blocks[0].arguments)
    told = [(op, element) for op, element in elements_of(layout).items() if element != "f32"]
    return ",".join(f"{arguments.index(op.operands[0]) + 1 - len(arguments)}:{element}" for op, element in told)


def apart_along(kernel: PairsKernel, op: ir.Operation) -> tuple[bool, bool, bool]:
    """Whether programs of different chunks, heads of queries and batches never add to the same elements."""
    grid = read_kernel(kernel.function, _outputs(kernel.function))
    arguments = list(kernel.function.regions[0].blocks[0].arguments)
    chunk, head, batch = grid.disjoint[arguments.index(op.operands[0]) + 1 + len(grid.outputs) - len(arguments)] or (False,) * 3
    return chunk, head, batch


class WindowSums:
    """Prints them for the consumers."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout) -> None:
        self.core, self.kernel, self.layout = core, kernel, layout

    def of_step(self, block: ir.Block) -> dict[ir.Operation, SharedBuffer]:
        """The scatters that are made so, and the memory of their windows."""
        if not self.layout.by_tiles:
            return {}
        return {op: self.layout.windows[number] for op, number in tiled_scatters(block).items()}

    def clear(self, block: ir.Block, stage: str) -> None:
        """Makes 0 what is added for keys that do not exist."""
        for buffer in self.of_step(block).values():
            count, size = key_count(self.core, self.kernel), f"{_C_TYPES[buffer.element]}, {self.kernel.queries}"
            with self.core.writer.block(f"if ({count} < {self.kernel.keys})"):
                where = f"{_place(buffer, stage)}, {ROWS} * warpgroup + 16 * warp"
                self.core.writer.line(f"attn::clear_columns<{size}>({where}, {count}, lane);")

    def send(self, block: ir.Block, stage: str, limit: str | None) -> None:
        """Has them added, once all are in shared memory: here, or by a warp of the producer where TMA does it."""
        core, writer, queries = self.core, self.core.writer, self.kernel.queries
        for op, buffer in self.of_step(block).items():
            with core.scope(""):
                element, target = _C_TYPES[buffer.element], op.operands[0]
                places, steps, boxes = self._place(op, buffer)
                if not self.layout.tile_warps:
                    with writer.block(f"if (attn::is_described({boxes[0]}))"), writer.block("if (threadIdx.x % 128 == 0)"):
                        self._copy(op, buffer, boxes, stage, "warpgroup")
                        writer.line("attn::bulk_commit();")
                with writer.block(f"if (!attn::is_described({boxes[0]}))" if self.layout.tile_warps else "else"):
                    terms = [f"(long long){place} * {core.arguments.stride(target, n)}" for n, place in enumerate(places)]
                    row_dim = row_dimension(steps)
                    assert row_dim is not None
                    rows = core.arguments.stride(target, SLOTS + row_dim)
                    columns = core.arguments.stride(target, len(places) - 1)
                    writer.line(
                        f"float *const to = {core.arguments.pointer(target)} + {' + '.join(terms)};",
                        f"attn::add_window<{element}, {queries}>(to, {rows}, {columns}, {_place(buffer, stage)}, {ROWS} * warpgroup, "
                        f"{queries if limit is None else limit}, {key_count(core, self.kernel)}, threadIdx.x % 128);",
                    )

    def send_from(self, block: ir.Block, stage: str, part: str) -> None:
        """What one thread of a warp of the producer does for the tile of warpgroup `part`, where TMA can write it."""
        core, writer = self.core, self.core.writer
        for op, buffer in self.of_step(block).items():
            with core.scope(""):
                _, _, boxes = self._place(op, buffer)
                with writer.block(f"if (attn::is_described({boxes[0]}))"):
                    self._copy(op, buffer, boxes, stage, part)
        writer.line("attn::bulk_commit();")

    def clear_rows(self, op: ir.Operation, queries: str, part: str) -> None:
        """Makes 0 what is for so many first queries, of warpgroup `part`'s keys, where TMA writes the others; a warp does."""
        core, buffer, over = self.core, self.of_step(self.kernel.steps[0])[op], op.operands[0]
        arguments = core.arguments
        _, _, *indices = yielded(body(op))
        core.scalars.bind(body(op).arguments[0], "0")
        loop = ops_of(self.kernel.query_loop, "scf.for")[0].regions[0].blocks[0].arguments[0]
        core.scalars.bind(loop, "0")
        core.scalars.bind(body(op).arguments[1], "0")
        places, steps = [core.value(index) for index in indices], _steps(op)
        assert steps is not None
        boxes = boxes_of(core, over, steps, places[SLOTS:], (self.kernel.queries, ROW_BYTES // _BYTES[buffer.element]))
        row_dim = row_dimension(steps)
        assert boxes is not None and row_dim is not None
        rows, length = arguments.stride(over, SLOTS + row_dim), arguments.size(over, SLOTS + row_dim)
        terms = " + ".join(f"(long long){place} * {arguments.stride(over, n)}" for n, place in enumerate(places[SLOTS:], SLOTS))
        alone = "" if apart_along(self.kernel, op)[2] else " && in_turn && batch == 0"
        with core.scope(f"if (attn::is_described({boxes[0]}){alone})"):
            element = _C_TYPES[buffer.element]
            core.writer.line(
                f"{element} *const to = reinterpret_cast<{element} *>({arguments.pointer(over)}) + {terms};",
                f"attn::clear_rows<{element}>(to, {rows}, {ROWS} * {part}, min((int){queries}, {length}), "
                f"{key_count(core, self.kernel)}, lane);",
            )

    def _place(self, op: ir.Operation, buffer: SharedBuffer) -> tuple[list[str], list[list[int]], tuple[str, list[str], int]]:
        """Where a tile belongs: indices of its first element, how they grow along rows and columns, and its boxes."""
        core = self.core
        _, _, *indices = yielded(body(op))
        steps = _steps(op)
        assert steps is not None
        core.scalars.bind(body(op).arguments[0], "0")
        core.scalars.bind(body(op).arguments[1], "0")
        places = [core.value(index) for index in indices]
        boxes = boxes_of(core, op.operands[0], steps, places[SLOTS:], (self.kernel.queries, ROW_BYTES // _BYTES[buffer.element]))
        assert boxes is not None
        return places, steps, boxes

    def _copy(self, op: ir.Operation, buffer: SharedBuffer, boxes: tuple[str, list[str], int], stage: str, part: str) -> None:
        """Prints the copies of a warpgroup's part."""
        name, (column, row, *outer), width = boxes
        atoms, atom, alone = ROWS // width, self.kernel.queries * ROW_BYTES, self._alone(op)
        for number in range(atoms):
            at = ", ".join([f"{column} + {ROWS} * {part} + {number * width}", row, *outer])
            sent = f"(&{name}, {_place(buffer, stage)} + {atom} * ({atoms} * {part} + {number}), {at});"
            if alone == "true":
                self.core.writer.line(f"attn::tma_store{sent}")
                continue
            self.core.writer.line(*([f"if ({alone}) attn::tma_store{sent}", "else"] if alone else []), f"attn::tma_add{sent}")

    def _alone(self, op: ir.Operation) -> str:
        """When nothing has been added to an element before, so that it is stored; "" if never."""
        chunk, head, batch = apart_along(self.kernel, op)
        if not chunk or not head or self.core.packed:
            return ""
        if batch:
            return "true"
        return "in_turn && batch == 0" if self.layout.turns else f"{self.core.arguments.size(self.kernel.over, 0)} == 1"

    def free(self) -> None:
        """Waits until TMA has read those of a step, where consumers have it do so."""
        if self.layout.tile_warps:
            return
        pending = int(bool(self.layout.adds) and not self.layout.reduction_warps)  # sums over keys are sent later
        self.core.writer.line(f"if (threadIdx.x % 128 == 0) attn::bulk_wait_read<{pending}>();")


class TileStores:
    """What one map writes of them, four elements of a thread at a time."""

    def __init__(self, core: Core, tiles: dict[ir.Operation, tuple[SharedBuffer, str]]) -> None:
        """`tiles`: by scatters, their memory and where this thread's elements are (`PairWindows.start`)."""
        self.core, self.tiles = core, tiles
        self._bits: dict[ir.Operation, str] = {}
        self._parts: dict[ir.Operation, str] = {}

    def declare(self) -> None:
        """Prints what stays through the columns."""
        for op, (buffer, _) in self.tiles.items():
            if buffer.element != "f32":
                self._bits[op] = self.core.names.fresh("tile_bits")
                self.core.writer.line(f"uint32_t {self._bits[op]}[4];")

    def begin(self) -> None:
        """Prints what is for queries `c` alone."""
        for op in self.tiles:
            self._parts[op] = self.core.names.fresh("of_tile")
            self.core.writer.line(f"float {self._parts[op]}[4];")

    def element(self, op: ir.Operation, present: list[str], value: str) -> None:
        """Takes one element."""
        text = f"{' && '.join(present)} ? {value} : 0.0f" if present else value
        self.core.writer.line(f"{self._parts[op]}[2 * h + e] = {text};")

    def end(self) -> None:
        """Writes those of queries `c`."""
        writer = self.core.writer
        for op, (buffer, start) in self.tiles.items():
            part = self._parts[op]
            if buffer.element == "f32":
                with writer.unrolled("n", 4):
                    writer.line(f"attn::store_shared({element_place(start)}, {part}[n]);")
                continue
            bits, pack = self._bits[op], PACKS[buffer.element]
            with writer.unrolled("h", 2):
                writer.line(f"{bits}[c % 2 * 2 + h] = attn::{pack}({part}[2 * h], {part}[2 * h + 1]);")
            words = ", ".join(f"{bits}[{n}]" for n in range(4))
            writer.line(f"if (c % 2) attn::store_matrices_transposed({start} + {8 * ROW_BYTES} * (c - 1), {words});")


def element_place(start: str) -> str:
    """Where element n = 2 h + e of queries `c` is in a window of f32."""
    return f"({start} ^ n % 2 * 16 ^ n / 2 * 32) + {ROW_BYTES} * (8 * c + n % 2)"


def _outputs(function: ir.Operation) -> int:
    return len(ir.ArrayAttr(ir.DictAttr(function.attributes["tile.kernel"])["outputs"]))


def _place(buffer: SharedBuffer, stage: str) -> str:
    return f"shared + {buffer.offset} + {buffer.bytes} * {stage}"
