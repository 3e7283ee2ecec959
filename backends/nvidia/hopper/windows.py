"""Windows and bands of captured tensors in shared memory, which idle warps of the producer bring for each block of keys.

The warp that loads tells where a block of keys is; so the other warps need not look at anything else. Each warpgroup of consumers has
a ring of its own, as they read their windows at different times. Bands are a number for each diagonal.
"""

from dataclasses import dataclass

from attn_mlir.backends.gpu.arguments import c_type
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator, of_warps
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, WindowTile, round_up
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

HEADER = "attn_windows.cuh"
WINDOWS = ("tile.load_window", "tile.band")
MOST_DIMENSIONS = 4
"""Of tensors that TMA reads windows of."""
_WARPS = thresholds.WINDOW_WARPS
_SIZES = {"f32": 4, "f16": 2, "bf16": 2}


@dataclass(frozen=True)
class _Part:
    """One window or band of a stage: where it begins in it, bytes of a swizzle atom of columns (0 for a band), its element type."""

    op: ir.Operation
    offset: int
    atom: int
    element: str


def place_window(core: Core, op: ir.Operation) -> list[str]:
    """Prints where a window begins and how far its rows and columns are apart; the names of these, then its rows and columns."""
    source, rows, columns, *offsets = op.operands
    element = c_type(ir.MemRefType(source.type).element_type)
    start, row_stride, column_stride = (core.names.fresh(name) for name in ("window", "window_row", "window_column"))
    begin = " + ".join(f"{core.value(offset)} * {core.arguments.stride(source, n)}" for n, offset in enumerate(offsets))
    core.writer.line(f"const {element} *const {start} = {core.arguments.pointer(source)} + {begin};")
    for name, steps in ((row_stride, "row_steps"), (column_stride, "column_steps")):
        core.writer.line(f"const long long {name} = {_apart(core, source, op.attributes[steps])};")
    return [start, row_stride, column_stride, core.value(rows), core.value(columns)]


def window_boxes(core: Core, op: ir.Operation, size: tuple[int, int]) -> tuple[str, list[str], int] | None:
    """The description of a window's tensor for TMA, in boxes of `size`, the coordinates of the first element, and which one counts rows.

    `size`: rows and columns in memory. None where the window is no box: it must grow by 1 along two dimensions, of which one is the last.
    """
    source, _, _, *offsets = op.operands
    steps = [list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("row_steps", "column_steps")]
    width = ir.MemRefType(source.type).element_type.width
    return boxes_of(core, source, steps, [core.value(offset) for offset in offsets], (size[0], ROW_BYTES * 8 // width))


def boxes_of(
    core: Core, source: ir.Value, steps: list[list[int]], places: list[str], size: tuple[int, int]
) -> tuple[str, list[str], int] | None:
    """The same for elements at `places`, whose indices grow by `steps`, where `size` is that of a box."""
    last, dim = len(places) - 1, row_dimension(steps)
    if dim is None:
        return None
    outer = [places[n] for n in range(last - 1, -1, -1) if n != dim]
    coordinates = [places[last], places[dim], *outer, *["0"] * (2 - len(outer))]
    return core.arguments.window(source, dim - last - 1, size[1], size[0]), coordinates, size[1]


def row_dimension(steps: list[list[int]]) -> int | None:
    """The dimension along which a window's rows in memory follow each other, where it is a box of the copy engine's."""
    rank = len(steps[0])
    ones = [[n for n, step in enumerate(each) if step] for each in steps]
    if not 2 <= rank <= MOST_DIMENSIONS or any(len(each) != 1 for each in ones) or any(sum(each) != 1 for each in steps):
        return None
    (a,), (b,) = ones
    return None if a == b or rank - 1 not in (a, b) else min(a, b)


def _apart(core: Core, source: ir.Value, steps: ir.Attribute) -> str:
    terms = [(n, step) for n, step in enumerate(ir.DenseI64ArrayAttr(steps)) if step]
    return " + ".join(core.arguments.stride(source, n) + (f" * {step}" if step != 1 else "") for n, step in terms)


def bind_element(core: Core, value: ir.Value, text: str) -> None:
    """Makes a float stand for an element of a window, and for what is widened of it."""
    kind = str(value.type)
    core.scalars.bind(value, text if kind == "f32" else core.narrow(text, kind))
    for use in value.uses:
        op = use.owner.operation
        if op.name == "arith.extf" and isinstance(op.results[0].type, ir.F32Type):
            core.scalars.bind(op.results[0], text)


def same_for_batches(kernel: ir.Operation, windows: list[ir.Operation]) -> bool:
    """Whether there are windows, and all batch entries read the same ones."""
    batches = [op.results[0] for op in find_all(kernel, "tile.program_id") if ir.IntegerAttr(op.attributes["axis"]).value == 2]
    found = [op for op in windows if op.name == "tile.load_window"]
    return bool(found) and not any(depends(value, batch) for op in found for value in op.operands for batch in batches)


def windows_of(step: KvStep) -> list[ir.Operation]:
    """The windows and bands that a step reads."""
    return [op for op in step.rest if op.name in WINDOWS]


class WindowRings:
    """Prints what each role does about them. What is told about a block of keys goes through a ring of messages, `kTold`."""

    def __init__(
        self, core: Core, layout: SharedAllocator, steps: list[KvStep], general: KvStep, keys: int, warpgroups: int, depths: tuple[int, int]
    ) -> None:
        """`keys` of a step; `depths`: stages of the ring of keys, and of those of windows."""
        self.core, self.stages = core, depths[0]
        self.general, self.keys, self.warpgroups, self.depth = general, keys, warpgroups, depths[1]
        self.numbers = {op.results[0]: number for step in steps for number, op in enumerate(windows_of(step))}
        if any(list(map(form_of, windows_of(step))) != list(map(form_of, windows_of(general))) for step in steps):
            raise UnsupportedError("hopper: loops over keys read different windows of captured tensors")
        self.parts: list[_Part] = []
        size = 0
        for op in windows_of(general):
            element = str(ir.RankedTensorType(op.results[0].type).element_type)
            if element not in _SIZES or (op.name == "tile.band" and element != "f32"):
                raise UnsupportedError(f"hopper: there are no windows of {element}")
            atom = 0 if op.name == "tile.band" else ROWS * ROW_BYTES
            self.parts.append(_Part(op, size, atom, element))
            size += -(-keys * _SIZES[element] // ROW_BYTES) * atom if atom else round_up(4 * (ROWS + keys - 1), 1024)
        self.bytes = size
        self.together = not all(part.atom for part in self.parts)
        """Whether all these warps bring each warpgroup's windows: what bands hold is computed. Else one warp does, so that none waits."""
        layout.tile("kWindows", warpgroups * self.depth * self.bytes)
        layout.barrier("kToldFull", self.stages, 1)
        layout.barrier("kToldFree", self.stages, of_warps(_WARPS))
        layout.barrier("kWindowsFull", warpgroups * self.depth, 32 * _WARPS if self.together else 32)
        layout.barrier("kWindowsFree", warpgroups * self.depth, of_warps(4))
        layout.slot("kTold", 16 * self.stages)

    def _stage(self, warpgroup: str, iteration: str) -> str:
        return warpgroup if self.depth == 1 else f"({warpgroup} * {self.depth} + {iteration} % {self.depth})"

    def _phase(self, iteration: str) -> str:
        return f"{iteration} & 1" if self.depth == 1 else f"{iteration} / {self.depth} & 1"

    def at(self, name: str, size: int, iteration: str) -> str:
        """The address of the part of a ring that belongs to an iteration."""
        return f"shared + {name}" if self.stages == 1 else f"shared + {name} + {iteration} % {self.stages} * {size}"

    def parity(self, iteration: str) -> str:
        """Which phase of the barriers an iteration waits for."""
        return f"{iteration} & 1" if self.stages == 1 else f"{iteration} / {self.stages} & 1"

    # ---- the warp that loads

    def make(self, iteration: str) -> None:
        """Says where the block of keys of this iteration is: at `kv`, for this program (`block`, `head`, `batch`)."""
        self.tell(iteration, "kv, block, head, batch")

    def end(self, iteration: str) -> None:
        """Says that there are no more."""
        self.tell(iteration, "0, -1, 0, 0")

    def tell(self, iteration: str, message: str) -> None:
        """Leaves a message, once the one before that lay in its place is not needed any more."""
        writer = self.core.writer
        if self.stages & (self.stages - 1):  # its rests are computed again, so that they need no registers in between
            iteration = f"(uint32_t)attn::opaque({iteration})"
        writer.line(f"attn::barrier_wait({self.at('kToldFree', 8, iteration)}, ({self.parity(iteration)}) ^ 1);")
        with writer.block("if (lane == 0)"):
            writer.line(f"attn::store_shared_int4({self.at('kTold', 16, iteration)}, {message});")
            writer.line(f"attn::barrier_arrive({self.at('kToldFull', 8, iteration)});")  # after the message, which it publishes
        writer.line("__syncwarp();")  # lanes stay together: what follows is for all of them

    # ---- the consumers

    def wait(self, iteration: str) -> None:
        """Waits for the windows of this iteration's block, which are known tiles then."""
        core, stage = self.core, self._stage("warpgroup", iteration)
        # The warps that load windows have made this block's.
        core.writer.line(f"attn::barrier_wait(shared + kWindowsFull + {stage} * 8, {self._phase(iteration)});")
        for value, number in self.numbers.items():
            part = self.parts[number]
            start = f"shared + kWindows + {stage} * {self.bytes} + {part.offset}"
            if not part.atom:
                start += f" + 4 * (row % {ROWS} - column + {self.keys - 1})"
            core.tiles[value] = WindowTile(start, part.atom, part.element)

    def free(self, iteration: str) -> None:
        """Gives them back."""
        place = f"shared + kWindowsFree + {self._stage('warpgroup', iteration)} * 8"
        self.core.writer.line("attn::warp_sync();", f"attn::warp_arrive({place}, attn::elect_one());")

    def last_reader(self, step: KvStep) -> ir.Operation:
        """The last of a step's maps that reads them."""
        tiles = [op.results[0] for op in windows_of(step)]
        return [op for op in step.rest if op.name == "tile.map" and any(_reads(op, tile) for tile in tiles)][-1]

    # ---- the warps that load them

    def workers(self, first_warp: int) -> None:
        """Their loop. Warp `first_warp` of the kernel is the first of them."""
        core, writer = self.core, self.core.writer
        with core.scope("for (uint32_t iteration = 0;; ++iteration)"):
            # The producer has left a message.
            writer.line(f"attn::barrier_wait({self.at('kToldFull', 8, 'iteration')}, {self.parity('iteration')});")
            writer.line(f"const int4 message = attn::load_shared_int4({self.at('kTold', 16, 'iteration')});")
            writer.line("const int kv = attn::uniform(message.x), block = attn::uniform(message.y);")
            writer.line("const int head = attn::uniform(message.z), batch = attn::uniform(message.w);", "if (block < 0) break;")
            self._block(f"attn::warp_index() - {first_warp}")

    def _block(self, worker: str) -> None:
        """Prints one share of the windows of `iteration`."""
        core, writer = self.core, self.core.writer
        # All lanes have read what the producer told: its slot may be written again.
        writer.line("attn::warp_sync();", f"attn::warp_arrive({self.at('kToldFree', 8, 'iteration')}, lane == 0);")
        writer.line(f"const int maker = {f'({worker}) * 32 + lane' if self.together else 'lane'};")
        core.scalars.bind(self.general.position, "kv")
        places = [place_window(core, part.op) for part in self.parts if part.atom]
        boxes = [window_boxes(core, part.op, (ROWS, self.keys)) for part in self.parts if part.atom]
        writer.line("#pragma unroll 1")
        first, step = ("0", "++part") if self.together else (worker, f"part += {_WARPS}")
        with core.scope(f"for (int part = {first}; part < {self.warpgroups}; {step})"):
            stage = self._stage("part", "iteration")
            writer.line(f"const uint32_t barrier = shared + kWindowsFull + {stage} * 8, to = shared + kWindows + {stage} * {self.bytes};")
            # Its warpgroup has given back what lay here.
            writer.line(f"attn::barrier_wait(shared + kWindowsFree + {stage} * 8, ({self._phase('iteration')}) ^ 1);")
            writer.line(f"int copies = {'attn::kWritten' if self.together else 'attn::kBulk'};")
            for part in self.parts:
                if part.atom:
                    self._window(part, places.pop(0), boxes.pop(0))
                else:
                    self._band(part)
            writer.line("attn::window_arrive(barrier, copies);")

    def _window(self, part: _Part, place: list[str], boxes: tuple[str, list[str], int] | None) -> None:
        start, row_stride, column_stride, rows, columns = place
        element = c_type(ir.MemRefType(part.op.operands[0].type).element_type)
        size = f"{element}, {ROWS}, {self.keys}, {32 * _WARPS if self.together else 32}"
        where = f"{start}, {row_stride}, {column_stride}, {ROWS} * part, {rows}, {columns}, to + {part.offset}"
        copied = f"attn::load_window<{size}>({where}, maker, copies);"
        if boxes is None:
            self.core.writer.line(copied)
            return
        name, (column, row, *outer), width = boxes
        atoms = -(-self.keys // width)
        with self.core.writer.block(f"if (attn::is_described({name}) && {ROWS} * part + {ROWS} <= {rows})"):
            with self.core.writer.block("if (maker == 0)"):
                self.core.writer.line(f"attn::window_expect(barrier, {atoms * part.atom});")
                for atom in range(atoms):
                    at = ", ".join([f"{column} + {atom * width}", f"{row} + {ROWS} * part", *outer])
                    self.core.writer.line(f"attn::tma_load(to + {part.offset + atom * part.atom}, &{name}, barrier, {at});")
        with self.core.writer.block("else"):
            self.core.writer.line(copied)

    def _band(self, part: _Part) -> None:
        """Number n of a band is that of i - j = n - (keys - 1), with i from the first row of the warpgroup on."""
        core, inner = self.core, body(part.op)
        last = f"max({core.value(part.op.operands[1])} - 1, 0)"
        with core.scope(f"for (int n = maker; n < {ROWS + self.keys - 1}; n += {32 * _WARPS})"):
            core.writer.line(f"const int diagonal = n + {ROWS} * part - {self.keys - 1};")
            core.scalars.bind(inner.arguments[0], "max(diagonal, 0)")
            core.scalars.bind(inner.arguments[1], f"min(max(-diagonal, 0), {last})")
            core.writer.line(f"attn::store_shared(to + {part.offset} + 4 * n, {core.scalars.emit(yielded(inner)[0])});")


def _reads(op: ir.Operation, tile: ir.Value) -> bool:
    return any(inner.name == "tensor.extract" and inner.operands[0] == tile for inner in operations(body(op)))


def form_of(op: ir.Operation) -> tuple[str, str, str]:
    """What windows of several loops have in common if they are the same."""
    if op.name == "tile.band":
        return op.name, str(op.results[0].type), str([inner.operation.name for inner in body(op).operations])
    return op.name, str(op.operands[0]), f"{op.attributes['row_steps']} {op.attributes['column_steps']}"
