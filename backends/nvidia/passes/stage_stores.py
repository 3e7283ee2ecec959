"""Lets tiles leave by asynchronous copies: registers, shared memory, TMA."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import STORES, THREADS, target_of
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.forming.rings import SWIZZLE, GivenBack, stage_given_back
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of, in_form
from attn_mlir.mlir import arith, ir, memref, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, walk

_ELEMENTS = {"warp.store": {"f16": 16, "bf16": 16}, "warp.atomic_add": {"f32": 32}}
"""What asynchronous copies store, and what they add: element types, and of what columns are a multiple: two chunks, or a swizzle atom."""


@dataclass(frozen=True)
class StageStores(Pass):
    """Replaces each `warp.store` of a tile of 16-bit elements, and each `warp.atomic_add` of a tile of f32: its warpgroup writes the tile
    to its rows of a buffer in shared memory, a fence shows this to asynchronous copies, and when all warps have met, one thread starts the
    copy, or the addition, to global memory, which goes on beside what follows. A role has one buffer for tiles of one type.

    Before the next tile is written, that thread waits until the copy before has read the buffer, and all meet; a role ends when its copies
    are done. Warpgroups have rows and a named barrier of their own: none waits for another. Row values stay ordinary stores.

    Where an addition has a place in an order, that thread alone waits for the semaphore. It passes it on before the next tile is written,
    as the addition is done by then: two numbers in shared memory for each warpgroup tell which one is held.

    A kernel stays as it is, with the reason in `warp.refused`, where no such tile is stored, or shared memory has no room for it.
    """

    name = "warp-stage-stores"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._stage)
        return True

    def _stage(self, kernel: ir.Operation) -> None:
        target = target_of(kernel)
        if not target.bulk_copies:
            raise Refused(f"{target.arch} has no engine that copies tiles out of shared memory")
        found = [(role, op) for role in find_all(kernel, "warp.role") for op in find_all(role, *_ELEMENTS) if _is_tile(op)]
        if not found:
            raise Refused("no tile in whole swizzle atoms is stored as 16 bits or added as f32")
        types = {(role, str(_buffer(role, op))): _buffer(role, op) for role, op in found}
        used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
        more, limit = sum(map(bytes_of, types.values())), ir.IntegerAttr(kernel.attributes["shared_limit"]).value
        if used + more > limit:
            stages = [stage_given_back(role, op, _buffer(role, op)) for role, op in found]
            if len(found) > 1 or stages[0] is None or _is_ordered(found[0][1]):
                raise Refused(f"tiles that leave through shared memory take {more} bytes beside {used}, there are {limit}")
            _leave_through(*found[0], stages[0])
            return
        buffers: dict[tuple[ir.Operation, str], ir.Value] = {}
        for (role, name), type_ in types.items():
            with role.location, ir.InsertionPoint(role), build.named("o_buffer"):
                buffers[role, name] = build.op("alloc", results=[type_]).result
        firsts = {role: op for role, op in reversed(found) if _is_ordered(op)}
        semaphores = {role: HeldSemaphores(role, _counters(op)) for role, op in firsts.items()}
        meetings, first = {}, STORES
        for role in dict.fromkeys(role for role, _ in found):
            meetings[role], first = first, first + number(role, "warpgroups")
        for role, op in found:
            _replace(op, role, buffers[role, str(_buffer(role, op))], (meetings[role], semaphores.get(role)))
        for role in {role for role, _ in found}:
            with role.location, ir.InsertionPoint(role.regions[0].blocks[0]):
                _wait(read=False, semaphores=semaphores.get(role))


def _leave_through(role: ir.Operation, op: ir.Operation, stage: GivenBack) -> None:
    """Stores a tile through a stage that its role gives back before, and gives it back afterwards."""
    fragment, target, batch, head, row = op.operands
    with op.location, ir.InsertionPoint(op):
        view, own = _rows(role, fragment, stage.buffer, stage.stage, STORES)
        _write(fragment, view, own)
        with ir.InsertionPoint(build.elect()):
            build.op("store_async", [view, target, batch, head, row, build.index(0)])
            build.op("store_commit")
            # Its warp gives the stage back, too, and does so when the copy has read it.
            build.op("store_wait", pending=0, read=True)
    stage.arrival.move_after(op)
    op.erase()
    with role.location, ir.InsertionPoint(role.regions[0].blocks[0]):
        _wait(read=False, semaphores=None)


@dataclass
class HeldSemaphores:
    """The semaphores that the warpgroups of a role hold: of each, which of the `counters`, and the number that it gets."""

    role: ir.Operation
    counters: ir.Value

    def __post_init__(self) -> None:
        self.warpgroup = self.role.regions[0].blocks[0].arguments[0]
        count = ir.IntegerAttr(self.role.attributes["warpgroups"]).value
        with self.role.location, ir.InsertionPoint(self.role), build.named("semaphores_held"):
            self.slots = build.op("alloc", results=[build.shared_type([count, 2], ir.IntegerType.get_signless(32), 0)]).result
        with self.role.location, ir.InsertionPoint.at_block_begin(self.role.regions[0].blocks[0]), ir.InsertionPoint(build.elect()):
            self.hold(build.index(0), build.index(0))

    def hold(self, index: ir.Value, number: ir.Value) -> None:
        """Keeps a semaphore; number 0 is none."""
        for place, value in enumerate((index, number)):
            whole = arith.IndexCastOp(ir.IntegerType.get_signless(32), value).result
            memref.StoreOp(whole, self.slots, [self.warpgroup, build.index(place)])

    def give(self, done: bool = True) -> None:
        """Passes on the semaphore that is held, if any; waits before, where it is not known that what this thread sent is `done`."""
        index, number = (
            arith.IndexCastOp(ir.IndexType.get(), memref.LoadOp(self.slots, [self.warpgroup, build.index(place)]).result).result
            for place in (0, 1)
        )
        branch = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.ne, number, build.index(0)).result)
        with ir.InsertionPoint(branch.then_block):
            if not done:
                build.op("store_wait", pending=0, read=False)
            build.op("order_pass", [self.counters, index, number])
            self.hold(index, build.index(0))
            scf.YieldOp([])


def _counters(op: ir.Operation) -> ir.Value:
    """The counters of an ordered addition."""
    return next(inner for inner in walk(_around(op)[0]) if inner.name == "warp.order_wait").operands[0]


def _is_ordered(op: ir.Operation) -> bool:
    return "ordered" in op.attributes and ir.BoolAttr(op.attributes["ordered"]).value


def _around(op: ir.Operation) -> list[ir.Operation]:
    """Around an ordered addition: one thread waits for its semaphore, all meet; all meet, one thread passes it on. Refused of others."""
    ops = [view.operation for view in op.block.operations]
    at = ops.index(op)
    found = [*ops[max(at - 2, 0) : at], *ops[at + 1 : at + 3]]
    names = [[inner.name for inner in (each, *walk(each))] for each in found]
    wanted = ("warp.order_wait", "warp.named_sync", "warp.named_sync", "warp.order_pass")
    if len(found) != len(wanted) or not all(name in inner for name, inner in zip(wanted, names, strict=True)):
        raise Refused("an ordered addition has other ops around it than those that wait for a semaphore and pass it on")
    return found


def _is_tile(op: ir.Operation) -> bool:
    tile = in_form(op.operands[0].type, "tile")
    return tile is not None and tile.element in _ELEMENTS[op.name] and tile.shape[1] % _ELEMENTS[op.name][tile.element] == 0


def _buffer(role: ir.Operation, op: ir.Operation) -> ir.Type:
    """The rows of all warpgroups of a role."""
    tile = ir.RankedTensorType(op.operands[0].type)
    rows = tile.shape[0] * ir.IntegerAttr(role.attributes["warpgroups"]).value
    with op.location:
        return build.shared_type([1, rows, tile.shape[1]], tile.element_type, SWIZZLE)


def _replace(op: ir.Operation, role: ir.Operation, buffer: ir.Value, how: tuple[int, HeldSemaphores | None]) -> None:
    """`how`: the named barrier of the role's first warpgroup, and the semaphores that it holds."""
    meeting, semaphores = how
    fragment, target, batch, head, row, *more = op.operands
    around = _around(op) if semaphores is not None and _is_ordered(op) else []
    with op.location, ir.InsertionPoint(op):
        zero = build.index(0)
        view, own = _rows(role, fragment, buffer, zero, meeting)
        _wait(read=True, semaphores=semaphores)
        _write(fragment, view, own)
        with ir.InsertionPoint(build.elect()):
            if around:
                _moved(around[0], "warp.order_wait")
            operands = [view, target, batch, head, row, *(more or [zero])]
            if op.name == "warp.atomic_add":
                build.op("add_async", operands, ordered=bool(around))
            else:
                build.op("store_async", operands)
            build.op("store_commit")
            if around and semaphores is not None:
                passed = _moved(around[-1], "warp.order_pass")
                semaphores.hold(*list(passed.operands)[1:])
                passed.erase()
    for each in around:
        each.erase()
    op.erase()


def _rows(role: ir.Operation, fragment: ir.Value, buffer: ir.Value, stage: ir.Value, meeting: int) -> tuple[ir.Value, ir.Value]:
    """The view of the rows of a warpgroup in a stage, and its named barrier; `meeting` is that of the role's first one."""
    warpgroup, type_ = role.regions[0].blocks[0].arguments[0], ir.RankedTensorType(fragment.type)
    first = arith.MulIOp(warpgroup, build.index(type_.shape[0])).result
    own = arith.AddIOp(warpgroup, build.index(meeting)).result
    tile = build.shared_type(type_.shape, type_.element_type, SWIZZLE)
    return build.op("view", [buffer, stage, first, build.index(0)], [tile]).result, own


def _write(fragment: ir.Value, view: ir.Value, own: ir.Value) -> None:
    """Writes a tile between two meetings: copies may read it then."""
    build.op("named_sync", [own], threads=THREADS)
    build.op("write", [fragment, view])
    # TMA stores what all warps have written.
    build.op("fence_async")
    build.op("named_sync", [own], threads=THREADS)


def _moved(around: ir.Operation, last: str) -> ir.Operation:
    """Clones what one thread does to the insertion point; the op of the name `last` among it, which comes last."""
    known: dict[ir.Value, ir.Value] = {}
    made = [clone_op(view.operation, known) for view in around.regions[0].blocks[0].operations]
    return next(op for op in made if op.name == last)


def _wait(read: bool, semaphores: HeldSemaphores | None) -> None:
    """The thread that starts copies waits until they have read shared memory, or are done, as they are where it passes a semaphore on."""
    with ir.InsertionPoint(build.elect()):
        build.op("store_wait", pending=0, read=read and semaphores is None)
        if semaphores is not None:
            semaphores.give()
