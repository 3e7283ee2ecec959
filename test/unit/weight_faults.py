"""Faults planted in the ring of weights of a backward pass, which roles or consumers write and multiply."""

from collections.abc import Callable

from attn_mlir.mlir import ir

Ops = dict[str, list[ir.Operation]]
Ring = Callable[[Ops, str], ir.Value]
"""The barriers of the ring, "full" or "free"."""


def without(ring: Ring, name: str, which: str) -> Callable[[Ops], None]:
    """Erases the waits for, or the arrivals at, a barrier of the ring."""

    def change(ops: Ops) -> None:
        for op in [op for op in ops[name] if op.operands[0] == ring(ops, which)]:
            op.erase()

    return change


def told_early(ring: Ring) -> Callable[[Ops], None]:
    """Weights are told before they are written."""

    def change(ops: Ops) -> None:
        for op in [op for op in ops["arrive"] if op.operands[0] == ring(ops, "full")]:
            before = [view.operation for view in op.block.operations]
            op.move_before([each for each in before[: before.index(op)] if each.name == "warp.write"][-1])

    return change
