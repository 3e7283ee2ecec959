"""A machine that records what its warpgroups do, in the order of a model's time: whoever is earliest goes first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from attn_mlir.reference.warp import machine
from attn_mlir.reference.warp.clocks import Barrier
from attn_mlir.reference.warp.costs import COSTS, Costs
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Flight, Queue, Steps, Warpgroup

_QUEUES = {"warp.mma_wait": "products", "warp.load_wait": "loads", "warp.store_wait": "stores", "warp.copy_wait": "copies"}
_OF_LANES = ("warp.copy_lanes_async", "warp.copy_rows_lanes_async")
_COPIES = ("warp.copy_async", "warp.copy_pages_async", "warp.copy_rows_async", "warp.copy_rows_scaled", "warp.copy_window_async")
"""Copies that count at a barrier, their last two operands its stage."""
_DONE: Any = object()
_BARRIERS = ("warp.wait", "warp.arrive", "warp.arrive_expect")


@dataclass
class Event:
    """An op that a warpgroup of a thread block ran, in cycles of the model.

    `kind`: "load", "product", "map", "store", "wait" or "arrive". `location`: the op's, then those in its regions, as MLIR writes them.
    What is asynchronous begins when it is issued and ends when it has landed or, of products and loads to registers, was waited for; a unit
    is `busy` with it from one time to another. `after`: of a wait, the number of the event that ended it, or of the copy or product that it
    was for; None where nobody else did.
    """

    block: int
    unit: str
    kind: str
    op: str
    location: str
    begin: float
    end: float
    busy: tuple[float, float] | None = None
    after: int | None = None

    @property
    def asynchronous(self) -> bool:
        """Whether the warpgroup goes on meanwhile."""
        return self.op.endswith("_async") or self.op in _COPIES


class TimedMachine(Machine):
    """Runs a kernel, and records `record`: events in the order in which they began, those of a warpgroup in the order of its program."""

    def __init__(self, kernel: Inst, arguments: Sequence[Any], costs: Costs, blocks: int, rules: dict[str, Rule]) -> None:
        self.costs, self.record, self.now = costs, list[Event](), 0.0
        self._at: dict[int, float] = {}
        """The time of a warpgroup."""
        self._lands: dict[machine.Event, float] = {}
        self._free: dict[tuple[int, str], float] = {}
        """When a unit of a thread block has done what it was given."""
        self._flights: dict[int, tuple[Flight, int]] = {}
        self._locations: dict[int, str] = {}
        self._phases: dict[tuple[Any, ...], int] = {}
        """The event by which a phase of a barrier was over."""
        super().__init__(kernel, arguments, self._earliest, blocks, rules)

    def _earliest(self, ready: list[Warpgroup], events: list[machine.Event]) -> Warpgroup | machine.Event:
        found = min([*ready, *events], key=self._time)
        self.now = max(self.now, self._time(found))
        if isinstance(found, Warpgroup):
            self._at[id(found)] = self.now
        return found

    def _time(self, item: Warpgroup | machine.Event) -> float:
        return self._at.get(id(item), 0.0) if isinstance(item, Warpgroup) else self._lands[item]

    def step(self, unit: Warpgroup, inst: Inst) -> Steps:
        """Runs an op, and records it where it has a cost."""
        if inst.name not in COSTS:
            yield from super().step(unit, inst)
            return
        yield
        (kind, by, cost), begin, number = COSTS[inst.name], self._at[id(unit)], len(self.record)
        event = Event(unit.block.number, unit.name, kind, inst.name, self._location(inst), begin, begin)
        self.record.append(event)
        waited = self._waited(unit, inst)
        if waited and kind == "wait" and inst.name != "warp.store_wait":
            self._at[id(unit)] = max(begin, *(self._busy(n) for _, n in waited))
            yield
        phase = yield from self._followed(unit, inst, number)
        cycles = cost(self.costs, inst) * len(unit.active) / len(unit.warps)
        event.end = self._at[id(unit)]
        if kind == "wait":
            self._end_wait(unit, inst, number, waited, phase)
        elif event.asynchronous:
            self._fly(unit, inst, number, self._given(unit, by, cycles))
        elif kind != "arrive":
            event.busy = self._given(unit, by, cycles)
            self._at[id(unit)] = event.end = event.busy[1]

    def _location(self, inst: Inst) -> str:
        """Of an op, and then of what its regions hold."""
        if id(inst) not in self._locations:
            inner = [op.location for _, body in inst.blocks for op in body]
            self._locations[id(inst)] = " ".join(dict.fromkeys(map(str, [inst.location, *inner])))
        return self._locations[id(inst)]

    def _given(self, unit: Warpgroup, by: str, cycles: float) -> tuple[float, float]:
        """When a unit that is given work begins and ends."""
        key, at = (unit.block.number, by), self._at[id(unit)]
        begin = max(at, self._free.get(key, 0.0)) if by else at
        self._free[key] = begin + cycles
        return begin, begin + cycles

    def _fly(self, unit: Warpgroup, inst: Inst, number: int, busy: tuple[float, float]) -> None:
        """Notes when what was issued lands."""
        event, latency = self.record[number], 0.0 if inst.name == "warp.mma_async" else self.costs.latency
        event.busy, event.end = busy, busy[1] + latency
        if inst.name not in _COPIES:
            opened = unit.copies.open if inst.name in _OF_LANES else unit.stores.open
            flight = unit.values[inst.results[0]] if inst.results else opened[-1]
            self._flights[id(flight)] = (flight, number)
        new = [n for n, each in enumerate(self.events) if each not in self._lands]
        for part, n in enumerate(new, start=1):
            land = self._landing(unit, inst, number, self.events[n])
            self._lands[land] = event.end - (busy[1] - busy[0]) * (1 - part / len(new))
            self.events[n] = land

    def _landing(self, unit: Warpgroup, inst: Inst, number: int, land: machine.Event) -> machine.Event:
        slot = unit.values[inst.operands[-2]][unit.values[inst.operands[-1]]] if inst.name in _COPIES else None

        def landed() -> None:
            before = slot.phase if slot is not None else 0
            land()
            if slot is not None and slot.phase > before:
                self._phases[id(slot), slot.phase] = number

        return landed

    # ---- who waits for whom

    def _followed(self, unit: Warpgroup, inst: Inst, number: int) -> Steps:
        """Runs an op; notes the phases that its arrivals end. Gives the phase of a named barrier that it waited for."""
        steps, awaited = super().step(unit, inst), 0
        while True:
            slot = self._slot(unit, inst)
            before = slot.phase if slot is not None else 0
            condition = next(steps, _DONE)
            slot = self._slot(unit, inst)
            if slot is not None and slot.phase > before:
                self._phases[id(slot), slot.phase] = number
            if condition is _DONE:
                break
            awaited = before + 1 if condition is not None else awaited
            yield condition
        if inst.name == "warp.order_pass":
            self._phases["order", *self._counter(unit, inst)] = number
        return awaited

    def _slot(self, unit: Warpgroup, inst: Inst) -> Barrier | None:
        """The barrier of an op, if it has one yet."""
        if inst.name in _BARRIERS:
            barrier, stage = (unit.values[v] for v in inst.operands[:2])
            return barrier[stage] if 0 <= stage < len(barrier) else None
        return unit.block.named.get(unit.values[inst.operands[0]]) if inst.name.startswith("warp.named_") else None

    def _counter(self, unit: Warpgroup, inst: Inst) -> tuple[int, int, int]:
        counters, index, number = (unit.values[v] for v in inst.operands)
        return counters.number, index, number

    def _waited(self, unit: Warpgroup, inst: Inst) -> list[tuple[Flight, int]]:
        """What an op waits for in the order in which it was issued."""
        if inst.name not in _QUEUES:
            return []
        queue: Queue = getattr(unit, _QUEUES[inst.name])
        groups = queue.groups[: max(0, len(queue.groups) - inst.attributes["pending"])]
        return [self._flights[id(flight)] for group in groups for flight in group]

    def _busy(self, number: int) -> float:
        """When something asynchronous is done."""
        event = self.record[number]
        assert event.busy is not None
        return event.busy[1] + (self.costs.latency if event.kind == "load" else 0.0)

    def _end_wait(self, unit: Warpgroup, inst: Inst, number: int, waited: list[tuple[Flight, int]], phase: int) -> None:
        """Notes what ended a wait, and that what was waited for has ended."""
        event, slot = self.record[number], self._slot(unit, inst)
        for _, flown in waited:
            if self.record[flown].kind != "store":
                self.record[flown].end = event.end
        if waited:
            event.after = waited[-1][1]
        elif inst.name == "warp.order_wait":
            event.after = self._phases.get(("order", *self._counter(unit, inst)))
        elif slot is not None:
            event.after = self._phases.get((id(slot), unit.waited[id(slot)] + 1 if inst.name == "warp.wait" else phase))
        event.after = None if event.after == number else event.after
