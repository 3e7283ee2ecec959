"""Lets the first thread block that adds to a block of queries store its sums, so that nobody writes zeros before."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.passes.stage_stores import HeldSemaphores
from attn_mlir.dialects.numbers import flag, number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.structure import shares
from attn_mlir.mlir import arith, ir, memref, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, makers_in, walk

_STORED = 2
"""What a counter is when there are sums."""


@dataclass(frozen=True)
class ClaimSums(Pass):
    """Where one warpgroup makes all sums over keys and adds them by asynchronous copies, the thread that starts these claims the block of
    queries: it stores the first sums, and adds others (`warp.claim`). It asks for the counter at the begin of an iteration, long before.

    That a store is done, it tells before the next tile is written, as then it mostly is: two numbers in shared memory tell which counter
    is held. Warps that do nothing else (`warp-specialize-additions`) wait for it, and tell it at once. It comes after that pass, with
    `claims` in `warp.schedule`: 1, or up to how many queries of a head. Heads of more are added to zeros, and nobody asks for their
    counters.

    A kernel stays as it is, with the reason in `warp.refused`, where sums leave in another way.
    """

    name = "warp-claim-sums"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _claim)
        return True


def _claim(kernel: ir.Operation) -> None:
    if said(kernel, "claims", "0") == "0":
        raise Refused("nothing is stored first: no `claims` in `warp.schedule`")
    most = int(said(kernel, "claims", "0"))
    roles = [role for role in find_all(kernel, "warp.role") if find_all(role, "warp.add_async", "warp.atomic_add")]
    adds = [op for role in roles for op in find_all(role, "warp.add_async")]
    if len(roles) != 1 or not adds or find_all(roles[0], "warp.atomic_add"):
        raise Refused("sums over keys leave in another way than by asynchronous additions of one role")
    role = roles[0]
    if shares(role):
        for alone in [_Apart.of(op) for op in adds]:
            alone.change(most)
        return
    if number(role, "warpgroups") != 1:
        raise Refused("several warpgroups that do more than add would all wait for counters: give additions to warps (reduction_warps)")
    found = [_Addition.of(op) for op in adds]
    ends = [op.block for op in find_all(role, "warp.store_wait") if not ir.BoolAttr(op.attributes["read"]).value]
    semaphores = HeldSemaphores(role, found[0].now.operands[0])
    for each in found:
        each.change(semaphores, most)
    for block in ends:
        with role.location, ir.InsertionPoint(block):
            semaphores.give()


def _asked(add: ir.Operation) -> tuple[ir.Operation, list[ir.Operation]]:
    """What asked for the counter of an addition, and the ops before the thread that adds. Raises Refused where nothing has."""
    elect = add.block.owner.operation
    ops = [view.operation for view in elect.block.operations]
    before = ops[: ops.index(elect)]
    asked = [op for op in before if op.name == "warp.order_now"]
    if flag(add, "ordered") or len(asked) != 1:
        raise Refused("an addition has no counter of its own")
    return asked[0], before


def _store_or_add(add: ir.Operation, now: ir.Value, counter: tuple[ir.Value, ir.Value], hold: Callable[[], None]) -> ir.Value:
    """In place of an addition: a store where this thread block claims the counter, which it then holds. Whether it does."""
    with add.location, ir.InsertionPoint(add):
        first = build.op("claim", [*counter, now], [ir.IntegerType.get_signless(1)]).result
        branch = scf.IfOp(first, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            build.op("store_async", list(add.operands))
            hold()
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            build.op("add_async", list(add.operands), ordered=False)
            scf.YieldOp([])
    add.erase()
    return first


@dataclass(frozen=True)
class _Apart:
    """An addition by a warp that does nothing else, what asked for its counter, and where it gives back what the addition has read."""

    add: ir.Operation
    now: ir.Operation
    given: ir.Operation

    @classmethod
    def of(cls, add: ir.Operation) -> "_Apart":
        """Raises Refused for one that stands elsewhere than `warp-specialize-additions` puts it."""
        given = [view.operation for view in add.block.operations if view.operation.name == "warp.arrive"]
        if len(given) != 1:
            raise Refused("a warp that adds gives nothing back")
        return cls(add, _asked(add)[0], given[0])

    def change(self, most: int) -> None:
        """Claims, stores or adds, and tells of a store when it is done."""
        counters, index = self.now.operands
        now = _ask_first(self.now, self.add.operands[1], most)
        first = _store_or_add(self.add, now, (counters, index), lambda: None)
        with self.given.location, ir.InsertionPoint.after(self.given):
            branch = scf.IfOp(first)
            with ir.InsertionPoint(branch.then_block):
                build.op("store_wait", pending=0, read=False)
                build.op("order_pass", [counters, index, build.index(_STORED)])
                scf.YieldOp([])


@dataclass(frozen=True)
class _Addition:
    """An addition, what asked for its counter, and the wait before what it reads is written."""

    add: ir.Operation
    now: ir.Operation
    wait: ir.Operation

    @classmethod
    def of(cls, add: ir.Operation) -> "_Addition":
        """Raises Refused for one that stands elsewhere than `warp-stage-stores` puts it."""
        asked, before = _asked(add)
        waits = [inner for op in before if op.name == "warp.elect" for inner in walk(op) if inner.name == "warp.store_wait"]
        if len(waits) != 1:
            raise Refused("the tile of an addition is written in another way than by all between two meetings")
        return cls(add, asked, waits[0])

    def change(self, semaphores: HeldSemaphores, most: int) -> None:
        """Asks first, claims, and stores or adds; tells before the next tile is written. `most`: queries of a head, 1 for any number."""
        counters, index = self.now.operands
        now = _ask_first(self.now, self.add.operands[1], most)
        _store_or_add(self.add, now, (counters, index), lambda: semaphores.hold(index, build.index(_STORED)))
        with self.wait.location, ir.InsertionPoint(self.wait):
            semaphores.give(done=False)


def _ask_first(asking: ir.Operation, target: ir.Value, most: int) -> ir.Value:
    """Moves what asks for a counter, and what it needs, to the begin of its block. What the counter is, or that there are sums."""
    ops = [view.operation for view in asking.block.operations]
    first = ops[0]
    for op in makers_in(asking.block, [asking.results[0]]):
        if op != first:
            op.move_before(first)
        else:
            first = ops[ops.index(first) + 1]
    if most == 1:
        return asking.results[0]
    with asking.location, ir.InsertionPoint(asking):
        length = memref.DimOp(target, build.index(ir.MemRefType(target.type).rank - 2)).result
        few = arith.CmpIOp(arith.CmpIPredicate.sle, length, build.index(most)).result
        branch = scf.IfOp(few, [asking.results[0].type], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp([clone_op(asking, {}).results[0]])
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([build.index(_STORED)])
    asking.erase()
    return branch.results_[0]
