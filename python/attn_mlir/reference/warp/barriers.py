"""Rules of barriers, which pass on what warps have seen, and of the order of additions."""

import numpy as np

from attn_mlir.dialects.warp.barriers import FIRST_WARP, IN_TURN
from attn_mlir.dialects.warp.kinds import stages_and_arrivals
from attn_mlir.reference.warp.clocks import Access, Barrier, Clocks, WarpClock
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Steps, Tensor, Warpgroup

_STORED = 2
"""What a counter is when the first sums are in memory."""


def _mbarrier(machine: Machine, unit: Warpgroup, inst: Inst) -> list[list[Barrier]]:
    stages, arrivals = stages_and_arrivals(inst.types[0])
    return [[Barrier(arrivals, arrivals) for _ in range(stages)]]


def _stage(machine: Machine, unit: Warpgroup, inst: Inst, count: int) -> list[int]:
    stages = inst.attributes["stages"]
    return [count % stages, count // stages & 1]


def stage_of(inst: Inst, stages: list[Barrier], stage: int) -> Barrier:
    """The barrier of a stage."""
    if not 0 <= stage < len(stages):
        raise Fault("no such stage", inst.location, f"takes the barrier of stage {stage} of {len(stages)}")
    return stages[stage]


def land_by_halves(
    machine: Machine, inst: Inst, slot: Barrier, by: tuple[WarpClock, Access], copied: tuple[np.ndarray, np.ndarray]
) -> None:
    """What half of the lanes copy, every second number or row, lands on its own, at any time from now on; each of them arrives then.

    `copied`: where it lands, which is unknown until then, and what.
    """
    (warp, access), (to, landed), left = by, copied, [2]
    issued = Clocks.issued(warp)
    to[:] = np.nan

    def land(first: int) -> None:
        to[first::2] = landed[first::2]
        left[0] -= 1
        access.epoch = None if left[0] else 1
        slot.arrive(issued if left[0] else Clocks.after(access.key), machine.lanes // 2)
        if slot.missing < 0:
            raise Fault("too many arrivals", inst.location, f"lanes arrive when {slot}")

    machine.events += [lambda: land(0), lambda: land(1)]


def in_turn(unit: Warpgroup, stage: int) -> WarpClock:
    """The warp that takes a stage where those of a warpgroup do so in turn: the first one only where it is alone."""
    others = unit.active[1:] or unit.active
    return others[stage % len(others)]


def _arrive(machine: Machine, unit: Warpgroup, inst: Inst, barrier: list[Barrier], stage: int) -> Steps:
    yield
    slot = stage_of(inst, barrier, stage)
    for warp in unit.active:
        slot.arrive(warp.release(), 1, inst.attributes.get("bytes", 0))
    if slot.missing < 0:
        raise Fault("too many arrivals", inst.location, f"arrives when {slot}")


def _wait(machine: Machine, unit: Warpgroup, inst: Inst, barrier: list[Barrier], stage: int, phase: int) -> Steps:
    slot = stage_of(inst, barrier, stage)
    unit.why = lambda: f"waits for a phase of parity {phase} of stage {stage} ({slot})"
    yield lambda: (slot.phase - 1) & 1 == phase
    if unit.waited.get(id(slot), -2) >= slot.phase - 1:
        raise Fault("wrong phase", inst.location, f"waits for phase {slot.phase - 1} of stage {stage} again: the next has another parity")
    unit.waited[id(slot)] = slot.phase - 1
    waiting = [in_turn(unit, stage)] if IN_TURN in inst.attributes else unit.active[: 1 if FIRST_WARP in inst.attributes else None]
    slot.waits += [(warp.key, warp.epoch, inst.location) for warp in waiting]
    for warp in waiting:
        warp.clocks.join(slot.last)


def _named(machine: Machine, unit: Warpgroup, inst: Inst, number: int) -> Steps:
    """A barrier at which all only arrive orders nothing: someone has to wait in each phase."""
    yield
    threads, own = inst.attributes["threads"], machine.lanes * len(unit.active)
    slot = unit.block.named.setdefault(number, Barrier(threads, threads))
    phase = slot.phase
    if slot.arrivals != threads or slot.missing < own:
        wanted = f"named barrier {number} is one of {slot.arrivals} threads, {slot.missing} of which are missing"
        raise Fault("wrong threads", inst.location, f"{wanted}: {own} come, to one of {threads}")
    for warp in unit.active:
        slot.arrive(warp.release(), machine.lanes)
    slot.awaited |= inst.name == "warp.named_sync"
    if slot.phase > phase:
        if not slot.awaited:
            raise Fault("nobody waits", inst.location, f"a phase of named barrier {number} is over for which no warpgroup waits")
        slot.awaited = False
    return slot, phase


def _named_arrive(machine: Machine, unit: Warpgroup, inst: Inst, number: int) -> Steps:
    yield from _named(machine, unit, inst, number)


def _named_sync(machine: Machine, unit: Warpgroup, inst: Inst, number: int) -> Steps:
    slot, phase = yield from _named(machine, unit, inst, number)
    unit.why = lambda: f"waits at named barrier {number} ({slot})"
    yield lambda: slot.phase > phase
    for warp in unit.active:
        warp.clocks.join(slot.last)


def _fence_async(machine: Machine, unit: Warpgroup, inst: Inst) -> None:
    for warp in unit.active:
        warp.clocks.fenced.join(warp.release(met=False).seen)


def _checks_counter(inst: Inst, counters: Tensor, index: int) -> None:
    if not 0 <= index < len(counters.array):
        raise Fault("out of bounds", inst.location, f"takes counter {index} of {len(counters.array)}")


def _order_wait(machine: Machine, unit: Warpgroup, inst: Inst, counters: Tensor, index: int, number: int) -> Steps:
    _checks_counter(inst, counters, index)
    unit.why = lambda: f"waits for number {number} of counter {index}, which is {int(counters.array[index])}"
    yield lambda: int(counters.array[index]) == number
    for warp in unit.active:
        warp.clocks.join(machine.orders.get((counters.number, index), Clocks()))


def _order_pass(machine: Machine, unit: Warpgroup, inst: Inst, counters: Tensor, index: int, number: int) -> Steps:
    yield
    _checks_counter(inst, counters, index)
    order = machine.orders.setdefault((counters.number, index), Clocks())
    for warp in unit.active:
        order.join(warp.release())
    counters.array[index] = number


def _order_now(machine: Machine, unit: Warpgroup, inst: Inst, counters: Tensor, index: int) -> Steps:
    yield
    _checks_counter(inst, counters, index)
    for warp in unit.active:
        warp.clocks.join(machine.orders.get((counters.number, index), Clocks()))
    return int(counters.array[index])


def _claim(machine: Machine, unit: Warpgroup, inst: Inst, counters: Tensor, index: int, now: int) -> Steps:
    yield
    _checks_counter(inst, counters, index)
    if now == _STORED:
        return False
    first = int(counters.array[index]) == 0
    if first:
        counters.array[index] = 1
        return True
    unit.why = lambda: f"waits for the first sums of counter {index}, which is {int(counters.array[index])}"
    yield lambda: int(counters.array[index]) == _STORED
    for warp in unit.active:
        warp.clocks.join(machine.orders.get((counters.number, index), Clocks()))
    return False


RULES: dict[str, Rule] = {
    "warp.arrive": _arrive,
    "warp.arrive_expect": _arrive,
    "warp.claim": _claim,
    "warp.fence_async": _fence_async,
    "warp.mbarrier": _mbarrier,
    "warp.named_arrive": _named_arrive,
    "warp.named_sync": _named_sync,
    "warp.order_now": _order_now,
    "warp.order_pass": _order_pass,
    "warp.order_wait": _order_wait,
    "warp.stage": _stage,
    "warp.wait": _wait,
}
