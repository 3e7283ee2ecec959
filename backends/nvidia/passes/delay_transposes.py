"""Lets copies run ahead of the transposition of what they bring."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker


@dataclass(frozen=True)
class DelayTransposes(Pass):
    """In a producer's loop that copies tiles and transposes them, transposes those of an iteration in the next one, after its copies
    have been issued; those of the last one after the loop. So a tile lands while the one before is transposed.

    What lands then has a stage more than what is transposed at a time: `warp-pipeline-loads` comes first. A kernel with transpositions
    stays as it is, with the reason in `warp.refused`, where its rings have one stage, who transposes also multiplies, or a transposition
    needs more than the number of its ring's use.
    """

    name = "warp-delay-transposes"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _delay)
        return True


def _delay(kernel: ir.Operation) -> None:
    if not find_all(kernel, "warp.transpose"):
        return
    loops = [op for op in find_all(kernel, "scf.for") if any(inner.name == "warp.transpose" for inner in _ops(op))]
    change_parts(loops, _change, "no loop transposes")


def _change(loop: ir.Operation) -> None:
    """Delays what a loop transposes. Raises Refused, with nothing changed."""
    if find_all(loop, "warp.mma_async"):
        raise Refused("who transposes also multiplies: nothing runs ahead")
    block, ops = loop.regions[0].blocks[0], _ops(loop)
    (transpose, *others) = [op for op in ops if op.name == "warp.transpose"]
    if others:
        raise Refused("a loop transposes several tiles")
    view = maker(transpose.operands[0], "warp.view")
    stage = maker(view.operands[1], "warp.stage") if view is not None else None
    if stage is None or stage.operands[0] not in list(block.arguments)[1:]:
        raise Refused("what is transposed is in no ring whose uses the loop counts")
    if ir.IntegerAttr(stage.attributes["stages"]).value < 2:
        raise Refused("one stage leaves nothing to copy ahead")
    late = _late(ops, transpose)
    needed = _needed(late, ops)
    count = stage.operands[0]
    number = list(block.arguments).index(count) - 1
    if any(value in list(block.arguments) and value != count for op in needed for value in op.operands):
        raise Refused("a transposition needs other numbers than the count of its ring")
    begin, end, _ = list(loop.operands)[:3]
    with transpose.location:
        with ir.InsertionPoint(late[0]):
            _once(arith.CmpIOp(arith.CmpIPredicate.sgt, block.arguments[0], begin).result, count, count, needed)
        with ir.InsertionPoint.after(loop):
            some = arith.CmpIOp(arith.CmpIPredicate.slt, begin, end).result
            _once(some, loop.results[number], count, needed)
    for op in reversed(late):
        op.erase()


def _late(ops: list[ir.Operation], transpose: ir.Operation) -> list[ir.Operation]:
    """A transposition, the waits directly before it and what is told after it."""
    at = ops.index(transpose)
    first = at
    while ops[first - 1].name in ("warp.wait", "warp.view") or not ops[first - 1].name.startswith(("warp.", "scf.")):
        first -= 1
    last = at
    while ops[last + 1].name in ("warp.fence_async", "warp.arrive"):
        last += 1
    return [op for op in ops[first : last + 1] if not len(op.results)]


def _needed(late: list[ir.Operation], ops: list[ir.Operation]) -> list[ir.Operation]:
    """These and the ops of the loop that make their numbers, in order."""
    wanted = {value for op in late for value in op.operands}
    found = set(late)
    for op in reversed(ops):
        if any(result in wanted for result in op.results):
            found.add(op)
            wanted |= set(op.operands)
    return [op for op in ops if op in found]


def _once(condition: ir.Value, uses: ir.Value, count: ir.Value, needed: list[ir.Operation]) -> None:
    """Transposes what was copied last before use number `uses`, where that is so."""
    branch = scf.IfOp(condition)
    with ir.InsertionPoint(branch.then_block):
        known = {count: arith.SubIOp(uses, build.index(1)).result}
        for op in needed:
            clone_op(op, known)
        scf.YieldOp([])


def _ops(loop: ir.Operation) -> list[ir.Operation]:
    return [view.operation for view in loop.regions[0].blocks[0].operations]
