"""The rule of numbers of rows that a warp makes, or adds up, on their way to shared memory."""

from typing import Any

import numpy as np

from attn_mlir.reference.warp.barriers import stage_of
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.memory import numbers_of
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Buffer, Steps, Warpgroup


def _make_rows(machine: Machine, unit: Warpgroup, inst: Inst, target: Buffer, barrier: Any, stage: int) -> Steps:
    """Ordinary reads and writes of the stage's warp, which then arrives."""
    count, active = target.array.shape[1], unit.active
    others = active[1:] or active
    unit.active = others[stage % len(others) :][:1]
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


RULES: dict[str, Rule] = {"warp.make_rows": _make_rows}
