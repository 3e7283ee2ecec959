"""Ping-pong of warpgroups on the tensor cores: while one multiplies, the others compute."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import PING_PONG, THREADS, wanted
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, walk


@dataclass(frozen=True)
class PingPong(Pass):
    """Orders the products of a role's warpgroups by named barriers, in loops in which products are in flight together.

    Before the first product of an iteration a warpgroup waits at its own named barrier; behind the last one's commit it comes to that of
    the next warpgroup, the first after the last, so that this one's products follow while the results of the former are computed with.
    The last warpgroup begins by letting the first one pass. Where `warp.schedule` has `ping_pong` = 0, the kernel stays as it is.

    A kernel stays as it is, with the reason in `warp.refused`, where no role of several warpgroups has such a loop, where how often one
    runs depends on the warpgroup (some would wait for ever), or named barriers have these numbers already.
    """

    name = "warp-ping-pong"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._order)
        return True

    def _order(self, kernel: ir.Operation) -> None:
        if not wanted(kernel, "ping_pong"):
            raise Refused("the schedule has no ping-pong")
        found = [(role, loops) for role in find_all(kernel, "warp.role") if (loops := _loops(role)) and _groups(role) > 1]
        if not found:
            raise Refused("no role of several warpgroups has a loop with products in flight together")
        if find_all(kernel, "warp.named_sync", "warp.named_arrive"):
            raise Refused("the kernel has named barriers already")
        if len(found) > 1:
            raise Refused(f"orders the products of one role, {len(found)} roles multiply")
        role, loops = found[0]
        depends = _of_warpgroup(role)
        if any(_is_uneven(loop, role, depends) for loop in loops):
            raise Refused("how often a loop runs depends on the warpgroup")
        _begin(role)
        for loop in loops:
            _order_products(loop, role)


def _groups(role: ir.Operation) -> int:
    return ir.IntegerAttr(role.attributes["warpgroups"]).value


def _loops(role: ir.Operation) -> list[ir.Operation]:
    """Loops in which a product is waited for while another one is in flight."""
    return [
        loop
        for loop in find_all(role, "scf.for")
        if any(op.name == "warp.mma_wait" and ir.IntegerAttr(op.attributes["pending"]).value for op in _body(loop))
    ]


def _body(loop: ir.Operation) -> list[ir.Operation]:
    return [view.operation for view in loop.regions[0].blocks[0].operations]


def _of_warpgroup(role: ir.Operation) -> set[ir.Value]:
    """The values that depend on which warpgroup of the role it is."""
    found: set[ir.Value] = {role.regions[0].blocks[0].arguments[0]}
    before = 0
    while before != len(found):
        before = len(found)
        for op in walk(role):
            inner = [value for each in (op, *walk(op)) for value in each.operands]
            if op.results and any(value in found for value in inner):
                found |= {result for result in op.results if isinstance(result.type, (ir.IndexType, ir.IntegerType))}
            if op.name == "scf.for":
                _, *carried = op.regions[0].blocks[0].arguments
                found |= {a for a, start in zip(carried, list(op.operands)[3:], strict=True) if start in found}
    return found


def _is_uneven(loop: ir.Operation, role: ir.Operation, depends: set[ir.Value]) -> bool:
    """Whether the bounds of a loop, or those of what it stands in, depend on the warpgroup."""
    op = loop
    while op != role:
        if any(value in depends for value in list(op.operands)[: 3 if op.name == "scf.for" else None]):
            return True
        assert op.parent is not None
        op = op.parent.operation
    return False


def _begin(role: ir.Operation) -> None:
    """The last warpgroup lets the first one pass."""
    block = role.regions[0].blocks[0]
    with role.location, ir.InsertionPoint.at_block_begin(block):
        last = arith.CmpIOp(arith.CmpIPredicate.eq, block.arguments[0], build.index(_groups(role) - 1)).result
        with ir.InsertionPoint(scf.IfOp(last).then_block):
            build.op("named_arrive", [build.index(PING_PONG)], threads=2 * THREADS)
            scf.YieldOp([])


def _order_products(loop: ir.Operation, role: ir.Operation) -> None:
    """The wait before a loop's first product, and the arrival behind the last commit before a product is waited for."""
    ops = _body(loop)
    first = next(op for op in ops if op.name == "warp.mma_begin")
    waits = next(n for n, op in enumerate(ops) if op.name == "warp.mma_wait")
    commit = [op for op in ops[:waits] if op.name == "warp.mma_commit"][-1]
    index = role.regions[0].blocks[0].arguments[0]
    with first.location, ir.InsertionPoint(first):
        own = arith.AddIOp(index, build.index(PING_PONG)).result
        build.op("named_sync", [own], threads=2 * THREADS)
    with commit.location, ir.InsertionPoint.after(commit):
        following = arith.AddIOp(index, build.index(1)).result
        wrapped = arith.RemUIOp(following, build.index(_groups(role))).result
        build.op("named_arrive", [arith.AddIOp(wrapped, build.index(PING_PONG)).result], threads=2 * THREADS)
