"""Rules of computation on fragments."""

from functools import cache
from typing import Any

import numpy as np

from attn_mlir.dialects.warp.layouts import Fragment
from attn_mlir.philox import kept
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.memory import rounded
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.structure import rows_of
from attn_mlir.reference.warp.units import Steps, Warpgroup

_REDUCE = {"sum": np.add, "max": np.maximum, "min": np.minimum}
_LARGEST = float(np.finfo(np.float32).max)
_START = {"sum": 0.0, "max": -_LARGEST, "min": _LARGEST}


def _map(machine: Machine, unit: Warpgroup, inst: Inst) -> Steps:
    shape, (arguments, _) = inst.attributes["shape"], inst.blocks[0]
    places = [np.arange(n).reshape([-1 if axis == i else 1 for i in range(len(shape))]) for axis, n in enumerate(shape)]
    unit.values.update(zip(arguments, places, strict=True))
    unit.map_rank = len(shape)
    yielded = yield from machine.run(unit, inst.blocks[0])
    unit.map_rank = 0
    results = zip(yielded, inst.types, inst.fragments, inst.attributes["reductions"], strict=True)
    return unit.made(_result(np.broadcast_to(np.asarray(x), shape), type_, found, kind) for x, type_, found, kind in results)


def _drop(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray, bits: Any) -> Steps:
    """Each warp has a part of the numbers of its own: nothing is watched."""
    arguments, _ = inst.blocks[0]
    unit.values.update(zip(arguments, (np.arange(tile.shape[0])[:, None], np.arange(tile.shape[1])), strict=True))
    (keeps,) = yield from machine.run(unit, inst.blocks[0])
    return unit.made([np.where(keeps, tile, 0.0)])


def _result(array: np.ndarray, type_: Any, fragment: Fragment | None, kind: str) -> np.ndarray:
    """A result of a map from what its region gives for all elements."""
    if not kind or fragment is None:
        return rounded(np.array(array), type_)
    columns = _columns_of_parts(fragment, array.shape[1])
    return rounded(_REDUCE[kind].reduce(array.take(columns, axis=1), axis=2, initial=_START[kind]), type_)


@cache
def _columns_of_parts(fragment: Fragment, columns: int) -> np.ndarray:
    """The columns of each part, ascending: all parts have as many."""
    part = np.array([fragment.layout.part_of(j) for j in range(columns)])
    return np.stack([np.flatnonzero(part == p) for p in range(fragment.shape[1])])


def _extract(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray, *places: Any) -> np.ndarray:
    """The element at the place of the map: all of them at once."""
    return tile[:, None] if tile.ndim < unit.map_rank else tile


def _reduce(machine: Machine, unit: Warpgroup, inst: Inst, parts: np.ndarray) -> list[np.ndarray]:
    return unit.made([rounded(_REDUCE[inst.attributes["kind"]].reduce(parts, axis=1), inst.types[0])])


def _columns(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray) -> list[np.ndarray]:
    first = inst.attributes["first"]
    return unit.made([tile[:, first : first + inst.types[0].shape[1]].copy()])


def _vote(machine: Machine, unit: Warpgroup, inst: Inst, condition: np.ndarray) -> bool:
    return bool(np.any(rows_of(condition, inst.source_fragments[0], unit.active[0].number)))


def _reaches(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray) -> bool:
    """NaN reaches the limit: a comparison with it is false."""
    own = rows_of(tile, inst.source_fragments[0], unit.active[0].number)
    if np.any(own < 0):
        raise Fault("negative element", inst.location, "compares the bits of elements of which some are negative")
    return not bool(np.all(own < inst.attributes["limit"]))


def _kept(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> np.ndarray:
    """Dropout's bits of all elements of a map."""
    seed, offset, *others = (np.asarray(each).astype(np.int64) for each in operands)
    return kept((seed, offset), *others)


RULES: dict[str, Rule] = {
    "attn.kept": _kept,
    "tensor.extract": _extract,
    "warp.columns": _columns,
    "warp.drop": _drop,
    "warp.map": _map,
    "warp.reaches": _reaches,
    "warp.reduce": _reduce,
    "warp.vote": _vote,
}
