"""Rules of shared and global memory: buffers, ordinary accesses, copies that land late."""

from typing import Any

import numpy as np

from attn_mlir.dialects.warp.copies import TURNED
from attn_mlir.dialects.warp.kinds import bytes_of, padded, swizzle_of
from attn_mlir.dialects.warp.layouts import turned_places
from attn_mlir.mlir import ir
from attn_mlir.reference.scalar import round_to
from attn_mlir.reference.warp.barriers import land_by_halves, stage_of
from attn_mlir.reference.warp.clocks import Access, Clocks
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import CHUNK, Buffer, Flight, Joined, Steps, Tensor, View, Warpgroup


def _alloc(machine: Machine, unit: Warpgroup, inst: Inst) -> Buffer:
    whole = isinstance(inst.types[0].element_type, ir.IntegerType)
    array = np.full(inst.types[0].shape, -1 if whole else np.nan, np.int64 if whole else np.float64)
    return Buffer(next(machine.ids), array, inst.attributes.get("part", array.shape[-1]))


def _view(machine: Machine, unit: Warpgroup, inst: Inst, buffer: Buffer, stage: int, row: int, column: int) -> View:
    stages, rows, columns = buffer.array.shape
    height, width = inst.types[0].shape
    if not (0 <= stage < stages and 0 <= row <= rows - height and 0 <= column <= columns - width):
        message = f"takes {height} x {width} from row {row} and column {column} of stage {stage}; there are {stages} of {rows} x {columns}"
        raise Fault("no such stage" if not 0 <= stage < stages else "out of bounds", inst.location, message)
    return View(buffer, stage, row, column, buffer.array[stage, row : row + height, column : column + width])


def _rows_of_heads(machine: Machine, unit: Warpgroup, inst: Inst, source: Tensor) -> Tensor:
    return machine.packed(source, inst.attributes["heads"], inst.location)


def _store_number(machine: Machine, unit: Warpgroup, inst: Inst, value: Any, memory: Buffer | Tensor, *places: int) -> Steps:
    yield
    access = machine.ordinary(unit, inst)[:1]
    for warp, each in access:
        machine.accesses.write([_cell(inst, memory, places)], warp, each)
    memory.array[places] = value


def _load_number(machine: Machine, unit: Warpgroup, inst: Inst, memory: Buffer | Tensor | np.ndarray, *places: Any) -> Steps:
    if isinstance(memory, np.ndarray):  # one number in global memory, which nothing has to be waited for
        return memory[()]
    if isinstance(memory, Tensor):
        return _load_global(inst, memory, *places)
    yield
    if memory.array.dtype.kind == "f":
        return _load_rows(machine, unit, inst, memory, *places)
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.read([_cell(inst, memory, places)], warp, access)
    return int(memory.array[places])


def _load_rows(machine: Machine, unit: Warpgroup, inst: Inst, memory: Buffer, stage: int, place: Any) -> Any:
    """Numbers of rows in a stage, all of which are watched."""
    if not (0 <= stage < len(memory.array) and np.all((np.asarray(place) >= 0) & (np.asarray(place) < memory.array.shape[1]))):
        raise Fault("out of bounds", inst.location, f"takes numbers of stage {stage} of {list(memory.array.shape)}")
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.read(numbers_of(memory, stage), warp, access)
    return memory.array[stage, place]


def numbers_of(memory: Buffer, stage: int, first: int = 0, count: int = 0) -> list[Any]:
    """The names of parts of a stage of numbers: of so many from one on, or of all."""
    end = first + count if count else memory.array.shape[1]
    return [("rows", memory.number, stage, part) for part in range(first // CHUNK, -(-end // CHUNK))]


def _range(machine: Machine, unit: Warpgroup, inst: Inst, source: Tensor, *box: int) -> list[int]:
    """Of integers in global memory that the kernel does not write; the warps of a role look each for themselves."""
    begins, ends = box[: source.array.ndim], box[source.array.ndim :]
    if not all(0 <= b < e <= size for b, e, size in zip(begins, ends, source.array.shape, strict=True)):
        raise Fault("out of bounds", inst.location, f"scans {list(begins)} to {list(ends)} of {list(source.array.shape)}")
    part = source.array[tuple(slice(b, e) for b, e in zip(begins, ends, strict=True))]
    return [int(part.min()), int(part.max())]


def _load_global(inst: Inst, memory: Tensor, *places: Any) -> Any:
    """Of a tensor that the kernel does not write: numbers, or elements of a map."""
    for place, size in zip(places, memory.array.shape, strict=True):
        least, most = (place.min(), place.max()) if isinstance(place, np.ndarray) else (place, place)
        if not 0 <= least <= most < size:
            raise Fault("out of bounds", inst.location, f"reads outside of a tensor of shape {list(memory.array.shape)}")
    return memory.array[places]


def _cell(inst: Inst, memory: Buffer | Tensor, places: tuple[int, ...]) -> tuple[Any, ...]:
    if not all(0 <= p < n for p, n in zip(places, memory.array.shape, strict=True)):
        raise Fault("out of bounds", inst.location, f"takes {list(places)} of {list(memory.array.shape)}")
    return ("numbers", isinstance(memory, Tensor), memory.number, *places)


# ---- fragments


def _write(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray, view: View) -> Steps:
    yield
    size = len(tile) // len(unit.warps)
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.write(view.part(warp.number * size, size).cells(), warp, access)
        view.part(warp.number * size, size).array[:] = tile[warp.number * size : (warp.number + 1) * size]


def _read(machine: Machine, unit: Warpgroup, inst: Inst, view: View) -> Steps:
    yield
    size = len(view.array) // len(unit.warps)
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.read(view.part(warp.number * size, size).cells(), warp, access)
    return unit.made([view.array.copy()])


def place_of(inst: Inst, tensor: Tensor, batch: int, head: int) -> None:
    """Raises Fault where there is no such head."""
    if not (0 <= batch < tensor.heads.shape[0] and 0 <= head < tensor.heads.shape[1]):
        raise Fault("out of bounds", inst.location, f"takes head [{batch}, {head}] of {list(tensor.heads.shape[:2])}")


def _load(machine: Machine, unit: Warpgroup, inst: Inst, source: Tensor, batch: int, head: int, row: int) -> Steps:
    yield
    place_of(inst, source, batch, head)
    result = np.zeros(inst.types[0].shape)
    found, skipped, cells = source.rows(batch, head, row, len(result))
    for warp, access in machine.ordinary(unit, inst):
        machine.accesses.read(source.columns(cells[_own(skipped, len(result), unit, warp.number)]), warp, access, full=False)
    result[skipped : skipped + len(found)] = found
    return unit.made([result])


def _own(skipped: int, count: int, unit: Warpgroup, warp: int) -> slice:
    """A warp's share of the rows that exist, of which `skipped` are missing before the first."""
    size = count // len(unit.warps)
    return slice(max(warp * size - skipped, 0), max((warp + 1) * size - skipped, 0))


def _store(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    fragment, target, batch, head, row, *more = operands
    column = more[0] if more else 0
    yield
    place_of(inst, target, batch, head)
    to, skipped, cells = target.rows(batch, head, row, len(fragment))
    fragment = fragment[:, : to.shape[1]] if fragment.ndim == 2 and fragment.shape[1] == padded(to.shape[1]) else fragment
    to, adds = _columns(inst, to, column, fragment.shape[1:]), inst.name == "warp.atomic_add"
    for warp, access in machine.ordinary(unit, inst):
        own = _own(skipped, len(fragment), unit, warp.number)
        if adds:
            machine.accesses.add(target.columns(cells[own], column, to.shape[-1]), warp, access, inst.attributes["ordered"])
        else:
            machine.accesses.write(target.columns(cells[own], column, to.shape[-1]), warp, access)
        rows = fragment[skipped : skipped + len(to)][own]
        to[own] = to[own] + rows if adds else rows


def _columns(inst: Inst, rows: np.ndarray, column: int, count: tuple[int, ...]) -> np.ndarray:
    """So many columns of rows, from `column` on; row values have none."""
    if count and not 0 <= column <= rows.shape[1] - count[0]:
        raise Fault("out of bounds", inst.location, f"takes {count[0]} columns from {column} on of {rows.shape[1]}")
    return rows[:, column : column + count[0]] if count else rows


# ---- asynchronous copies


def _copy_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """The halves of a copy land on their own, at any time from now on."""
    source, batch, head, row, column, view, barrier, stage = operands
    yield
    place_of(inst, source, batch, head)
    slot, access = stage_of(inst, barrier, stage), Access(("copy", next(machine.ids)), inst.location)
    machine.accesses.write(view.cells(), unit.active[0], access)
    found, skipped, cells = source.rows(batch, head, row, view.array.shape[TURNED in inst.attributes])
    machine.accesses.read(source.columns(cells), unit.active[0], access, full=False)
    landed = np.zeros(view.array.shape)
    if TURNED in inst.attributes:
        landed[:] = _turned(inst, found, row)
    else:
        landed[skipped : skipped + len(found), : found.shape[1] - column] = found[:, column : column + view.array.shape[1]]
    view.array[:] = np.nan
    half, left, size = len(landed) // 2, [2], bytes_of(inst.sources[5])

    def land(begin: int) -> None:
        view.array[begin : begin + half] = landed[begin : begin + half]
        left[0] -= 1
        access.epoch = None if left[0] else 1
        slot.arrive(Clocks() if left[0] else Clocks.after(access.key), 0, -(size // 2))

    machine.events += [lambda: land(0), lambda: land(half)]


def _turned(inst: Inst, found: np.ndarray, row: int) -> np.ndarray:
    """The tile whose bytes in shared memory are these rows."""
    columns, keys = inst.sources[5].shape
    if len(found) != keys or row % keys:
        raise Fault("out of bounds", inst.location, f"takes the turned tile of {keys} rows from {row} on, of which there are {len(found)}")
    return found.reshape(-1)[np.array(turned_places(columns, keys, swizzle_of(inst.sources[5])))]


def _copy_lanes_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """Writes of each warp to its share of the rows, which land at any time from now on.

    They are ordinary ones: before wgmma reads them, they need a fence.
    """
    source, batch, head, row, column, view = operands
    yield
    place_of(inst, source, batch, head)
    count = len(view.array)
    found, skipped, cells = source.rows(batch, head, row, count)
    landed, size = np.zeros(view.array.shape), count // len(unit.warps)
    landed[skipped : skipped + len(found)] = found[:, column : column + view.array.shape[1]]
    flight = Flight([(warp, Access(("copy", next(machine.ids)), inst.location, ordinary=True)) for warp in unit.active])
    for warp, access in flight.accesses:
        machine.accesses.write(view.part(warp.number * size, size).cells(), warp, access)
        machine.accesses.read(source.columns(cells[_own(skipped, count, unit, warp.number)]), warp, access, full=False)
    _fly(machine, unit, flight, view.array, landed)


def _copy_rows_lanes_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """The same of numbers of rows, four bytes a lane."""
    source, batch, head, row, target, stage, place = operands
    yield
    place_of(inst, source, batch, head)
    count = inst.attributes["count"]
    if not (0 <= stage < len(target.array) and 0 <= place <= target.array.shape[1] - count):
        raise Fault("out of bounds", inst.location, f"takes {count} numbers from {place} on of stage {stage} of {list(target.array.shape)}")
    found, skipped, cells = source.rows(batch, head, row, count)
    landed, size = np.zeros(count), count // len(unit.warps)
    landed[skipped : skipped + len(found)] = found
    flight = Flight([(warp, Access(("copy", next(machine.ids)), inst.location, ordinary=True)) for warp in unit.active])
    for warp, access in flight.accesses:
        machine.accesses.write(numbers_of(target, stage, place + warp.number * size, size), warp, access)
        machine.accesses.read(cells[_own(skipped, count, unit, warp.number)], warp, access, full=False)
    _fly(machine, unit, flight, target.array[stage, place : place + count], landed)


def _fly(machine: Machine, unit: Warpgroup, flight: Flight, target: np.ndarray, landed: np.ndarray) -> None:
    """Lets a copy of lanes land at any time from now on."""
    target[:] = np.nan
    unit.copies.open.append(flight)

    def land() -> None:
        target[:] = landed
        flight.done = True
        for _, access in flight.accesses:
            access.epoch = 1

    machine.events.append(land)


def _copy_wait(machine: Machine, unit: Warpgroup, inst: Inst) -> Steps:
    """Lanes know of their own copies only: others must meet them before they read."""
    flights = unit.copies.take(inst.attributes["pending"])
    unit.why = lambda: "waits for its copies"
    yield lambda: all(flight.done for flight in flights)
    for warp, access in (each for flight in flights for each in flight.accesses):
        warp.landed.add(access.key)


def _copy_rows_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """Copies by lanes."""
    source, batch, head, row, *slope, target, barrier, stage = operands
    yield
    place_of(inst, source, batch, head)
    slot, warp = stage_of(inst, barrier, stage), unit.active[0]
    if not 0 <= stage < len(target.array):
        raise Fault("no such stage", inst.location, f"takes stage {stage} of {len(target.array)}")
    found, skipped, cells = source.rows(batch, head, row, target.array.shape[1])
    access = Access(("copy", next(machine.ids)), inst.location)
    machine.accesses.write(numbers_of(target, stage), warp, access)
    machine.accesses.read(cells, warp, access, full=False)
    landed = np.zeros(target.array.shape[1])
    landed[skipped : skipped + len(found)] = found
    if inst.name == "warp.copy_rows_scaled":
        places = np.minimum(np.arange(len(landed)), skipped + len(found) - 1).astype(np.float32)
        sums = np.float32(inst.attributes["factor"]) * landed.astype(np.float32) + np.float32(slope[0]) * places
        landed = np.minimum(sums, np.float32(inst.attributes["most"]))
    land_by_halves(machine, inst, slot, (warp, access), (target.array[stage], landed))


def _store_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """Reads shared memory, and writes, when it lands."""
    view, target, batch, head, row, column = operands
    yield
    place_of(inst, target, batch, head)
    warp, adds = unit.active[0], inst.name == "warp.add_async"
    to, skipped, cells = target.rows(batch, head, row, len(view.array))
    flight = Flight([(warp, Access(warp.key, inst.location))], later=[(warp, Access(warp.key, inst.location))])
    machine.accesses.read(view.cells(), warp, flight.accesses[0][1])
    cells = target.columns(cells, column, view.array.shape[1])
    if adds:
        machine.accesses.add(cells, warp, flight.later[0][1], inst.attributes["ordered"])
    else:
        machine.accesses.write(cells, warp, flight.later[0][1])
    unit.stores.open.append(flight)

    def land() -> None:
        columns = slice(column, min(column + view.array.shape[1], to.shape[1]))
        rows = view.array[skipped : skipped + len(to), : columns.stop - column]
        to[:, columns] = to[:, columns] + rows if adds else rows
        flight.done = True

    machine.events.append(land)


def _store_wait(machine: Machine, unit: Warpgroup, inst: Inst) -> Steps:
    read, pending = inst.attributes["read"], inst.attributes["pending"]
    stores = unit.stores.older(pending) if read else unit.stores.take(pending)
    unit.why = lambda: "waits for its stores"
    yield lambda: all(store.done for store in stores)
    for store in stores:
        store.finish(all_=not read)


def _load_async(machine: Machine, unit: Warpgroup, inst: Inst, *operands: Any) -> Steps:
    """Each load is a group."""
    source, batch, head, row, column = operands
    yield
    place_of(inst, source, batch, head)
    fragment = inst.fragments[0]
    assert fragment is not None
    value = np.zeros(fragment.shape)
    found, skipped, cells = source.rows(batch, head, row, len(value))
    flight = Flight([(warp, Access(warp.key, inst.location)) for warp in unit.active], value)
    for warp, access in flight.accesses:
        machine.accesses.read(source.columns(cells[_own(skipped, len(value), unit, warp.number)]), warp, access, full=False)
    value[skipped : skipped + len(found)] = found[:, column : column + fragment.shape[1]]
    unit.loads.groups.append([flight])
    return flight


def _load_wait(machine: Machine, unit: Warpgroup, inst: Inst, load: Flight) -> list[np.ndarray]:
    for flight in unit.loads.take(inst.attributes["pending"]):
        flight.finish()
        flight.done = True
    if not load.done:
        raise Fault("load in flight", inst.location, "gives a fragment that a load still writes")
    return unit.made([load.value.copy()])


def rounded(value: np.ndarray, type_: ir.Type) -> np.ndarray:
    """Numbers as a fragment of this type has them; conditions and integers stay."""
    return round_to(value, type_) if value.dtype.kind == "f" else value


RULES: dict[str, Rule] = {
    "attn.range": _range,
    "memref.load": _load_number,
    "memref.store": _store_number,
    "warp.add_async": _store_async,
    "warp.alloc": _alloc,
    "warp.atomic_add": _store,
    "warp.concat": lambda machine, unit, inst, first, second: Joined(first, second),
    "warp.copy_async": _copy_async,
    "warp.copy_commit": lambda machine, unit, inst: unit.copies.commit(),
    "warp.copy_lanes_async": _copy_lanes_async,
    "warp.copy_rows_async": _copy_rows_async,
    "warp.copy_rows_lanes_async": _copy_rows_lanes_async,
    "warp.copy_rows_scaled": _copy_rows_async,
    "warp.copy_wait": _copy_wait,
    "warp.load": _load,
    "warp.load_async": _load_async,
    "warp.load_wait": _load_wait,
    "warp.read": _read,
    "warp.store": _store,
    "warp.store_async": _store_async,
    "warp.store_commit": lambda machine, unit, inst: unit.stores.commit(),
    "warp.store_wait": _store_wait,
    "warp.rows_of_heads": _rows_of_heads,
    "warp.view": _view,
    "warp.write": _write,
}
