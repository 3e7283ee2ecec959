"""Rules of matrix products: asynchronous ones count as reading until they are waited for, and only then have a value."""

from typing import Any

import numpy as np

from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import column_at
from attn_mlir.reference.warp.clocks import Access, WarpClock
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.memory import rounded
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Flight, Joined, Steps, View, Warpgroup


def _registers(machine: Machine, unit: Warpgroup, inst: Inst) -> np.ndarray:
    return np.full(inst.types[0].shape, np.nan)


def _operands(
    machine: Machine, unit: Warpgroup, inst: Inst, a: View | np.ndarray, b: View | Joined, accesses: list[tuple[WarpClock, Access]]
) -> np.ndarray:
    """a b; each warp reads its rows of a, and all of b."""
    turned, turned_b = inst.attributes["transpose_a"], inst.attributes["transpose_b"]
    for warp, access in accesses:
        cells = list(b.cells())
        if isinstance(a, View):
            size = len(a.array) // len(unit.warps)
            cells += a.cells() if turned else a.part(warp.number * size, size).cells()
        machine.accesses.read(cells, warp, access)
    left, right = a.array if isinstance(a, View) else a, b.array
    found = inst.source_fragments[1]
    if found is not None and found.is_eight_bit:
        left = left[:, [column_at(place) for place in range(left.shape[1])]]
    return (left.T if turned else left) @ (right.T if turned_b else right)


def _mma_async(machine: Machine, unit: Warpgroup, inst: Inst, start: Any, a: View | np.ndarray, b: View | Joined, keep: bool) -> Steps:
    yield
    if id(start) in unit.written or id(a) in unit.written:
        raise Fault("missing mma_begin", inst.location, "registers that other ops wrote need 'warp.mma_begin' before a product")
    flight = Flight([(warp, Access(warp.key, inst.location)) for warp in unit.active])
    value = _operands(machine, unit, inst, a, b, flight.accesses)
    before = start.value if isinstance(start, Flight) else start
    flight.value = rounded(value + before if keep else value, settled(inst.types[0]))
    unit.products.open.append(flight)
    return flight


def _mma(machine: Machine, unit: Warpgroup, inst: Inst, start: np.ndarray, a: View | np.ndarray, b: View | Joined) -> Steps:
    yield
    value = start + _operands(machine, unit, inst, a, b, machine.ordinary(unit, inst))
    return unit.made([rounded(value, inst.types[0])])


def _mma_wait(machine: Machine, unit: Warpgroup, inst: Inst, product: Flight) -> list[np.ndarray]:
    for flight in unit.products.take(inst.attributes["pending"]):
        flight.finish()
        flight.done = True
    if not product.done:
        raise Fault("product in flight", inst.location, "gives an accumulator that a product still writes: not committed, or left pending")
    return [product.value]


def _hold(machine: Machine, unit: Warpgroup, inst: Inst, tile: View, held: np.ndarray) -> View:
    """What product takes the tile reads all of it here, which is not less than on a GPU."""
    if not np.array_equal(tile.array[:, : held.shape[1]], held, equal_nan=True):
        raise Fault("other numbers", inst.location, "holds other numbers than those in the first columns of the tile")
    return tile


def _mma_begin(machine: Machine, unit: Warpgroup, inst: Inst) -> None:
    unit.written.clear()


RULES: dict[str, Rule] = {
    "warp.hold": _hold,
    "warp.mma": _mma,
    "warp.mma_async": _mma_async,
    "warp.mma_begin": _mma_begin,
    "warp.mma_commit": lambda machine, unit, inst: unit.products.commit(),
    "warp.mma_wait": _mma_wait,
    "warp.registers": _registers,
}
