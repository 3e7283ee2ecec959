"""The rule of copies of rows that lie in pages."""

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


def _copy_pages_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """The parts of a warp land together, those of different warps each on their own, at any time from now on."""
    source, table, batch, head, row, end, view, barrier, stage = operands
    yield
    slot, parts = stage_of(inst, barrier, stage), len(view.array) // PART_ROWS
    if row % PART_ROWS or source.array.shape[2] % PART_ROWS:
        message = f"copies from row {row} on of pages of {source.array.shape[2]} rows: both are multiples of {PART_ROWS}"
        raise Fault("out of bounds", inst.location, message)
    size = bytes_of(inst.sources[6]) // parts
    for warp in unit.active:
        own = range(warp.number, parts, len(unit.active))
        access, landed = Access(("copy", next(machine.ids)), inst.location), list[tuple[View, np.ndarray]]()
        for part in own:
            to = view.part(part * PART_ROWS, PART_ROWS)
            rows, cells = _part(inst, (source, table), (batch, head), row + part * PART_ROWS, end)
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


def _part(inst: Inst, memory: tuple[Tensor, Tensor], place: tuple[int, int], first: int, end: int) -> tuple[np.ndarray, list[Any]]:
    """The rows of a part before `end`, none of a page that there is not, and the names of their parts of memory."""
    (source, table), (batch, head), count = memory, place, min(end - first, PART_ROWS)
    pages, heads, size, _ = source.array.shape
    if not (0 <= batch < len(table.array) and 0 <= head < heads):
        raise Fault("out of bounds", inst.location, f"takes head {head} of {heads}, sequence {batch} of {len(table.array)}")
    if count <= 0:
        return source.array[0, 0, :0], []
    if not 0 <= first // size < table.array.shape[1]:
        raise Fault("out of bounds", inst.location, f"reads entry {first // size} of a table of {table.array.shape[1]} pages a sequence")
    page, at = int(table.array[batch, first // size]), first % size
    if not 0 <= page < pages:
        return source.array[0, 0, :0], []
    return source.array[page, head, at : at + count], [("global", source.number, page, head, at + n) for n in range(count)]


def _landing(slot: Barrier, access: Access, landed: list[tuple[View, np.ndarray]], size: int) -> Callable[[], None]:
    def land() -> None:
        for to, made in landed:
            to.array[:] = made
        access.epoch = 1
        clock = {access.key: 1}
        slot.arrive(Clocks(clock, dict(clock)), 0, -size)

    return land


RULES: dict[str, Rule] = {"warp.copy_pages_async": _copy_pages_async}
