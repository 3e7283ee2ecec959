"""Keys and values of 8 bits beside queries of 16: TMA brings bytes, warps of the producer widen them to the tiles that products read.

The first warp decides what is loaded, as everywhere, and sends bytes to the stages of one ring for all tensors, in the order in which they
are needed; a message of each stage tells which tensor it is. The other warps wait for bytes, and for a free stage of that tensor's own
ring, widen, and say that the stage is full. So global memory is read as it lies, and products see 16 bits.
"""

from collections.abc import Sequence
from typing import Protocol

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.tiles import round_up
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

HEADER = "attn_widen.cuh"
WIDENED = {"f8E4M3FN": "attn::E4M3", "f8E5M2": "attn::E5M2"}
"""Elements that are widened, and their names in C++."""
_C_TYPES = {"f16": "__half", "bf16": "__nv_bfloat16"}
_BOX_COLUMNS, _STEP, _ATOM = 256, 16, 64
"""Columns of a box at most, what they are a multiple of, and what they are one of where several boxes hold a row."""


class WideRing(Protocol):
    """What is known of a ring; see `memory.TileRing`."""

    source: ir.Value
    rows: int
    columns: int
    element: str

    def at(self, iteration: str = "") -> str: ...
    def barrier(self, which: str, iteration: str = "") -> str: ...
    def parity(self, iteration: str = "") -> str: ...


class ByteLayout(Protocol):
    """See `memory.SharedAllocator`."""

    def tile(self, name: str, size: int) -> str: ...
    def barrier(self, name: str, count: int, arrivals: int | str) -> str: ...
    def slot(self, name: str, size: int) -> str: ...


def is_narrow(source: ir.Value) -> bool:
    """Whether a tensor has elements of 8 bits."""
    return is_eight_bit(ir.MemRefType(source.type).element_type)


def widens(kernel: ir.Operation) -> bool:
    """Whether loads of a kernel make 16 bits of 8."""
    return any(is_narrow(load.operands[0]) for load in find_all(kernel, "tile.load"))


class WidenedRings:
    """Prints how bytes come, and what the warps that widen them do."""

    def __init__(self, core: Core, layout: ByteLayout, stages: int, warps: int, ahead: int) -> None:
        """`stages` of bytes, for all tensors together; `warps` widen, whose threads have up to `ahead` loads under way."""
        self.core, self.layout, self.stages, self.warps, self.ahead = core, layout, stages, warps, ahead
        self.rings: list[WideRing] = []
        self.told: dict[int, str] = {}
        """Where two numbers of a message go, for those who read the stage, by the ring's number."""

    def reserve(self, ring: WideRing) -> None:
        """Counts a ring among those that are filled so."""
        self.rings.append(ring)

    def tell(self, ring: WideRing, at: str) -> None:
        """Who reads a stage of this ring finds two numbers `at` an address, made with its `{iteration}`."""
        self.told[self.rings.index(ring)] = at

    def allocate(self) -> None:
        """Makes room for bytes, once all rings are known."""
        self.layout.tile("kRaw", self.stages * self._stage_bytes())
        self.layout.barrier("kRawFull", self.stages, 1)
        self.layout.barrier("kRawFree", self.stages, f"{self.warps} * attn::kWarpArrivals")
        self.layout.slot("kRawMessages", self.stages * 16)

    @staticmethod
    def width(ring: WideRing) -> int:
        """Columns of a box; boxes of a tile follow each other."""
        boxes = -(-ring.columns // _BOX_COLUMNS)
        return round_up(-(-ring.columns // boxes), _STEP if boxes == 1 else _ATOM)

    def boxes(self, ring: WideRing) -> int:
        """How many boxes hold a row."""
        return -(-ring.columns // self.width(ring))

    def bytes(self, ring: WideRing) -> int:
        """What TMA brings of a tile."""
        return self.boxes(ring) * self.width(ring) * ring.rows

    def _stage_bytes(self) -> int:
        return round_up(max(map(self.bytes, self.rings)), 128)

    def at(self) -> str:
        """The address of the next stage of bytes."""
        return f"shared + kRaw + raw % {self.stages} * {self._stage_bytes()}"

    def full(self) -> str:
        """The address of the barrier that its bytes complete."""
        return f"shared + kRawFull + raw % {self.stages} * 8"

    def _together(self, ring: WideRing) -> int:
        """How many parts of 8 rows a thread takes at a time: of one tile it may not have as many as a multiple of that."""
        rounds = -(-(-(-ring.columns // _ATOM) * ring.rows // 8) // self.warps)
        return min(range(1, self.ahead + 1), key=lambda n: (-(-rounds // n) * n * (1 + 1 / n), -n))

    # ---- the producer

    def wait(self) -> None:
        """Waits until the next stage of bytes is free."""
        # Its last bytes have been widened, and its message read.
        self.core.writer.line(f"attn::barrier_wait(shared + kRawFree + raw % {self.stages} * 8, (raw / {self.stages} & 1) ^ 1);")

    def announce(self, ring: WideRing, there: str, told: Sequence[str]) -> list[str]:
        """What one thread does before it copies: the message (whose rows from `there` on do not exist), and how many bytes will come."""
        numbers = [*told, "0", "0"][:2]
        message = f"shared + kRawMessages + raw % {self.stages} * 16"
        return [
            f"attn::store_shared_int4({message}, {self.rings.index(ring)}, {there}, {numbers[0]}, {numbers[1]});",
            # Its one arrival, after the message: who waits for the bytes sees that, too.
            f"attn::barrier_arrive_expect({self.full()}, {self.bytes(ring)});",
        ]

    def end(self) -> None:
        """After the last tile: tells that there is no more."""
        writer = self.core.writer
        self.wait()
        with writer.block("if (lane == 0)"):
            # No copy lands here, so that this arrival completes the phase.
            writer.line(f"attn::store_shared_int4(shared + kRawMessages + raw % {self.stages} * 16, -1, 0, 0, 0);")
            writer.line(f"attn::barrier_arrive({self.full()});")

    # ---- the warps that widen

    def workers(self, first: int) -> None:
        """What these warps do, the first of which is number `first`."""
        core, writer = self.core, self.core.writer
        writer.line(
            f"const int widener = attn::warp_index() - {first};",
            f"uint32_t {', '.join(f'iteration_{n} = 0' for n in range(len(self.rings)))};",
        )
        with core.scope("for (uint32_t raw = 0;; ++raw)"):
            writer.line(f"attn::barrier_wait({self.full()}, raw / {self.stages} & 1);")  # bytes and message are there
            writer.line(f"const int4 asked = attn::load_shared_int4(shared + kRawMessages + raw % {self.stages} * 16);")
            writer.line("if (asked.x < 0) break;", f"const uint32_t from = {self.at()};")
            for number, ring in enumerate(self.rings):
                otherwise = "else " if number else ""
                last = number == len(self.rings) - 1
                head = otherwise.strip() if last and number else f"{otherwise}if (asked.x == {number})"
                with core.scope(head if len(self.rings) > 1 else ""):
                    self._widen(number, ring)

    def _widen(self, number: int, ring: WideRing) -> None:
        writer, iteration = self.core.writer, f"iteration_{number}"
        byte = WIDENED[str(ir.MemRefType(ring.source.type).element_type)]
        cut = "false" if self.core.table_of(ring.source) is None else "true"
        sizes = f"{ring.rows}, {ring.columns}, {self.width(ring)}, {self.warps}, {self._together(ring)}"
        kinds = f"{sizes}, {cut}, {_C_TYPES[ring.element]}, {byte}"
        # Every warp of consumers has given the stage back; of a new ring the phase before counts as over.
        writer.line(f"attn::barrier_wait({ring.barrier('free', iteration)}, ({ring.parity(iteration)}) ^ 1);")
        writer.line(f"attn::widen_tile<{kinds}>(from, {ring.at(iteration)}, asked.y, widener, lane);")
        if number in self.told:
            with writer.block("if (widener == 0 && lane == 0)"):
                at = self.told[number].format(iteration=iteration)
                writer.line(f"attn::store_shared_int({at}, asked.z);", f"attn::store_shared_int({at} + 4, asked.w);")
        writer.line("attn::fence_proxy_async();")  # wgmma reads what was written
        # All lanes have read the 8-bit tile and written the wide one: one arrival gives each on.
        writer.line("attn::warp_sync();", f"attn::warp_arrive(shared + kRawFree + raw % {self.stages} * 8, attn::elect_one());")
        writer.line(f"attn::warp_arrive({ring.barrier('full', iteration)}, attn::elect_one());", f"++{iteration};")
