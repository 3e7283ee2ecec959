"""Lets a warpgroup that waits for its copy out of shared memory do so where all warpgroups meet anyway."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import THREADS
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.numbers import number
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker


@dataclass(frozen=True)
class MergeMeetings(Pass):
    """Moves the wait of one thread for its copy out of shared memory (`warp.store_wait`), behind which a warpgroup meets, before the
    meeting of all warpgroups of the role that comes first in the same block: the warpgroup needs no meeting of its own then.

    A kernel stays as it is, with the reason in `warp.refused`, where no such meeting comes first, the copy starts between the two, or
    the thread does more than wait, as it does in an order of sums.
    """

    name = "warp-merge-meetings"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _merge)
        return True


def _merge(kernel: ir.Operation) -> None:
    found = [(role, op) for role in find_all(kernel, "warp.role") for op in find_all(role, "warp.elect") if _only_waits(op)]
    change_parts(found, _change, "no thread waits for a copy before its warpgroup meets")


def _only_waits(elect: ir.Operation) -> bool:
    return [view.operation.name for view in elect.regions[0].blocks[0].operations] == ["warp.store_wait"]


def _change(part: tuple[ir.Operation, ir.Operation]) -> None:
    """Merges the meeting behind a wait with one of all warpgroups before it. Raises Refused, with nothing changed."""
    role, elect = part
    ops = [view.operation for view in elect.block.operations]
    at, threads = ops.index(elect), THREADS * number(role, "warpgroups")
    own = ops[at + 1] if at + 1 < len(ops) else elect
    if own.name != "warp.named_sync" or number(own, "threads") != THREADS or threads == THREADS:
        raise Refused("a warpgroup does not meet behind the wait, or is alone")
    meetings = [n for n, op in enumerate(ops[:at]) if op.name == "warp.named_sync" and _is_of_all(op, threads)]
    if not meetings:
        raise Refused("not all warpgroups meet before the wait")
    between = [inner for op in ops[meetings[-1] : at] for inner in (op, *find_all(op, "warp.store_commit"))]
    if any(op.name == "warp.store_commit" for op in between):
        raise Refused("the copy starts behind the meeting of all warpgroups")
    elect.move_before(ops[meetings[-1]])
    own.erase()


def _is_of_all(op: ir.Operation, threads: int) -> bool:
    return maker(op.operands[0], "arith.constant") is not None and number(op, "threads") == threads
