"""Rules of windows of captured tensors: a copy that lands late, and reads of what it brought by maps."""

from typing import Any

import numpy as np

from attn_mlir.reference.warp import memory
from attn_mlir.reference.warp.barriers import in_turn, land_by_halves, stage_of
from attn_mlir.reference.warp.clocks import Access
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Steps, Tensor, View, Warpgroup


def _copy_window_async(machine: Machine, unit: Warpgroup, inst: Inst, source: Tensor, *operands: Any) -> Steps:
    """A copy of a window by lanes."""
    *places, view, barrier, stage = operands
    yield
    slot, access = stage_of(inst, barrier, stage), Access(("copy", next(machine.ids)), inst.location)
    warp = in_turn(unit, stage)
    machine.accesses.write(view.cells(), warp, access)
    land_by_halves(machine, inst, slot, (warp, access), (view.array, _window(inst, source, places, view.array.shape)))


def _window(inst: Inst, source: Tensor, places: list[int], shape: tuple[int, int]) -> np.ndarray:
    """A window of a tensor that the kernel does not write, zeros where it leaves the tensor along rows or columns."""
    array, rows = source.array, inst.attributes["rows"]
    others = [n for n in range(array.ndim - 1) if n != rows]
    if not all(0 <= places[n] < array.shape[n] for n in others):
        raise Fault("out of bounds", inst.location, f"takes a window at {list(places)} of {list(array.shape)}")
    plane, made = array[tuple(places[n] if n in others else slice(None) for n in range(array.ndim))], np.zeros(shape)
    spans = []
    for place, count, size in zip((places[rows], places[-1]), shape, plane.shape, strict=True):
        begin, end = min(max(place, 0), size), min(max(place + count, 0), size)
        spans.append((slice(begin, end), slice(begin - place, end - place)))
    if all(there.start < there.stop for there, _ in spans):
        made[spans[0][1], spans[1][1]] = plane[spans[0][0], spans[1][0]]
    return made


def _load(machine: Machine, unit: Warpgroup, inst: Inst, source: Any, *places: Any) -> Any:
    """The element of a tile in shared memory at the place of the map: all of them at once, of which each warp reads its rows."""
    if not isinstance(source, View):
        return memory.RULES["memref.load"](machine, unit, inst, source, *places)
    return _read(machine, unit, inst, source, turned=len(places[0]) == 1)


def _read(machine: Machine, unit: Warpgroup, inst: Inst, view: View, turned: bool) -> Steps:
    """Of a transpose each warp reads its columns of all rows."""
    yield
    size = len(view.array) // len(unit.warps)
    for warp, access in machine.ordinary(unit, inst):
        own = view if turned else view.part(warp.number * size, size)
        machine.accesses.read(own.cells(), warp, access)
    return (view.array.T if turned else view.array).copy()


RULES: dict[str, Rule] = {"memref.load": _load, "warp.copy_window_async": _copy_window_async}
