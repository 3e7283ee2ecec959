"""Gives copies of numbers of rows (log-sum-exps, o . do) to a warp of their own, beside the producer."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.forming.rings import WARPS
from attn_mlir.backends.nvidia.forming.slicing import Slice
from attn_mlir.dialects.numbers import i64, number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import stages_and_arrivals
from attn_mlir.dialects.warp.structure import first_free_warp
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_COPIES = ("warp.copy_rows_async", "warp.copy_rows_scaled")
_STAGES = 4


@dataclass(frozen=True)
class SpecializeRows(Pass):
    """Where the producer copies numbers of rows with each tile, lets an idle warp of its warpgroup do that, in a ring of their own of four
    stages: it runs further ahead than shared memory has room for tiles. A producer whose lanes load and scale numbers starts the next
    copies when they have landed, and the product of a tile cannot begin before.

    Consumers wait for the numbers where they wait for the tile, and give their stage back behind the last map that reads them.

    It comes after `warp-scale-rows`, with `row_warps` = 1 in `warp.schedule`. A kernel stays as it is, with the reason in `warp.refused`,
    where the producer copies none, or its warpgroup has no idle warp.
    """

    name = "warp-specialize-rows"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _split)
        return True


def _split(kernel: ir.Operation) -> None:
    if said(kernel, "row_warps", "0") == "0":
        raise Refused("the schedule lets the producer copy numbers of rows (row_warps)")
    roles = find_all(kernel, "warp.role")
    copies = find_all(roles[0], *_COPIES) if len(roles) == 2 else []
    if not copies or find_all(kernel, *_COPIES) != copies:
        raise Refused("no numbers of rows are copied by a producer beside one role of consumers")
    host, consumer = roles
    first = first_free_warp(host)
    if number(host, "warpgroups") != 1 or first >= WARPS:
        raise Refused("the producer's warpgroup has no idle warp")
    buffers = list(dict.fromkeys(op.operands[4] for op in copies))
    barriers = {op.operands[5] for op in copies}
    reads = [use.owner.operation for buffer in buffers for use in buffer.uses if use.owner.operation not in copies]
    if len(barriers) != 1 or any(op.name != "memref.load" or maker(op.operands[1], "warp.stage") is None for op in reads):
        raise Refused("numbers of rows come with tiles of several rings, or are read by other ops than maps")
    if {sum(op.block == copy.block for op in copies) for copy in copies} != {len(buffers)}:
        raise Refused("a loop copies some of the numbers of rows alone")
    (tiles,), lanes = barriers, number(kernel, "lanes")
    readings = _readings(reads, tiles)
    stages, arrivals = stages_and_arrivals(tiles.type)
    with kernel.location, ir.InsertionPoint(host):
        with build.named("rows_full"):
            full = build.barrier(_STAGES, lanes * len(buffers))
        with build.named("rows_free"):
            free = build.barrier(_STAGES, WARPS * number(consumer, "warpgroups"))
    for each in readings:
        each.listen(full, free)
    _make(host, copies, (full, free), first)
    with kernel.location:
        tiles.set_type(ir.Type.parse(f"!warp.barrier<{stages} : i64, {arrivals - lanes * len(buffers)} : i64>"))
        for buffer in buffers:
            type_ = ir.MemRefType(buffer.type)
            buffer.set_type(ir.MemRefType.get([_STAGES, *type_.shape[1:]], type_.element_type, memory_space=type_.memory_space))
    for op in copies:
        op.erase()


@dataclass(frozen=True)
class _Reading:
    """How a block of consumers reads numbers: `reads` of the stage for which it `waits`; the `last` one is in that op."""

    reads: list[ir.Operation]
    waits: ir.Operation
    last: ir.Operation

    @classmethod
    def of(cls, block: ir.Block, reads: list[ir.Operation], tiles: ir.Value) -> "_Reading":
        """Raises Refused where it reads those of other tiles."""
        ops = [view.operation for view in block.operations]
        stage = reads[0].operands[1]
        waits = [op for op in ops if op.name == "warp.wait" and list(op.operands)[:2] == [tiles, stage]]
        if len(waits) != 1 or any(op.operands[1] != stage for op in reads):
            raise Refused("a loop reads numbers of rows of other tiles than that for which it waits")
        return cls(reads, waits[0], max((_top(op, block) for op in reads), key=ops.index))

    def listen(self, full: ir.Value, free: ir.Value) -> None:
        """Lets the block wait for numbers in a ring of their own, and give them back."""
        with self.waits.location:
            with ir.InsertionPoint(self.waits), build.named("rows_stage"):
                count = self.waits.operands[1].owner.operation.operands[0]  # type: ignore[union-attr]
                own, phase = build.stage(count, _STAGES)
            with ir.InsertionPoint.after(self.waits):
                build.op("wait", [full, own, phase])
        for op in self.reads:
            op.operands[1] = own
        with self.last.location, ir.InsertionPoint.after(self.last):
            build.op("arrive", [free, own])


def _readings(reads: list[ir.Operation], tiles: ir.Value) -> list[_Reading]:
    """By blocks that count their tiles. Raises Refused."""
    by_block: dict[ir.Block, list[ir.Operation]] = {}
    for op in reads:
        by_block.setdefault(op.operands[1].owner.operation.block, []).append(op)  # type: ignore[union-attr]
    return [_Reading.of(block, mine, tiles) for block, mine in by_block.items()]


def _top(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of a block in which one stands."""
    while op.block != block:
        above = op.parent
        assert above is not None
        op = above.operation
    return op


def _make(host: ir.Operation, copies: list[ir.Operation], ring: tuple[ir.Value, ir.Value], first: int) -> None:
    """The new role, after the producer: a slice of it, with the copies, behind a wait for their stage. `ring`: barriers, full and free."""
    block = host.regions[0].blocks[0]
    firsts = [view.operation for loop in find_all(host, "scf.while") for view in loop.regions[0].blocks[0].operations]
    drawn = [op for op in firsts if op.name in ("warp.wait", "warp.arrive")]
    for barrier in {op.operands[0] for op in drawn if op.name == "warp.arrive"}:
        stages, arrivals = stages_and_arrivals(barrier.type)
        with host.location:
            barrier.set_type(ir.Type.parse(f"!warp.barrier<{stages} : i64, {arrivals + 1} : i64>"))
    part = Slice(block, [*drawn, *copies])
    attributes = {"warpgroups": 1, "warps": 1, "registers": number(host, "registers"), "first_warp": first}
    with host.location, ir.InsertionPoint.after(host):
        boxed = {"sym_name": ir.StringAttr.get("rows"), **{key: i64(value) for key, value in attributes.items()}}
        made = ir.Operation.create("warp.role", attributes=boxed, regions=1)
    argument = block.arguments[0]
    own = made.regions[0].blocks.append(argument.type, arg_locs=[argument.location])
    known_stages: dict[ir.Block, ir.Value] = {}

    def special(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> bool:
        if op not in copies:
            return False
        with op.location:
            if op.block not in known_stages:
                count = op.operands[6].owner.operation.operands[0]  # type: ignore[union-attr]
                with build.named("rows_stage"):
                    stage, phase = build.stage(known.get(count, count), _STAGES)
                build.op("wait", [ring[1], stage, arith.XOrIOp(phase, build.index(1)).result])
                known_stages[op.block] = stage
            copy = clone_op(op, known)
            copy.operands[5], copy.operands[6] = ring[0], known_stages[op.block]
        return True

    with host.location, ir.InsertionPoint(own):
        part.clone({argument: own.arguments[0]}, special)
