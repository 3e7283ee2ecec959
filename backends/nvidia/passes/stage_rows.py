"""Lets numbers of rows come to shared memory with the tile of these rows, instead of to every thread from global memory."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of, stages_and_arrivals
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_LANES = 32
"""Of a warp: each arrives when the numbers that it copies have landed."""


@dataclass(frozen=True)
class StageRows(Pass):
    """Where the columns of a map are rows of a tile that is copied, and it reads a number of each from a tensor [B, H, S] in f32, copies
    these numbers with the tile (`warp.copy_rows_async`): to the same stage of a buffer of their own, with the same barriers. The map then
    reads shared memory, at its own columns. Numbers of rows that do not exist are zeros.

    Runs before `warp-pipeline-loads`, which gives such a buffer the stages of its ring. A kernel stays as it is, with the reason in
    `warp.refused`, where no map reads numbers so, or the tile's stage is not held for the whole map.
    """

    name = "warp-stage-rows"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _stage)
        return True


def _stage(kernel: ir.Operation) -> None:
    buffers: dict[tuple[ir.Value, ir.Value], ir.Value] = {}
    loads = [op for op in find_all(kernel, "memref.load") if _of_column(op) is not None]
    change_parts(loads, lambda load: _replace(load, kernel, buffers), "no map reads a number of each of its columns")


def _map_of(load: ir.Operation) -> ir.Operation | None:
    """The map of two indices in which an op stands."""
    above = load.parent.operation if load.parent is not None else None
    return above if above is not None and above.name == "warp.map" and len(list(above.regions[0].blocks[0].arguments)) == 2 else None


def _of_column(load: ir.Operation) -> ir.Value | None:
    """Where a map reads a number at its column, counted from some row on, or at the last that exists: that row."""
    map_ = _map_of(load)
    if map_ is None or ir.MemRefType(load.operands[0].type).rank != 3 or not isinstance(load.operands[0].owner, ir.Block):
        return None
    if str(ir.MemRefType(load.operands[0].type).element_type) != "f32" or map_.attributes["shape"][1] % _LANES:
        return None
    column, at = map_.regions[0].blocks[0].arguments[1], maker(load.operands[3], "arith.addi")
    for row, own in [tuple(at.operands), tuple(at.operands)[::-1]] if at is not None else []:
        least = maker(own, "arith.minsi")
        if (own == column or (least is not None and column in list(least.operands))) and not _is_inside(row, map_):
            return row
    return None


def _is_inside(value: ir.Value, map_: ir.Operation) -> bool:
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    return block == map_.regions[0].blocks[0]


def _replace(load: ir.Operation, kernel: ir.Operation, buffers: dict[tuple[ir.Value, ir.Value], ir.Value]) -> None:
    """Lets a load read shared memory. Raises Refused where no copy brings the rows, or they are not held."""
    map_, row = _map_of(load), _of_column(load)
    assert map_ is not None and row is not None
    source, batch, head = list(load.operands)[:3]
    columns = map_.attributes["shape"][1]
    found = [op for op in find_all(kernel, "warp.copy_async") if list(op.operands)[1:4] == [batch, head, row]]
    copies = [op for op in found if ir.MemRefType(op.operands[5].type).shape[0] == columns and _holds(op, map_)]
    if not copies:
        raise Refused("no copy brings the tile of the rows whose numbers a map reads, and holds it meanwhile")
    copy, full = copies[0], copies[0].operands[6]
    if (source, full) not in buffers:
        buffers[source, full] = _copied(kernel, full, source, columns)
    place = map_.regions[0].blocks[0].arguments[1]
    with load.location, ir.InsertionPoint(load):
        operands = [buffers[source, full], copy.operands[7], place]
        number = ir.Operation.create("memref.load", results=[load.results[0].type], operands=operands).result
    load.results[0].replace_all_uses_with(number)
    load.erase()


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
    role = find_all(kernel, "warp.role")[0]
    with copies[0].location:
        type_ = build.shared_type([1, columns], ir.MemRefType(source.type).element_type, 0)
    used = sum(bytes_of(op.result.type) for op in find_all(kernel, "warp.alloc"))
    limit = ir.IntegerAttr(kernel.attributes["shared_limit"]).value
    if used + bytes_of(type_) > limit:
        raise Refused(f"numbers of rows take {bytes_of(type_)} bytes beside {used}, there are {limit}")
    with copies[0].location:
        with ir.InsertionPoint(role), build.named("row_numbers"):
            buffer = build.op("alloc", results=[type_]).result
        stages, arrivals = stages_and_arrivals(full.type)
        full.set_type(ir.Type.parse(f"!warp.barrier<{stages} : i64, {arrivals + _LANES} : i64>"))
    for copy in copies:
        elect = copy.parent.operation if copy.parent is not None else copy
        with copy.location, ir.InsertionPoint.after(elect):
            build.op("copy_rows_async", [source, *list(copy.operands)[1:4], buffer, full, copy.operands[7]])
    return buffer
