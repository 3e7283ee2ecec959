"""Runs thread blocks of a kernel in the `warp` dialect: warpgroups interleaved by a scheduler, copies and stores that land late."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.warp.clocks import Access, Accesses, WarpClock
from attn_mlir.reference.warp.faults import Fault, line_of
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Block, Steps, Tensor, Warpgroup

Event = Callable[[], None]
Choice = Callable[[list[Warpgroup], list[Event]], Any]
"""Which of the warpgroups that can go on, or which event, comes next."""
Rule = Callable[..., Any]
"""(machine, unit, op, operands...) -> the results: one, a list, or steps that end with these."""


@dataclass(frozen=True)
class Residency:
    """Which thread blocks have a multiprocessor: `most` of them at a time, that begin in the order of their numbers in `begin`.

    The next one begins when one has ended. CUDA promises no more: other kernels may have all other multiprocessors while this one runs.
    """

    begin: tuple[int, ...]
    most: int


class Machine:
    """Thread blocks of a kernel that run at the same time, over tensors in global memory."""

    def __init__(
        self,
        kernel: Inst,
        arguments: Sequence[Any],
        choose: Choice,
        blocks: int,
        rules: dict[str, Rule],
        residency: Residency | None = None,
    ) -> None:
        """`arguments`: arrays, written in place, and numbers. Buffers, barriers and roles of all `blocks` are made.

        Without `residency` all of them run from the start.
        """
        self.residency = residency or Residency(tuple(range(blocks)), blocks)
        if sorted(self.residency.begin) != list(range(blocks)) or self.residency.most < 1:
            raise ValueError(f"{self.residency} is no order of {blocks} thread blocks of which some run")
        self.choose, self.blocks, self.rules, self.ids = choose, blocks, rules, itertools.count()
        self.events: list[Event] = []
        self.accesses = Accesses()
        self.orders: dict[tuple[int, int], Any] = {}
        self.lanes = kernel.attributes["lanes"]
        self._packed: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        names, body = kernel.blocks[0]
        parted = _parted(names, body)
        given = [Tensor(n, a, names[n] in parted) if isinstance(a, np.ndarray) and a.ndim else a for n, a in enumerate(arguments)]
        self.units = [unit for number in range(blocks) for unit in self._start(Block(number), dict(zip(names, given, strict=True)), body)]

    def _start(self, block: Block, values: dict[int, Any], body: list[Inst]) -> list[Warpgroup]:
        setup, units = Warpgroup("kernel", block, [], values, body[0].location), []
        for inst in body:
            if inst.name != "warp.role":
                for _ in self.step(setup, inst):
                    raise Fault("kernel waits", inst.location, "what stands directly in a kernel does not wait")
                continue
            role, (index, inside) = inst.attributes["sym_name"], inst.blocks[0]
            for n in range(inst.attributes["warpgroups"]):
                warps = [WarpClock((block.number, role, n, w), w) for w in range(inst.attributes["warps"])]
                unit = Warpgroup(f"{role} {n}", block, warps, {**setup.values, index[0]: n}, inst.location, warps)
                unit.steps = self.run(unit, (index, inside))
                units.append(unit)
        return units

    def packed(self, source: Tensor, heads: int, location: ir.Location) -> Tensor:
        """A tensor [B, H, S, ...] seen as [B, H / heads, S x heads, ...]: a copy for all thread blocks, written back at the end."""
        key = source.number, heads
        if source.array.shape[1] % heads:
            raise Fault("out of bounds", location, f"packs {heads} heads of {list(source.array.shape)}")
        if key not in self._packed:
            array = source.array
            apart = array.reshape(len(array), -1, heads, *array.shape[2:]).swapaxes(2, 3)
            made = Tensor(source.number, apart.reshape(*apart.shape[:2], -1, *array.shape[3:]).copy())
            self._packed[key] = source, made
        return self._packed[key][1]

    def _unpack(self) -> None:
        for (_, heads), (source, made) in self._packed.items():
            apart = made.array.reshape(*made.array.shape[:2], -1, heads, *made.array.shape[3:]).swapaxes(2, 3)
            source.array[...] = apart.reshape(source.array.shape)

    def execute(self) -> int:
        """Runs to the end; the number of steps. Raises Fault where something is wrong."""
        steps = self._execute()
        self._unpack()
        return steps

    def _execute(self) -> int:
        units, steps, later = list[Warpgroup](), 0, list(self.residency.begin)
        while units or later or self.events:
            while later and len({u.block.number for u in units}) < self.residency.most:
                number = later.pop(0)
                units += [u for u in self.units if u.block.number == number]
            ready = [u for u in units if u.condition is None or u.condition()]
            if not ready and not self.events:
                stuck = "; ".join(f"{u.name} of block {u.block.number}, {line_of(u.location)}, {u.why()}" for u in units)
                waiting = f"; blocks {', '.join(map(str, later))} have not begun" if later else ""
                raise Fault("deadlock", units[0].location, f"nothing can go on: {stuck}{waiting}")
            chosen, steps = self.choose(ready, self.events), steps + 1
            if not isinstance(chosen, Warpgroup):
                self.events.remove(chosen)
                chosen()
                continue
            assert chosen.steps is not None
            try:
                chosen.condition = next(chosen.steps)
            except StopIteration:
                units.remove(chosen)
                if chosen.stores.open or any(store.reads for store in chosen.stores.older(0)):
                    raise Fault("unfinished store", chosen.location, "a role ends while a store may still read shared memory") from None
                if chosen.copies.open or chosen.copies.older(0):
                    raise Fault("unfinished copy", chosen.location, "a role ends while what its lanes copy was not waited for") from None
        return steps

    def run(self, unit: Warpgroup, block: tuple[list[int], list[Inst]]) -> Steps:
        """Runs the ops of a block; what its last op yields."""
        values = unit.values
        for inst in block[1]:
            if inst.scalar is not None:  # most ops: what they take no time for needs no generator
                values[inst.results[0]] = inst.scalar(*[values[v] for v in inst.operands])
            elif inst.ends:
                return [values[v] for v in inst.operands]
            else:
                yield from self.step(unit, inst)
        return []

    def step(self, unit: Warpgroup, inst: Inst) -> Steps:
        """Runs an op."""
        values = unit.values
        operands = [values[v] for v in inst.operands]
        if inst.scalar is not None:
            values[inst.results[0]] = inst.scalar(*operands)
            return
        rule = self.rules.get(inst.name)
        if rule is None:
            raise EvaluationError(f"the evaluator of scheduled kernels has no rule for '{inst.name}'", inst.location)
        unit.location = inst.location
        made = rule(self, unit, inst, *operands)
        if hasattr(made, "send"):
            made = yield from made
        if inst.results:
            values.update(zip(inst.results, made if isinstance(made, list) else [made], strict=True))

    def ordinary(self, unit: Warpgroup, inst: Inst) -> list[tuple[WarpClock, Access]]:
        """An ordinary access of each active warp."""
        return [(warp, Access(warp.key, inst.location, True, warp.epoch)) for warp in unit.active]


_WRITES = ("warp.store", "warp.atomic_add", "warp.store_async", "warp.add_async", "warp.store_lanes")


def _parted(arguments: Sequence[int], body: Sequence[Inst]) -> set[int]:
    """The tensors of which some ops write a part of the columns."""
    found: set[int] = set()
    for inst in body:
        for _, inner in inst.blocks:
            found |= _parted(arguments, inner)
        if inst.name in _WRITES and inst.operands[1] in arguments:
            written, whole = (type_.shape for type_ in inst.sources[:2] if isinstance(type_, ir.ShapedType))
            if len(written) > 1 and written[1] != whole[-1]:
                found.add(inst.operands[1])
    return found
