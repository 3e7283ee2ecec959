"""Rules of control flow, roles and the tile scheduler."""

from typing import Any

import numpy as np

from attn_mlir.dialects.warp.layouts import Fragment
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Buffer, Steps, Tensor, Warpgroup


def _for(machine: Machine, unit: Warpgroup, inst: Inst, begin: int, end: int, step: int, *carried: Any) -> Steps:
    if step <= 0:
        raise Fault("endless loop", inst.location, f"steps by {step}")
    results = list(carried)
    for n in range(int(begin), int(end), int(step)):
        unit.values.update(zip(inst.blocks[0][0], (n, *results), strict=True))
        results = yield from machine.run(unit, inst.blocks[0])
    return results


def _while(machine: Machine, unit: Warpgroup, inst: Inst, *carried: Any) -> Steps:
    results = list(carried)
    while True:
        unit.values.update(zip(inst.blocks[0][0], results, strict=True))
        goes_on, *results = yield from machine.run(unit, inst.blocks[0])
        if not goes_on:
            return results
        unit.values.update(zip(inst.blocks[1][0], results, strict=True))
        results = yield from machine.run(unit, inst.blocks[1])


def _turned(machine: Machine, unit: Warpgroup, inst: Inst, memory: Tensor) -> Tensor:
    return Tensor(memory.number, np.swapaxes(memory.array, -1, -2))


def _if(machine: Machine, unit: Warpgroup, inst: Inst, condition: bool) -> Steps:
    taken = inst.blocks[0 if condition else 1 :][:1]
    return (yield from machine.run(unit, taken[0])) if taken else []


def _elect(machine: Machine, unit: Warpgroup, inst: Inst) -> Steps:
    unit.active = unit.warps[:1]
    yield from machine.run(unit, inst.blocks[0])
    unit.active = unit.warps


def _each_warp(machine: Machine, unit: Warpgroup, inst: Inst) -> Steps:
    """Every warp computes with whole fragments, of which its rows count."""
    results = []
    for warp in unit.warps:
        unit.active = [warp]
        yielded = yield from machine.run(unit, inst.blocks[0])
        results.append([rows_of(array, made, warp.number) for array, made in zip(yielded, inst.fragments, strict=True)])
    unit.active = unit.warps
    return unit.made(np.concatenate(parts) for parts in zip(*results, strict=True))


def rows_of(array: np.ndarray, fragment: Fragment | None, warp: int) -> np.ndarray:
    """A warp's rows of a fragment."""
    size = fragment.layout.rows_of_warp if fragment is not None else len(array)
    return array[warp * size : (warp + 1) * size]


def _next_tile(machine: Machine, unit: Warpgroup, inst: Inst, counter: Tensor, last: int) -> Steps:
    yield
    number = int(counter.array[0])
    counter.array[0] = 0 if number >= last else number + 1
    return number


def _dim(machine: Machine, unit: Warpgroup, inst: Inst, source: Tensor | Buffer, axis: int) -> int:
    return source.array.shape[axis]


RULES: dict[str, Rule] = {
    "scf.for": _for,
    "scf.while": _while,
    "scf.if": _if,
    "memref.dim": _dim,
    "memref.transpose": _turned,
    "warp.block_id": lambda machine, unit, inst: unit.block.number,
    "warp.block_count": lambda machine, unit, inst: machine.blocks,
    "warp.each_warp": _each_warp,
    "warp.elect": _elect,
    "warp.next_tile": _next_tile,
}
