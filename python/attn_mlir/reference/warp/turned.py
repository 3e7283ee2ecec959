"""Rules of tiles in shared memory that are read or written transposed, cleared, or stored by lanes."""

from typing import Any

import numpy as np

from attn_mlir.dialects.warp.layouts import column_at
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.memory import place_of
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Steps, View, Warpgroup


def _read_transposed(machine: Machine, unit: Warpgroup, inst: Inst, view: View) -> Steps:
    """Each warp reads all rows, of its columns: rows are watched whole."""
    yield
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.read(view.cells(), warp, access)
    return unit.made([view.array.T.copy()])


def _write_transposed(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray, view: View) -> Steps:
    """Each warp writes to all rows, its columns."""
    yield
    size = len(tile) // len(unit.warps)
    for warp, access in machine.ordinary(unit, inst):
        own = slice(warp.number * size, (warp.number + 1) * size)
        machine.accesses.write(view.columns(own.start, size).cells(), warp, access)
        view.array[:, own] = tile[own].T


def _clear_rows(machine: Machine, unit: Warpgroup, inst: Inst, view: View, first: int) -> Steps:
    yield
    size = len(view.array) // len(unit.warps)
    for warp, access in machine.ordinary(unit, inst):
        begin, end = max(first, warp.number * size), (warp.number + 1) * size
        if begin < end:
            machine.accesses.write(view.part(begin, end - begin).cells(), warp, access)
            view.array[begin:end] = 0.0


def _transpose(machine: Machine, unit: Warpgroup, inst: Inst, source: View, target: View) -> Steps:
    """Each warp reads all rows of its columns."""
    yield
    turned = source.array[[column_at(place) for place in range(len(source.array))]].T
    for number, (warp, access) in enumerate(machine.ordinary(unit, inst)):
        machine.accesses.read(source.cells(), warp, access)
        for first in range(16 * number, len(turned), 16 * len(unit.warps)):
            part = target.part(first, 16)
            machine.accesses.write(part.cells(), warp, access)
            part.array[:] = turned[first : first + 16]


def _store_lanes(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """Each warp reads its rows of shared memory and writes those that count; columns as of `_store_async`."""
    view, target, batch, head, row, column, count = operands
    yield
    place_of(inst, target, batch, head)
    size, width = len(view.array) // len(unit.warps), view.array.shape[1]
    if not 0 <= count <= len(view.array) or row < 0 or row + count > target.heads.shape[2]:
        raise Fault("out of bounds", inst.location, f"stores {count} rows from {row} on of {target.heads.shape[2]}")
    for warp, access in machine.ordinary(unit, inst):
        begin, end = warp.number * size, min((warp.number + 1) * size, count)
        if begin < end:
            machine.accesses.read(view.part(begin, end - begin).cells(), warp, access)
            to, _, cells = target.rows(batch, head, row + begin, end - begin)
            machine.accesses.write(target.columns(cells, column, width), warp, access)
            to[:, column : column + width] = view.array[begin:end]


RULES: dict[str, Rule] = {
    "warp.clear_rows": _clear_rows,
    "warp.read_transposed": _read_transposed,
    "warp.store_lanes": _store_lanes,
    "warp.transpose": _transpose,
    "warp.write_transposed": _write_transposed,
}
