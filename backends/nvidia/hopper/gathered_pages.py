"""Keys in pages of 16 rows or some multiple: each warp of the producer copies every fourth part of PAGE_ROWS rows of a block by TMA.

What one warp takes to ask for 16 boxes of 16 rows and 64 columns, some 15 instructions each that wait for each other, is about what a block
of 128 keys takes to come.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.backends.gpu.input_limits import PAGE_ROWS
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.gathered_rows import GatheredRows, Ring
from attn_mlir.backends.nvidia.hopper.tiles import atoms
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

SECTION = 3
"""Swizzle atoms of a section."""
_WARPS = 4
"""Those that copy: `attn::kGatherers`."""


@dataclass(frozen=True)
class Boxes:
    """Boxes that hold rows of a tile one after another: where they go, and the barriers of their bytes, one or of SECTION boxes each."""

    to: str
    columns: int
    number: int
    barriers: tuple[str, ...]
    row_bytes: int = ROW_BYTES
    swizzle: int = 128

    def barrier(self, box: int) -> str:
        """That of the bytes of a box."""
        return self.barriers[box // SECTION if len(self.barriers) > 1 else 0]


def of_ring(ring: Any, iteration: str = "") -> Boxes:
    """Those of the stage of this iteration."""
    barriers = tuple(ring.barrier("full", iteration, n) for n in range(ring.sections))
    return Boxes(ring.at(iteration), COLUMNS, atoms(ring.columns), barriers)


def copy_page(core: Core, ring: Ring, boxes: Boxes, rows: int, to: str, place: Sequence[str], some: str) -> None:
    """Copies rows of a page to the bytes `to` of a stage, or, where there are not `some`, zeros. `place`: first row, head and page."""
    descriptor = core.arguments.descriptor(ring.source, boxes.columns, rows, boxes.swizzle)
    outside = core.cluster * boxes.number * boxes.columns
    for box in range(boxes.number):
        address = f"{boxes.to} + {box * ring.rows * boxes.row_bytes} + {to}"
        where = f"{some} ? {core.column_at(ring.source, box * boxes.columns)} : {outside}, {', '.join(place)}"
        core.writer.line(f"attn::tma_load({address}, {descriptor}, {boxes.barrier(box)}, {where});")


def copy_part(core: Core, ring: Ring, boxes: Boxes, part: str, place: Sequence[str], some: str) -> None:
    """Copies part `part` of a block of keys. What is behind the last row of a sequence is copied from columns that a tensor does not have,
    which are zeros, as a page may hold anything there: so the rows of the part that a sequence ends in come one by one."""
    row, head, page = place
    to = f"{part} * {PAGE_ROWS * boxes.row_bytes}"
    with core.writer.block(f"if ({some} % {PAGE_ROWS} == 0)"):
        copy_page(core, ring, boxes, PAGE_ROWS, to, place, f"{some} > 0")
    with core.writer.block("else"):
        core.writer.line("#pragma unroll 1")
        with core.writer.block(f"for (int one = 0; one < {PAGE_ROWS}; ++one)"):
            copy_page(core, ring, boxes, 1, f"{to} + one * {boxes.row_bytes}", (f"{row} + one", head, page), f"one < {some}")


class GatheredPages(GatheredRows):
    """Prints what the warps of the producer do about rings that are filled by parts of pages.

    A message tells of each part its page, its first row there, how many rows it has, and the head.
    """

    arrivals, by_lanes = "1", False

    def reserve(self, ring: Ring, constant: str) -> None:
        """Makes room for messages about the stages of a ring. Raises UnsupportedError for blocks of fewer parts than warps."""
        super().reserve(ring, constant)
        if ring.rows % PAGE_ROWS or not _WARPS <= self._parts(ring) <= 32:
            # A warp without a part would not be waited for before the next message; a lane looks for one page.
            raise UnsupportedError(
                f"hopper: each warp copies parts of pages where a block has {PAGE_ROWS * _WARPS} to {32 * PAGE_ROWS} rows, "
                f"a multiple of {PAGE_ROWS}, not {ring.rows}"
            )

    def _bytes(self, ring: Ring) -> int:
        return 16 * self._parts(ring)

    def _parts(self, ring: Ring) -> int:
        return ring.rows // PAGE_ROWS

    def _head(self, ring: Ring) -> int:
        return 12

    def find(self, ring: Ring, table: ir.Value, place: list[str]) -> None:
        """Each lane looks for the page of a part of a block at `place`."""
        core, (begin, _, batch, count), parts = self.core, place, self._parts(ring)
        size = core.arguments.size(ring.source, 2)
        before = f"attn::gather_page(max({begin} + lane % {parts} * {PAGE_ROWS} - {ring.rows}, 0), {size}, shift)"
        core.writer.line(
            f"const int first = {begin} + lane * {PAGE_ROWS}, some = min(max({count} - lane * {PAGE_ROWS}, 0), {PAGE_ROWS});",
            f"const int shift = attn::gather_shift({size}), number = attn::gather_page(first, {size}, shift);",
            f"const int page = some > 0 ? {core.arguments.element(table, [batch, 'number'])} : 0, at = first - number * {size};",
            f"attn::gather_ahead(&{core.arguments.element(table, [batch, before])});",  # blocks come from the last one on
        )

    def send(self, ring: Ring, head: str, lines: Sequence[str]) -> None:
        """Fills a free stage: tells the other warps, and copies a share. One lane does before what `lines` say, and expects the bytes."""
        core, writer, constant = self.core, self.core.writer, self._constant(ring)
        with core.scope(""):
            writer.line(
                f"const uint32_t message = {self._message(ring, constant, ring.iteration)};",
                f"if (lane < {self._parts(ring)}) attn::store_shared_int4(message + lane * 16, page, at, some, {head});",
                "attn::warp_sync();",
            )
            with writer.block("if (lane == 0)"):
                writer.line(*lines, f"attn::barrier_arrive({self._asked(ring, constant, ring.iteration)});")  # wakes the other warps
            self._copy(ring, head, ring.iteration, "0")

    def _copy(self, ring: Ring, head: str, iteration: str, gatherer: str) -> None:
        core, boxes = self.core, of_ring(ring, iteration)
        # One lane asks for all: the stage may be used again before another lane has seen this phase of `Asked`, or read its message.
        parts = self._parts(ring)
        core.writer.line("attn::warp_sync();", "#pragma unroll")
        with core.writer.block(f"for (int turn = 0; turn < {parts}; turn += {_WARPS})"):
            core.writer.line(f"const int part = turn + {gatherer};")
            if parts % _WARPS:
                core.writer.line(f"if (part >= {parts}) break;")
            core.writer.line("const int4 told = attn::load_shared_int4(message + part * 16);")
            with core.writer.block("if (lane == 0)"):
                copy_part(core, ring, boxes, "part", ("told.y", "told.w", "told.x"), "told.z")
