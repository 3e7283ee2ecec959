"""Lets numbers of rows come to shared memory with the tile of these rows, instead of to every thread from global memory."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_LANES = 32
"""Of a warp: each arrives when the numbers that it copies have landed."""
_LANDED = ("warp.copy_commit", "warp.copy_wait", "warp.named_sync")
"""What makes numbers that lanes copied readable, in this order."""


@dataclass(frozen=True)
class StageRows(Pass):
    """Where the columns of a map are rows of a tile that is copied, and it reads a number of each from a tensor [B, H, S] in f32, copies
    these numbers with the tile (`warp.copy_rows_async`): to the same stage of a buffer of their own, with the same barriers. The map then
    reads shared memory, at its own columns. Numbers of rows that do not exist are zeros. Where all warps copy (`warp.copy_lanes_async`),
    each warpgroup copies its share of the numbers, too (`warp.copy_rows_lanes_async`).

    Runs before `warp-pipeline-loads` and `warp-prefetch-loads`, which give such a buffer the stages of its ring. A kernel stays as it is,
    with the reason in `warp.refused`, where no map reads numbers so, or the tile's stage is not held for the whole map.
    """

    name = "warp-stage-rows"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _stage)
        return True


def _stage(kernel: ir.Operation) -> None:
    buffers: dict[tuple[ir.Value, ir.Value], ir.Value] = {}
    loads = [op for op in find_all(kernel, "memref.load") if _of_column(op)]
    change_parts(loads, lambda load: _replace(load, kernel, buffers), "no map reads a number of each of its columns")


def _map_of(load: ir.Operation) -> ir.Operation | None:
    """The map of two indices in which an op stands."""
    above = load.parent.operation if load.parent is not None else None
    return above if above is not None and above.name == "warp.map" and len(list(above.regions[0].blocks[0].arguments)) == 2 else None


def _of_column(load: ir.Operation) -> tuple[ir.Value, ...]:
    """Where a map reads a number at its column, counted from some row on, or at the last that exists: that row, as terms of a sum."""
    map_ = _map_of(load)
    if map_ is None or ir.MemRefType(load.operands[0].type).rank != 3 or not isinstance(load.operands[0].owner, ir.Block):
        return ()
    if str(ir.MemRefType(load.operands[0].type).element_type) != "f32" or map_.attributes["shape"][1] % _LANES:
        return ()
    column, terms = map_.regions[0].blocks[0].arguments[1], _terms(load.operands[3], map_)
    own = [term for term in terms if _is_inside(term, map_)]
    least = maker(own[0], "arith.minsi") if len(own) == 1 else None
    if len(own) == 1 and (own[0] == column or (least is not None and column in list(least.operands))):
        return tuple(term for term in terms if term != own[0])
    return ()


def _terms(value: ir.Value, map_: ir.Operation) -> list[ir.Value]:
    """The terms of a sum, as far as a map adds them."""
    op = maker(value, "arith.addi") if _is_inside(value, map_) else None
    return [value] if op is None else [term for operand in op.operands for term in _terms(operand, map_)]


def _is_inside(value: ir.Value, map_: ir.Operation) -> bool:
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    return block == map_.regions[0].blocks[0]


def _replace(load: ir.Operation, kernel: ir.Operation, buffers: dict[tuple[ir.Value, ir.Value], ir.Value]) -> None:
    """Lets a load read shared memory. Raises Refused where no copy brings the rows, or they are not held."""
    map_, row = _map_of(load), _of_column(load)
    assert map_ is not None and row
    source, batch, head = list(load.operands)[:3]
    columns = map_.attributes["shape"][1]
    if of_lanes := _of_lanes(kernel, [batch, head, *row], map_):
        _read(load, _copied_by_lanes(kernel, of_lanes, source, columns, buffers), of_lanes.operands[5].owner.operation.operands[1])
        return
    found = [op for op in find_all(kernel, "warp.copy_async") if _brings(op, [batch, head, *row])]
    copies = [op for op in found if ir.MemRefType(op.operands[5].type).shape[0] == columns and _holds(op, map_)]
    if not copies:
        raise Refused("no copy brings the tile of the rows whose numbers a map reads, and holds it meanwhile")
    copy, full = copies[0], copies[0].operands[6]
    if (source, full) not in buffers:
        buffers[source, full] = _copied(kernel, full, source, columns)
    _read(load, buffers[source, full], copy.operands[7])


def _read(load: ir.Operation, buffer: ir.Value, stage: ir.Value) -> None:
    """Lets a load of a map read the number of its column in a stage of shared memory."""
    block = load.block
    with load.location, ir.InsertionPoint(load):
        operands = [buffer, stage, block.arguments[1]]
        number = ir.Operation.create("memref.load", results=[load.results[0].type], operands=operands).result
    load.results[0].replace_all_uses_with(number)
    load.erase()


def _of_lanes(kernel: ir.Operation, place: list[ir.Value], map_: ir.Operation) -> ir.Operation | None:
    """The copy of lanes that brings, in the block in which a map stands, the tile of some rows, and is waited for before it.

    All meet before the stage is filled again, an iteration later.
    """
    for op in find_all(kernel, "warp.copy_lanes_async"):
        top = map_
        while top.block != op.block and top.parent is not None and top.parent.operation.name != "warp.role":
            top = top.parent.operation
        batch, at = _place(op)
        if at == place[1:] and (_is_zero(place[0]) if batch is None else batch == place[0]) and top.block == op.block:
            ops = [each.operation for each in op.block.operations]
            between = [each.name for each in ops[ops.index(op) : ops.index(top)]]
            names = [name for name in between if name in ("warp.copy_commit", "warp.copy_wait", "warp.named_sync")]
            if names[: len(_LANDED)] == list(_LANDED):
                return op
    return None


def _brings(copy: ir.Operation, place: list[ir.Value]) -> bool:
    """Whether a copy brings the rows from a place of a tensor [B, H, S] on: batch, head, and the row, as terms of a sum."""
    batch, head, row = list(copy.operands)[1:4]
    inside = _in_sequence(batch, row)
    return [batch, head, row] == place or (inside is not None and _is_zero(place[0]) and [head, *inside] == place[1:])


def _in_sequence(entry: ir.Value, row: ir.Value) -> list[ir.Value] | None:
    """Of a row of a view of packed sequences (`backends.gpu.packed`), where its sequence begins, and the row in it; None of other places.

    Row T - n + i of the entry where a sequence of n rows ends, b + n: row b + i.
    """
    at, end = maker(row, "arith.addi"), maker(entry, "arith.addi")
    for shift, position in [tuple(at.operands), tuple(at.operands)[::-1]] if at is not None and end is not None else []:
        before = maker(shift, "arith.subi")
        of_rows = before is not None and maker(before.operands[0], "memref.dim") is not None
        begins = [value for value in end.operands if before is not None and value != before.operands[1]] if end is not None else []
        if of_rows and len(begins) == 1:
            return [begins[0], position]
    return None


def _place(copy: ir.Operation) -> tuple[ir.Value | None, list[ir.Value]]:
    """Where what lanes copy begins in a tensor [B, H, S]: batch, None for the only one; head, and the row, as terms of a sum."""
    batch, head, at = list(copy.operands)[1:4]
    view, moved = maker(copy.operands[5], "warp.view"), maker(at, "arith.addi")
    if view is None or moved is None or moved.operands[1] != view.operands[2]:
        return batch, []
    inside = _in_sequence(batch, moved.operands[0])
    return (batch, [head, moved.operands[0]]) if inside is None else (None, [head, *inside])


def _is_zero(value: ir.Value) -> bool:
    op = maker(value, "arith.constant")
    return op is not None and ir.IntegerAttr(op.attributes["value"]).value == 0


def _numbers(copy: ir.Operation, share: ir.Value) -> list[ir.Value]:
    """Where the numbers of the rows that lanes copy are: batch, head and row."""
    batch, (head, *row) = _place(copy)
    if batch is not None:
        return list(copy.operands)[1:4]
    at = arith.AddIOp(arith.AddIOp(row[0], row[1]).result, share).result
    return [build.index(0), head, at]


def _copied_by_lanes(
    kernel: ir.Operation, copy: ir.Operation, source: ir.Value, columns: int, buffers: dict[tuple[ir.Value, ir.Value], ir.Value]
) -> ir.Value:
    """Copies numbers of rows with each tile of the ring of a copy; their buffer. Raises Refused where there is no room."""
    ring, (share, _) = copy.operands[5].owner.operation.operands[0], ir.MemRefType(copy.operands[5].type).shape  # type: ignore[union-attr]
    if (source, ring) in buffers:
        return buffers[source, ring]
    buffer = buffers[source, ring] = _buffer(kernel, copy, source, columns)
    for op in find_all(kernel, "warp.copy_lanes_async"):
        view = maker(op.operands[5], "warp.view")
        if view is not None and view.operands[0] == ring:
            with op.location, ir.InsertionPoint.after(op):
                place = _numbers(op, view.operands[2])
                build.op("copy_rows_lanes_async", [source, *place, buffer, view.operands[1], view.operands[2]], count=share)
    return buffer


def _holds(copy: ir.Operation, map_: ir.Operation) -> bool:
    """Whether the stage of a copy is waited for before a map, and given back behind it, in the block that knows the stage."""
    stage, full = copy.operands[7], copy.operands[6]
    made = maker(stage, "warp.stage")
    top = map_
    while made is not None and top.block != made.block:
        if top.parent is None or top.parent.operation.name == "warp.role":
            return False
        top = top.parent.operation
    if made is None:
        return False
    ops = [view.operation for view in made.block.operations]
    uses = [use.owner.operation for use in stage.uses]
    before = [op for op in uses if op.name == "warp.wait" and op.operands[0] == full and op.block == made.block]
    behind = [op for op in uses if op.name == "warp.arrive" and op.block == made.block]
    at = ops.index(top)
    return any(ops.index(op) < at for op in before) and bool(behind) and all(ops.index(op) > at for op in behind)


def _copied(kernel: ir.Operation, full: ir.Value, source: ir.Value, columns: int) -> ir.Value:
    """Copies numbers of rows with each tile of the ring of a barrier; their buffer. Raises Refused where there is no room."""
    copies = [op for op in find_all(kernel, "warp.copy_async") if op.operands[6] == full]
    buffer = _buffer(kernel, copies[0], source, columns)
    with copies[0].location:
        build.add_arrivals(full, _LANES)
    for copy in copies:
        elect = copy.parent.operation if copy.parent is not None else copy
        with copy.location, ir.InsertionPoint.after(elect):
            batch, head, row = list(copy.operands)[1:4]
            inside = _in_sequence(batch, row)
            place = [batch, head, row] if inside is None else [build.index(0), head, arith.AddIOp(*inside).result]
            build.op("copy_rows_async", [source, *place, buffer, full, copy.operands[7]])
    return buffer


def _buffer(kernel: ir.Operation, copy: ir.Operation, source: ir.Value, columns: int) -> ir.Value:
    """Shared memory of one stage for so many numbers. Raises Refused where there is no room."""
    with copy.location:
        type_ = build.shared_type([1, columns], ir.MemRefType(source.type).element_type, 0)
    used = sum(bytes_of(op.result.type) for op in find_all(kernel, "warp.alloc"))
    limit = ir.IntegerAttr(kernel.attributes["shared_limit"]).value
    if used + bytes_of(type_) > limit:
        raise Refused(f"numbers of rows take {bytes_of(type_)} bytes beside {used}, there are {limit}")
    with copy.location, ir.InsertionPoint(find_all(kernel, "warp.role")[0]), build.named("row_numbers"):
        return build.op("alloc", results=[type_]).result
