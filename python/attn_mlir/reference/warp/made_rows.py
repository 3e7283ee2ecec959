"""Rules of numbers that go through shared memory: those of rows that a warp makes, sums along columns, diagonals."""

from typing import Any

import numpy as np

from attn_mlir.reference.warp.barriers import in_turn, stage_of
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.memory import numbers_of
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Buffer, Steps, Warpgroup


def _make_rows(machine: Machine, unit: Warpgroup, inst: Inst, target: Buffer, barrier: Any, stage: int) -> Steps:
    """Ordinary reads and writes of the stage's warp, which then arrives."""
    count, active = target.array.shape[1], unit.active
    unit.active = [in_turn(unit, stage)]
    unit.values.update(zip(inst.blocks[0][0], [np.arange(count)], strict=True))
    (numbers,) = yield from machine.run(unit, inst.blocks[0])
    yield
    slot = stage_of(inst, barrier, stage)
    if not 0 <= stage < len(target.array):
        raise Fault("no such stage", inst.location, f"takes stage {stage} of {len(target.array)}")
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.write(numbers_of(target, stage), warp, access)
        made = np.broadcast_to(np.asarray(numbers), (count,))
        target.array[stage] = np.cumsum(made) if inst.attributes["summed"] else made
        slot.arrive(warp.release(), 1)
    unit.active = active
    if slot.missing < 0:
        raise Fault("too many arrivals", inst.location, f"arrives when {slot}")


def _sum_columns(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray, target: Buffer, row: int) -> Steps:
    yield
    size = len(tile) // len(unit.warps)
    if not 0 <= row <= len(target.array) - len(unit.warps):
        raise Fault("out of bounds", inst.location, f"writes {len(unit.warps)} rows from {row} on of {len(target.array)}")
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.write(numbers_of(target, row + warp.number), warp, access)
        target.array[row + warp.number] = tile[warp.number * size : (warp.number + 1) * size].sum(0)


def _store_sums(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    source, target, slot, batch, head, row, count = operands
    yield
    size, numbers = source.array.shape[1], target.array[slot] if target.array.ndim == len("SBHT") else target.array
    if not 0 <= count <= size or row < 0 or row + count > numbers.shape[2]:
        raise Fault("out of bounds", inst.location, f"stores {count} numbers from {row} on of {numbers.shape[2]}")
    for warp, access in machine.ordinary(unit, inst):
        first, end = warp.number * _LANES, min((warp.number + 1) * _LANES, size)
        if first < end:
            for stage in range(len(source.array)):
                machine.accesses.read(numbers_of(source, stage, first, end - first), warp, access)
            end = min(end, count)
        if first < end:
            cells = [("global", target.number, slot, batch, head, row + place) for place in range(first, end)]
            machine.accesses.write(cells, warp, access)
            numbers[batch, head, row + first : row + end] = source.array[:, first:end].sum(0)


def _write_diagonal(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray, target: Buffer, column: int) -> Steps:
    yield
    size = len(tile) // len(unit.warps)
    for warp, access in machine.ordinary(unit, inst):
        first, end = max(column, warp.number * size), min(column + tile.shape[1], (warp.number + 1) * size)
        if first < end:
            machine.accesses.write(numbers_of(target, 0, first, end - first), warp, access)
            target.array[0, first:end] = tile[range(first, end), range(first - column, end - column)]


_LANES = 32
RULES: dict[str, Rule] = {
    "warp.make_rows": _make_rows,
    "warp.store_sums": _store_sums,
    "warp.sum_columns": _sum_columns,
    "warp.write_diagonal": _write_diagonal,
}
