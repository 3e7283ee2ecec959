"""Keys in pages of any size (key lists of single keys): the warps of the producer copy each row from where a table says it is.

One of them decides what is loaded, as everywhere, and tells the others for each stage where its rows are, through shared memory.
"""

from collections.abc import Sequence
from typing import Protocol

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

HEADER = "attn_gather.cuh"
ARRIVALS = "1 + 32 * attn::kGatherers"
"""Those of a full stage: each lane's, when what it copied is there, and one when the rest is."""
GATHERING = thresholds.GATHERING_REGISTERS
_ALIGN = 8
"""Elements of what a lane copies at a time."""


class Ring(Protocol):
    """What is known of a ring; see `memory.TileRing`."""

    source: ir.Value
    rows: int
    columns: int
    stages: int
    iteration: str

    def at(self, iteration: str = "") -> str: ...
    def barrier(self, which: str, iteration: str = "") -> str: ...
    def parity(self, iteration: str = "") -> str: ...


class Layout(Protocol):
    """See `memory.SharedAllocator`."""

    def barrier(self, name: str, count: int, arrivals: int | str) -> str: ...
    def slot(self, name: str, size: int) -> str: ...


class GatheredRows:
    """Prints what the warps of the producer do about rings whose rows are copied one by one, in the order in which these are filled."""

    arrivals = ARRIVALS
    by_lanes = True
    """Lanes write, which is something else to fences than what TMA brings."""

    def __init__(self, core: Core, layout: Layout) -> None:
        self.core, self.layout = core, layout
        self.rings: list[tuple[Ring, str]] = []

    def reserve(self, ring: Ring, constant: str) -> None:
        """Makes room for messages about the stages of a ring. Raises UnsupportedError for rows that no lane copies."""
        if ring.columns % _ALIGN or ring.rows % 16:
            raise UnsupportedError(f"hopper: rows are copied one by one where they have a multiple of {_ALIGN} columns, not {ring.columns}")
        self.layout.barrier(f"{constant}Asked", ring.stages, 1)
        self.layout.slot(f"{constant}Rows", ring.stages * self._bytes(ring))
        self.rings.append((ring, constant))

    def _bytes(self, ring: Ring) -> int:
        """Page and place of each row, and the head, or -1 where no more is asked for."""
        return 8 * ring.rows + 16

    def _head(self, ring: Ring) -> int:
        """Where in a message the head is."""
        return 8 * ring.rows

    def find(self, ring: Ring, table: ir.Value, place: list[str]) -> None:
        """Lane l looks where rows l, l + 32, ... of a block at `place` are. Pages that there are not are as rows that there are not."""
        core, (begin, _, batch, count), each = self.core, place, -(-ring.rows // 32)
        size, pages = core.arguments.size(ring.source, 2), core.arguments.size(ring.source, 0)
        core.writer.line(f"int pages[{each}], places[{each}];", f"const int shift = attn::gather_shift({size});")
        with core.writer.unrolled("i", each):
            core.writer.line(f"const int row = 32 * i + lane, at = {begin} + row;")
            core.writer.line(f"const int number = attn::gather_page(at, {size}, shift);")
            page = core.arguments.element(table, [batch, "number"])
            core.writer.line(f"const int page = row < {count} ? {page} : -1;")
            core.writer.line(f"pages[i] = page < {pages} ? page : -1, places[i] = at - number * {size};")
        with core.writer.unrolled("i", each):
            before = f"attn::gather_page(max({begin} + 32 * i + lane - {ring.rows}, 0), {size}, shift)"  # blocks come from the last one on
            ahead = core.arguments.element(table, [batch, before])
            core.writer.line(f"attn::gather_ahead(&{ahead});")

    def send(self, ring: Ring, head: str, lines: Sequence[str]) -> None:
        """Fills a free stage: tells the other warps, and copies a share. One lane does before what `lines` say."""
        core, writer = self.core, self.core.writer
        constant, each = self._constant(ring), -(-ring.rows // 32)
        with core.scope(""):
            writer.line(f"const uint32_t message = {self._message(ring, constant, ring.iteration)};")
            with writer.unrolled("i", each):
                inside = f"if (32 * i + lane < {ring.rows}) " if ring.rows % 32 else ""
                writer.line(f"{inside}attn::gather_tell(message, 32 * i + lane, pages[i], places[i]);")
            writer.line("attn::warp_sync();")
            with writer.block("if (lane == 0)"):
                writer.line(*lines, f"attn::store_shared_int(message + {self._head(ring)}, {head});")
                writer.line(
                    # One arrival at `full`, whose others are the copies, and one that wakes the other warps, which copy their shares.
                    f"attn::barrier_arrive({ring.barrier('full')});",
                    f"attn::barrier_arrive({self._asked(ring, constant, ring.iteration)});",
                )
            writer.line("attn::warp_sync();")
            self._copy(ring, head, ring.iteration, "0")

    def _constant(self, ring: Ring) -> str:
        return next(name for other, name in self.rings if other is ring)

    def _message(self, ring: Ring, constant: str, iteration: str) -> str:
        return f"shared + {constant}Rows + {iteration} % {ring.stages} * {self._bytes(ring)}"

    def _asked(self, ring: Ring, constant: str, iteration: str) -> str:
        return f"shared + {constant}Asked + {iteration} % {ring.stages} * 8"

    def _copy(self, ring: Ring, head: str, iteration: str, gatherer: str) -> None:
        arguments = self.core.arguments
        pages, rows, heads = (arguments.stride(ring.source, dim) for dim in (0, 2, 1))
        to = f"{ring.at(iteration)}, {ring.barrier('full', iteration)}, {gatherer}, lane"
        self.core.writer.line(
            f"attn::gather_rows<{ring.rows}, {ring.columns}>({arguments.pointer(ring.source, _ALIGN)} + {head} * {heads}, {pages}, {rows},",
            f"    message, {to});",
        )

    def end(self) -> None:
        """After its last stage, the first warp tells the others that there is no more. Raises UnsupportedError without pages."""
        if not self.rings:
            raise UnsupportedError("hopper: gather says how pages are copied, and these keys do not lie in pages: leave it out")
        (ring, constant), writer = self.rings[0], self.core.writer
        writer.line(f"attn::barrier_wait({ring.barrier('free')}, ({ring.parity()}) ^ 1);")  # the stage's last message may still be read
        with writer.block("if (lane == 0)"):
            writer.line(f"attn::store_shared_int({self._message(ring, constant, ring.iteration)} + {self._head(ring)}, -1);")
            # The workers read the message after this alone.
            writer.line(f"attn::barrier_arrive({self._asked(ring, constant, ring.iteration)});")

    def workers(self, first: int) -> None:
        """What the other warps do, the first of which is number `first`."""
        core, writer = self.core, self.core.writer
        with core.scope("for (uint32_t iteration = 0;; ++iteration)"):
            for number, (ring, constant) in enumerate(self.rings):
                with core.scope("" if number else None):
                    # The first warp has found a free stage, and told which rows.
                    writer.line(f"attn::barrier_wait({self._asked(ring, constant, 'iteration')}, {ring.parity('iteration')});")
                    name = f"asked{number or ''}"
                    with core.scope(""):
                        writer.line(f"const uint32_t message = {self._message(ring, constant, 'iteration')};")
                        writer.line(f"const int {name} = attn::load_shared_int(message + {self._head(ring)});")
                        if not number:
                            writer.line(f"if ({name} < 0) break;")
                        self._copy(ring, name, "iteration", f"attn::warp_index() - {first - 1}")
