"""Shared memory of a Hopper kernel: tiles that stay, rings of stages that TMA fills, and their barriers."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import gcd

from attn_mlir.backends.gpu.input_limits import PAGE_ROWS
from attn_mlir.backends.nvidia.hopper.core import Core, check_element
from attn_mlir.backends.nvidia.hopper.gathered_pages import SECTION, Boxes, GatheredPages, copy_page, copy_part, of_ring
from attn_mlir.backends.nvidia.hopper.gathered_rows import GatheredRows
from attn_mlir.backends.nvidia.hopper.tiles import SharedTile, atoms, round_up, tile_bytes
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES
from attn_mlir.backends.nvidia.hopper.widened_rings import WidenedRings, is_narrow
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

ALIGNMENT = 1024
BOX_ROWS = 64
"""Rows of a page that are copied at a time where it has them."""


def of_warps(warps: int) -> str:
    """The arrivals that a barrier awaits where so many warps give something back (`attn::warp_arrive`)."""
    return f"{warps} * attn::kWarpArrivals"


@dataclass
class SharedAllocator:
    """Hands out shared memory: tiles first, then barriers. Offsets are C++ constants of the kernel."""

    tiles: int = 0
    barriers: list[tuple[str, int, str]] = field(default_factory=list)
    constants: list[tuple[str, int]] = field(default_factory=list)
    slots: list[tuple[str, int]] = field(default_factory=list)

    def tile(self, name: str, size: int) -> str:
        """The constant that is the offset of `size` bytes."""
        self.constants.append((name, self.tiles))
        self.tiles += round_up(size, ALIGNMENT)
        return name

    def barrier(self, name: str, count: int, arrivals: int | str) -> str:
        """The constant that is the offset of so many barriers, 8 bytes each."""
        self.barriers.append((name, count, str(arrivals)))
        return name

    def slot(self, name: str, size: int) -> str:
        """The constant that is the offset of `size` bytes for numbers that roles exchange, at a multiple of 16."""
        self.slots.append((name, round_up(size, 16)))
        return name

    def bytes(self) -> int:
        """All of it."""
        return self.tiles + self._barrier_bytes() + sum(size for _, size in self.slots)

    def _barrier_bytes(self) -> int:
        return round_up(8 * sum(count for _, count, _ in self.barriers), 16)

    def declarations(self) -> list[str]:
        """The constants."""
        constants, offset = list(self.constants), self.tiles
        for name, count, _ in self.barriers:
            constants.append((name, offset))
            offset += 8 * count
        offset = self.tiles + self._barrier_bytes()
        for name, size in self.slots:
            constants.append((name, offset))
            offset += size
        return [f"constexpr uint32_t {name} = {value};" for name, value in constants]

    def initialisation(self) -> list[str]:
        """What one thread does before all others start."""
        lines = []
        for name, count, arrivals in self.barriers:
            lines += [f"attn::barrier_init(shared + {name}{f' + {8 * n}' if n else ''}, {arrivals});" for n in range(count)]
        # Copies and other threads see the mbarriers initialised.
        return [*lines, "attn::barrier_init_fence();"]


@dataclass
class TileRing:
    """Stages of shared memory that the producer fills with tiles of one tensor, in turn, and that the consumers empty.

    `rows` and `columns` of a tile. Both roles count in `iteration` how many stages they have used.
    """

    name: str
    source: ir.Value
    rows: int
    columns: int
    element: str
    stages: int
    offset: str
    full: str
    free: str
    iteration: str = ""
    sections: int = 1
    """A full stage has a barrier for each SECTION swizzle atoms of columns."""

    @property
    def bytes(self) -> int:
        return tile_bytes(self.rows, self.columns)

    def _of_stage(self, base: str, size: int, iteration: str) -> str:
        return f"shared + {base}" if self.stages == 1 else f"shared + {base} + {iteration} % {self.stages} * {size}"

    def at(self, iteration: str = "") -> str:
        """The address of the stage of this iteration."""
        return self._of_stage(self.offset, self.bytes, iteration or self.iteration)

    def barrier(self, which: str, iteration: str = "", section: int = 0) -> str:
        """The address of the barrier `full` or `free` of the stage of this iteration."""
        full = which == "full"
        at = self._of_stage(self.full if full else self.free, 8 * self.sections if full else 8, iteration or self.iteration)
        return f"{at} + {8 * section}" if section else at

    def section_bytes(self, section: int) -> int:
        """What a section brings."""
        return (min(atoms(self.columns), (section + 1) * SECTION) - section * SECTION) * self.rows * ROW_BYTES

    def parity(self, iteration: str = "") -> str:
        """Which phase of the barriers this iteration waits for."""
        iteration = iteration or self.iteration
        return f"{iteration} & 1" if self.stages == 1 else f"{iteration} / {self.stages} & 1"


class SharedMemory:
    """The shared memory of one kernel, and the statements that fill, await and free it."""

    def __init__(self, core: Core, warps: int) -> None:
        """`warps` of consumers free a stage together."""
        self.core, self.warps = core, warps
        self.layout = SharedAllocator()
        self.rings: dict[tuple[int, int], TileRing] = {}
        self.program_tiles: list[tuple[ir.Operation, SharedTile]] = []
        self.gathered: GatheredRows | None = None
        """Who copies rows of pages one by one, where they are."""
        self.widened: WidenedRings | None = None
        """Who widens tiles of 8 bits, where there are any."""
        self.in_sections = False
        """Whether consumers begin with the first columns of a stage while the others are on their way."""

    # ---- what there is

    def ring(self, load: ir.Operation, stages: int) -> TileRing:
        """The ring that a `tile.load` in a loop takes a stage of; loads of one tensor with as many rows share it."""
        core, source = self.core, load.operands[0]
        rows, columns = core.rows(load.results[0].type), core.columns(load.results[0].type)
        key = (core.arguments.number(source), rows)
        if key not in self.rings:
            name = core.names.fresh(core.arguments.names[key[0]])
            constant, gathered, widened = f"k{name[0].upper()}{name[1:]}", self._gatherer(source), self._widened(source)
            sections = -(-atoms(columns) // SECTION) if self.in_sections and not (gathered and gathered.by_lanes) else 1
            arrivals = of_warps(self.widened.warps) if widened and self.widened else gathered.arrivals if gathered else 1
            self.rings[key] = TileRing(
                name, source, rows, columns, check_element(load, load.results[0] if widened else source), stages,
                self.layout.tile(constant, stages * tile_bytes(rows, columns)),
                self.layout.barrier(f"{constant}Full", stages * sections, arrivals),
                self.layout.barrier(f"{constant}Free", stages, of_warps(self.warps)), sections=sections,
            )  # fmt: skip
            self.rings[key].iteration = core.names.fresh(f"{name}_iteration")
            if gathered is not None:
                gathered.reserve(self.rings[key], constant)
            if widened and self.widened is not None:
                self.widened.reserve(self.rings[key])
        return self.rings[key]

    def program_tile(self, load: ir.Operation) -> SharedTile:
        """The place of a tile that a program loads once."""
        core, source = self.core, load.operands[0]
        for other, tile in self.program_tiles:
            if other == load:
                return tile
        rows, columns = core.rows(load.results[0].type), core.columns(load.results[0].type)
        name = core.names.fresh(core.arguments.names[core.arguments.number(source)])
        constant = self.layout.tile(f"k{name[0].upper()}{name[1:]}", tile_bytes(rows, columns))
        if not self.program_tiles:
            self.layout.barrier("kResidentFull", 1, 1)
            self.layout.barrier("kResidentFree", 1, of_warps(self.warps))
        tile = SharedTile(f"shared + {constant}", rows, columns, check_element(load, source))
        self.program_tiles.append((load, tile))
        return tile

    def gather(self, how: int | str) -> None:
        """Which warps copy pages: 0: the one that decides what is loaded; 1: all, row by row; 2: all, by parts. Else UnsupportedError."""
        ways = {1: GatheredRows, 2: GatheredPages}
        if how not in (0, *ways):
            raise UnsupportedError(f"hopper: gather can be 0, 1 or 2 in a schedule, not {how!r}")
        self.gathered = ways[int(how)](self.core, self.layout) if how else None

    def _gatherer(self, source: ir.Value) -> GatheredRows | None:
        return self.gathered if self.core.table_of(source) is not None else None

    def _widened(self, source: ir.Value) -> bool:
        return self.widened is not None and is_narrow(source)

    # ---- the producer

    def load(self, load: ir.Operation, ring: TileRing) -> None:
        """Fills the next stage of the ring."""
        _, batch, head, begin, count = load.operands
        place = [self.core.value(value) for value in (begin, head, batch, count)]
        self.fill(ring, place)
        self.core.writer.line(f"++{ring.iteration};")

    def fill(self, ring: TileRing, place: list[str]) -> None:
        """Fills the next stage of the ring with the rows at `place`: first one, head, batch, how many. The caller counts the iteration."""
        with self.core.scope("") if self.core.table_of(ring.source) is not None else nullcontext():
            self.find_pages(ring, place)
            self.await_free(ring)
            self.send(ring, place, elected="attn::elect_one()")

    def await_free(self, ring: TileRing) -> None:
        """Waits until the next stage may be filled."""
        if self.widened is not None and self._widened(ring.source):
            self.widened.wait()
            return
        # Every warp of consumers has given the stage back; of a new ring the phase before counts as over.
        self.core.writer.line(f"attn::barrier_wait({ring.barrier('free')}, ({ring.parity()}) ^ 1);")

    def _boxes(self, ring: TileRing) -> Boxes:
        """Those of the ring's next stage, or, where it is widened, of the next stage of bytes."""
        if self.widened is not None and self._widened(ring.source):
            width = self.widened.width(ring)
            return Boxes(self.widened.at(), width, self.widened.boxes(ring), (self.widened.full(),), width, 0)
        return of_ring(ring)

    def _expect(self, ring: TileRing, place: list[str], numbers: Sequence[str]) -> list[str]:
        """What one thread tells of a stage before it is filled."""
        if self.widened is not None and self._widened(ring.source):
            # What is behind the last row of a sequence in pages is copied, and not widened.
            there = str(ring.rows) if self.core.table_of(ring.source) is None else place[3]
            return self.widened.announce(ring, there, numbers)
        if ring.sections == 1:
            return [f"attn::barrier_arrive_expect({ring.barrier('full')}, {ring.bytes});"]
        told = [(ring.barrier("full", "", n), ring.section_bytes(n)) for n in range(ring.sections)]
        return [f"attn::barrier_arrive_expect({barrier}, {size});" for barrier, size in told]

    def load_program_tiles(self, round: str) -> None:
        """Loads the tiles that stay, when those of the program before are not needed any more."""
        if not self.program_tiles:
            return
        writer = self.core.writer
        total = sum(tile.rows * ROW_BYTES * tile.atoms for _, tile in self.program_tiles)
        writer.line(f"attn::barrier_wait(shared + kResidentFree, ({round} & 1) ^ 1);")  # the program before reads its tiles to its end
        places = [[self.core.value(load.operands[number]) for number in (3, 2, 1, 4)] for load, _ in self.program_tiles]
        with writer.block("if (attn::elect_one())"):
            # Bytes first: a copy may land before the next line.
            writer.line(f"attn::barrier_arrive_expect(shared + kResidentFull, {total});")
            for (load, tile), place in zip(self.program_tiles, places, strict=True):
                self._copy(load.operands[0], tile.rows, Boxes(tile.address, COLUMNS, tile.atoms, ("shared + kResidentFull",)), place)

    def _copy(self, source: ir.Value, rows: int, boxes: Boxes, place: list[str]) -> None:
        if rows > 256 or rows % 8:
            raise UnsupportedError(f"hopper: tiles in shared memory have a multiple of 8 rows, up to 256, not {rows}")
        core, where = self.core, self.core.arguments.copied_at(source, *place[:3])
        descriptor = core.arguments.descriptor(source, boxes.columns, rows, boxes.swizzle)
        for box in range(boxes.number):
            address = f"{boxes.to} + {box * rows * boxes.row_bytes}" if box else boxes.to
            core.writer.line(
                f"attn::tma_load({address}, {descriptor}, {boxes.barrier(box)}, {core.column_at(source, box * boxes.columns)}, {where});"
            )

    def find_pages(self, ring: TileRing, place: list[str]) -> None:
        """Each lane looks for the page of PAGE_ROWS rows of a block of keys at `place`; nothing where these do not lie in pages."""
        core, source, table = self.core, ring.source, self.core.table_of(ring.source)
        if table is None:
            return
        if self.gathered is not None:
            self.gathered.find(ring, table, place)
            return
        size, (begin, _, batch, count) = core.arguments.size(source, 2), place
        page = core.arguments.element(table, [batch, f"(first / {size})"])
        core.writer.line(
            f"const int first = {begin} + lane * {PAGE_ROWS}, some = min(max({count} - lane * {PAGE_ROWS}, 0), {PAGE_ROWS});",
            f"const int page = some > 0 ? {page} : 0, at = first % {size};",
        )

    def send(
        self, ring: TileRing, place: list[str], lines: Sequence[str] = (), elected: str = "lane == 0", numbers: Sequence[str] = ()
    ) -> None:
        """Fills a free stage; one thread does, and before that what `lines` say. All lanes know where pages are (`find_pages`).

        Of a ring that is widened the others do, whom `numbers` are told (`WidenedRings.told`).
        """
        core, writer, widened = self.core, self.core.writer, self._widened(ring.source)
        gathered = self._gatherer(ring.source)
        if gathered is not None:
            gathered.send(ring, place[1], [*lines, *([] if gathered.by_lanes else self._expect(ring, place, numbers))])
            return
        lines = [] if widened else lines
        if core.table_of(ring.source) is None:
            with writer.block(f"if ({elected})"):
                writer.line(*lines, *self._expect(ring, place, numbers))
                self._copy(ring.source, ring.rows, self._boxes(ring), place)
        else:
            self._send_pages(ring, place, [*lines, *self._expect(ring, place, numbers)])
        if widened:
            writer.line("++raw;")

    def _send_pages(self, ring: TileRing, place: list[str], lines: Sequence[str]) -> None:
        """Up to BOX_ROWS rows of one page are copied at a time, as the engine takes about as long for 16. What is behind the last row of a
        sequence is copied from columns that a tensor does not have, which are zeros: a page may hold anything there. So the rows of
        PAGE_ROWS that a sequence ends in come one by one (`copy_part`), unless they are widened, which makes zeros of them.
        """
        core, writer = self.core, self.core.writer
        if ring.rows % PAGE_ROWS or ring.rows > 32 * PAGE_ROWS:
            raise UnsupportedError(f"hopper: blocks of keys in pages are multiples of {PAGE_ROWS}, not {ring.rows}")
        with writer.block("if (lane == 0)"):
            writer.line(*lines)
        most, boxes = gcd(ring.rows, BOX_ROWS), self._boxes(ring)
        if most == PAGE_ROWS:
            self._send_parts(ring, boxes, place, "0", ring.rows // PAGE_ROWS)
            return
        size = core.arguments.size(ring.source, 2)
        with writer.block(f"if ({size} >= {most})"):
            writer.line("#pragma unroll")
            with writer.block(f"for (int box = 0; box < {ring.rows}; box += {most})"):
                of_lane = ", ".join(f"{name}_at = __shfl_sync(0xffffffffu, {name}, box / {PAGE_ROWS})" for name in ("page", "at"))
                writer.line(f"const int left = {place[3]} - box, {of_lane};")
                with writer.block(f"if (left <= 0 || (left >= {most} && at_at + {most} <= {size}))"):
                    with writer.block("if (lane == 0)"):
                        copy_page(core, ring, boxes, most, f"box * {boxes.row_bytes}", ("at_at", place[1], "page_at"), "left > 0")
                with writer.block("else"):
                    self._send_parts(ring, boxes, place, f"box / {PAGE_ROWS}", most // PAGE_ROWS)
        with writer.block("else"):
            self._send_parts(ring, boxes, place, "0", ring.rows // PAGE_ROWS)

    def _send_parts(self, ring: TileRing, boxes: Boxes, place: list[str], begin: str, parts: int) -> None:
        """Copies so many times PAGE_ROWS rows from part `begin` of a block of keys on, each from the page that its lane has found."""
        writer = self.core.writer
        writer.line("#pragma unroll")
        first = "" if begin == "0" else f"{begin} + "
        with writer.block(f"for (int part = {begin}; part < {first}{parts}; ++part)"):
            shared = ", ".join(f"{name}_at = __shfl_sync(0xffffffffu, {name}, part)" for name in ("page", "at", "some"))
            writer.line(f"const int {shared};")
            with writer.block("if (lane == 0)"):
                where = ("at_at", place[1], "page_at")
                if self._widened(ring.source):
                    copy_page(self.core, ring, boxes, PAGE_ROWS, f"part * {PAGE_ROWS * boxes.row_bytes}", where, "some_at > 0")
                else:
                    copy_part(self.core, ring, boxes, "part", where, "some_at")

    # ---- the consumers

    def wait(self, ring: TileRing, iteration: str = "") -> SharedTile:
        """Waits for the stage of this iteration; the tile in it."""
        for section in range(ring.sections):
            self.wait_section(ring, section, iteration)
        gathered = self._gatherer(ring.source)
        if gathered is not None and gathered.by_lanes:
            self.core.writer.line("attn::fence_proxy_async();")  # lanes wrote what wgmma reads
        return SharedTile(ring.at(iteration), ring.rows, ring.columns, ring.element)

    def wait_section(self, ring: TileRing, section: int, iteration: str = "") -> None:
        """Waits for some of its columns."""
        # Its bytes have landed.
        self.core.writer.line(f"attn::barrier_wait({ring.barrier('full', iteration, section)}, {ring.parity(iteration)});")

    def free(self, ring: TileRing, iteration: str = "") -> None:
        """Gives the stage back; every warp does, once all lanes have read what the producer wrote for the stage."""
        self.core.writer.line("attn::warp_sync();", f"attn::warp_arrive({ring.barrier('free', iteration)}, attn::elect_one());")

    def wait_program_tiles(self, round: str) -> None:
        """Waits for the tiles that stay."""
        if self.program_tiles:
            # One phase a program: they are loaded once.
            self.core.writer.line(f"attn::barrier_wait(shared + kResidentFull, {round} & 1);")
        self.core.tiles.update({load.results[0]: tile for load, tile in self.program_tiles})

    def free_program_tiles(self) -> None:
        """They may be overwritten; every warp says so."""
        if self.program_tiles:
            # The products that read them have been waited for.
            self.core.writer.line("attn::warp_arrive(shared + kResidentFree, attn::elect_one());")

    def iterations(self) -> list[str]:
        """Declarations of the counters of both roles."""
        names = list(dict.fromkeys(ring.iteration for ring in self.rings.values()))
        return [f"uint32_t {' = 0, '.join(names)} = 0;"] if names else []
