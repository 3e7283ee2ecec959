"""Hands out tiles by a counter: a thread block takes the next one when it gets there."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.forming.facts import ALL, THREADS, draws, target_of
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, memref, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_STAGES = 2
"""Messages that the first role may have sent before the others read them."""


@dataclass(frozen=True)
class DrawTiles(Pass):
    """Replaces the static tile scheduler by a dynamic one: the first tile of a thread block is that of its number, further ones it draws
    from a counter (`warp.next_tile`), an argument that the kernel gets, and leaves zero.

    The first warpgroup of the first role draws, when it has done its part of a tile, so that a producer asks long before the tile is
    needed. A message in shared memory, of two stages, tells the number to all roles; loops over tiles become `scf.while`. Numbers are drawn
    in order, so that orders of additions hold, and the longest tiles still come first where `warp-order-tiles` put them there.

    Where tiles wait for those of lower numbers (`warp.order_wait`) thread blocks draw their first tiles, too: the number of a thread block
    does not tell who has begun, and one that has not, as other kernels have its multiprocessor, may hold no number that another waits for.

    Where chips have no barriers with phases a kernel is launched with a thread block for each tile, which draws it; any tiles past these
    would be its share, from there on.

    A kernel stays as it is, with the reason in `warp.refused`, where a role has no loop over tiles, and, without the option `draw`, where
    `warp.schedule` has neither `draw` = 1 nor `order` = "dynamic", and no tile waits for another.
    """

    name = "warp-draw-tiles"
    draw: bool = False

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._draw)
        return True

    def _draw(self, kernel: ir.Operation) -> None:
        if not self.draw and not draws(kernel):
            raise Refused("the schedule has a fixed share of the tiles for each thread block")
        loops = {role: [op for op in operations(body(role)) if _takes_tiles(op)] for role in find_all(kernel, "warp.role")}
        if any(len(found) != 1 for found in loops.values()):
            raise Refused("a role has no loop, or several, that takes tiles from its thread block's number on")
        waits = bool(find_all(kernel, "warp.order_wait"))
        warps = sum(number(role, "warpgroups") * number(role, "warps") for role in loops)
        first = next(iter(loops))
        with kernel.location, ir.InsertionPoint(first):
            whole = ir.IntegerType.get_signless(32)
            where = ir.Location.name("tile_counter")
            counter = kernel.regions[0].blocks[0].add_argument(ir.MemRefType.get([ir.ShapedType.get_dynamic_size()], whole), where)
            if not target_of(kernel).bulk_copies:
                _draw_first(first, loops[first][0], counter)
                return
            with build.named("next_tiles"):
                slots = build.op("alloc", results=[build.shared_type([_STAGES, 1], whole, 0)]).result
            with build.named("tile_told"):
                told = build.barrier(_STAGES, 1)
            with build.named("tile_heard"):
                heard = build.barrier(_STAGES, warps)
        for role, (loop,) in loops.items():
            with loop.location, ir.InsertionPoint(loop):
                index = role.regions[0].blocks[0].arguments[0]
                sends = arith.CmpIOp(arith.CmpIPredicate.eq, index, build.index(0)).result if role == first else None
                _Messages(counter, slots, told, heard, waits).replace(loop, sends)


def _draw_first(role: ir.Operation, loop: ir.Operation, counter: ir.Value) -> None:
    """Lets thread blocks of one role begin with tiles in the order in which they ask; the last one leaves the counter zero."""
    with build.named("first_tile"):
        told = build.op("alloc", results=[build.shared_type([1, 1], ir.IntegerType.get_signless(32), 0)]).result
    threads = THREADS * number(role, "warpgroups")
    with loop.location, ir.InsertionPoint(loop):
        zero, index = build.index(0), ir.IndexType.get()
        leads = arith.CmpIOp(arith.CmpIPredicate.eq, role.regions[0].blocks[0].arguments[0], zero).result
        branch = scf.IfOp(leads)
        with ir.InsertionPoint(branch.then_block):
            with ir.InsertionPoint(build.elect()):
                last = arith.SubIOp(build.op("block_count", results=[index]).result, build.index(1)).result
                drawn = build.op("next_tile", [counter, last], [index]).result
                memref.StoreOp(arith.IndexCastOp(ir.IntegerType.get_signless(32), drawn).result, told, [zero, zero])
            scf.YieldOp([])
        build.op("named_sync", [build.index(ALL)], threads=threads)
        loop.operands[0] = arith.IndexCastOp(index, memref.LoadOp(told, [zero, zero]).result).result


@dataclass(frozen=True)
class _Messages:
    """The numbers of the next tiles in shared memory, told by one role and heard by all."""

    counter: ir.Value
    slots: ir.Value
    told: ir.Value
    heard: ir.Value
    waits: bool
    """Whether tiles wait for others."""

    def replace(self, loop: ir.Operation, sends: ir.Value | None) -> None:
        """Puts a loop that goes on until there are no tiles left in the place of one over a fixed share; see `_next`."""
        _, tiles, _, *starts = loop.operands
        body = loop.regions[0].blocks[0]
        zero = build.index(0)
        inits = [zero, zero, *starts]
        types, names = [v.type for v in inits], [ir.Location.name("round"), *(a.location for a in body.arguments)]
        made = ir.Operation.create("scf.while", results=types, operands=inits, regions=2)
        before, after = (region.blocks.append(*types, arg_locs=names) for region in made.regions)
        with ir.InsertionPoint(before):
            round_, _, *carried = before.arguments
            tile = self._next(round_, tiles, sends)
            goes_on = arith.CmpIOp(arith.CmpIPredicate.slt, tile, tiles).result
            ir.Operation.create("scf.condition", operands=[goes_on, round_, tile, *carried])
        with ir.InsertionPoint(after):
            round_, tile, *carried = after.arguments
            known = dict(zip(body.arguments, [tile, *carried], strict=True))
            *ops, last = [view.operation for view in body.operations]
            for op in ops:
                clone_op(op, known)
            following = arith.AddIOp(round_, build.index(1)).result
            scf.YieldOp([following, tile, *(known.get(v, v) for v in last.operands)])
        for old, new in zip(loop.results, list(made.results)[2:], strict=True):
            old.replace_all_uses_with(new)
        loop.erase()

    def _next(self, round_: ir.Value, tiles: ir.Value, sends: ir.Value | None) -> ir.Value:
        """The number of the tile of a round, drawn by a warpgroup of which `sends` holds."""
        with build.named("message"):
            stage, phase = build.stage(round_, _STAGES)
        if sends is not None:
            branch = scf.IfOp(sends)
            with ir.InsertionPoint(branch.then_block):
                self._send(round_, tiles, stage, phase)
                scf.YieldOp([])
        build.op("wait", [self.told, stage, phase])
        number = memref.LoadOp(self.slots, [stage, build.index(0)]).result
        build.op("arrive", [self.heard, stage])
        return arith.IndexCastOp(ir.IndexType.get(), number).result

    def _send(self, round_: ir.Value, tiles: ir.Value, stage: ir.Value, phase: ir.Value) -> None:
        """One thread tells the number when all have heard the one that was told there before."""
        build.op("wait", [self.heard, stage, arith.XOrIOp(phase, build.index(1)).result])
        with ir.InsertionPoint(build.elect()):
            number = arith.IndexCastOp(ir.IntegerType.get_signless(32), self._drawn(round_, tiles)).result
            memref.StoreOp(number, self.slots, [stage, build.index(0)])
            build.op("arrive", [self.told, stage])

    def _drawn(self, round_: ir.Value, tiles: ir.Value) -> ir.Value:
        """This thread block's number at first, then numbers behind those of all thread blocks; the last draw leaves the counter zero.

        Where tiles wait for others all numbers are drawn, and each thread block draws one that is no tile.
        """
        index = ir.IndexType.get()
        if self.waits:
            blocks = arith.SubIOp(build.op("block_count", results=[index]).result, build.index(1)).result
            return build.op("next_tile", [self.counter, arith.AddIOp(tiles, blocks).result], [index]).result
        is_first = arith.CmpIOp(arith.CmpIPredicate.eq, round_, build.index(0)).result
        branch = scf.IfOp(is_first, [index], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([build.op("block_id", results=[index]).result])
        with ir.InsertionPoint(branch.else_block):
            last = arith.SubIOp(tiles, build.index(1)).result
            drawn = build.op("next_tile", [self.counter, last], [index]).result
            scf.YieldOp([arith.AddIOp(build.op("block_count", results=[index]).result, drawn).result])
        return branch.results_[0]


def _takes_tiles(op: ir.Operation) -> bool:
    """Whether a loop takes a fixed share of the tiles."""
    return (
        op.name == "scf.for"
        and maker(op.operands[0], "warp.block_id") is not None
        and maker(op.operands[2], "warp.block_count") is not None
    )
