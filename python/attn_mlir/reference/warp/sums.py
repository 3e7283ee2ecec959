"""The rule of numbers of rows that a warp adds up on their way to shared memory."""

from typing import Any

import numpy as np

from attn_mlir.reference.warp.barriers import stage_of
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.memory import numbers_of
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Buffer, Steps, Warpgroup


def _sum_rows(machine: Machine, unit: Warpgroup, inst: Inst, target: Buffer, barrier: Any, stage: int) -> Steps:
    """Ordinary writes of the stage's warp, which then arrives."""
    count = target.array.shape[1]
    unit.values.update(zip(inst.blocks[0][0], [np.arange(count)], strict=True))
    (numbers,) = yield from machine.run(unit, inst.blocks[0])
    yield
    slot = stage_of(inst, barrier, stage)
    if not 0 <= stage < len(target.array):
        raise Fault("no such stage", inst.location, f"takes stage {stage} of {len(target.array)}")
    for warp, access in machine.ordinary(unit, inst)[stage % len(unit.active) :][:1]:
        machine.accesses.write(numbers_of(target, stage), warp, access)
        target.array[stage] = np.cumsum(np.broadcast_to(np.asarray(numbers), (count,)))
        slot.arrive(warp.release(), 1)
    if slot.missing < 0:
        raise Fault("too many arrivals", inst.location, f"arrives when {slot}")


RULES: dict[str, Rule] = {"warp.sum_rows": _sum_rows}
