"""Rules of rows that lie in pages: where they are, and copies of them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.dialects.warp.pages import PART_ROWS
from attn_mlir.reference.warp.barriers import stage_of
from attn_mlir.reference.warp.clocks import Access, Barrier, Clocks
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Steps, Tensor, View, Warpgroup


def _find_pages(machine: Machine, unit: Warpgroup, inst: Inst, table: Tensor, *operands: int) -> list[list[int]]:
    batch, size, row, end = operands
    if row % PART_ROWS or size % PART_ROWS:
        raise Fault("out of bounds", inst.location, f"looks for row {row} in pages of {size} rows: both are multiples of {PART_ROWS}")
    rows = [row + n * PART_ROWS for n in range(inst.types[0].shape[0])]
    most = max((r // size for r in rows if r < end), default=0)
    if not (0 <= batch < len(table.array) and row >= 0 and most < table.array.shape[1]):
        raise Fault("out of bounds", inst.location, f"reads entry {most} of sequence {batch} of a table of {list(table.array.shape)}")
    return [[int(table.array[batch, r // size]) if r < end else 0 for r in rows], [r % size for r in rows]]


def _copy_pages_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """The parts of a warp land together, those of different warps each on their own, at any time from now on."""
    source, pages, places, head, row, end, view, barrier, stage = operands
    yield
    slot, size = stage_of(inst, barrier, stage), bytes_of(inst.sources[6]) // len(pages)
    for warp in unit.active:
        own = range(warp.number, len(pages), len(unit.active))
        access, landed = Access(("copy", next(machine.ids)), inst.location), list[tuple[View, np.ndarray]]()
        for part in own:
            to = view.part(part * PART_ROWS, PART_ROWS)
            rows, cells = _part(inst, source, (pages[part], head, places[part]), end - row - part * PART_ROWS)
            machine.accesses.write(to.cells(), warp, access)
            machine.accesses.read(cells, warp, access, full=False)
            made = np.zeros(to.array.shape)
            made[: len(rows), : source.array.shape[3]] = rows
            to.array[:] = np.nan
            landed.append((to, made))
        slot.arrive(warp.release(), 1, len(own) * size)
        if slot.missing < 0:
            raise Fault("too many arrivals", inst.location, f"arrives when {slot}")
        if landed:
            machine.events.append(_landing(slot, access, landed, len(own) * size))


def _part(inst: Inst, source: Tensor, where: tuple[int, int, int], left: int) -> tuple[np.ndarray, list[Any]]:
    """The rows of a part, at most `left`, none of a page that there is not, and the names of their parts of memory."""
    (page, head, at), (pages, heads, size, _) = where, source.array.shape
    if not 0 <= head < heads or at + PART_ROWS > size:
        raise Fault("out of bounds", inst.location, f"takes head {head} of {heads}, rows from {at} on of {size}")
    count = min(left, PART_ROWS)
    if count <= 0 or not 0 <= page < pages:
        return source.array[0, 0, :0], []
    return source.array[page, head, at : at + count], [("global", source.number, page, head, at + n) for n in range(count)]


def _landing(slot: Barrier, access: Access, landed: list[tuple[View, np.ndarray]], size: int) -> Callable[[], None]:
    def land() -> None:
        for to, made in landed:
            to.array[:] = made
        access.epoch = 1
        slot.arrive(Clocks.after(access.key), 0, -size)

    return land


RULES: dict[str, Rule] = {"warp.copy_pages_async": _copy_pages_async, "warp.find_pages": _find_pages}
