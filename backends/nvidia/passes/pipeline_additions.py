"""Gives the buffer by which a role's sums leave a second stage, so that the next sum is written while the last one is added."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.numbers import i64
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_STAGES = 2


@dataclass(frozen=True)
class PipelineAdditions(Pass):
    """Where a role only adds (`warp.add_async`), one tile an iteration, makes two stages of the buffer that its tiles leave by: before a
    tile is written, the additions must have read it but for the newest. It comes after `warp-stage-stores`.

    A kernel stays as it is, with the reason in `warp.refused`, where no role only adds, additions have a fixed order, or shared memory has
    no room.
    """

    name = "warp-pipeline-additions"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _deepen)
        return True


def _deepen(kernel: ir.Operation) -> None:
    change_parts(find_all(kernel, "warp.role"), lambda role: _change(kernel, role), "no role only adds")


def _change(kernel: ir.Operation, role: ir.Operation) -> None:
    """Gives the additions of a role two stages. Raises Refused, with nothing changed."""
    additions = find_all(role, "warp.add_async")
    if not additions or find_all(role, "warp.store_async", "warp.order_wait"):
        raise Refused("no role only adds, in no fixed order")
    found = [_read(op) for op in additions]
    if len({wait.block for _, wait, _ in found}) != len(additions):
        raise Refused("an iteration adds more than one tile")
    buffers = {view.operands[0] for view, _, _ in found}
    if len(buffers) > 1 or any(rings.stages_of(buffer.type) != 1 for buffer in buffers):
        raise Refused("additions leave by several buffers, or stages")
    rings.deepen(kernel, buffers, _STAGES)
    for view, wait, count in found:
        with view.location, ir.InsertionPoint(view):
            view.operands[1] = build.stage(count, _STAGES)[0]
        for inner in find_all(wait, "warp.store_wait"):
            inner.attributes["pending"] = i64(_STAGES - 1)


def _read(addition: ir.Operation) -> tuple[ir.Operation, ir.Operation, ir.Value]:
    """The view that an addition reads, the wait for the one before, and what numbers the iterations. Raises Refused."""
    view, elect = maker(addition.operands[0], "warp.view"), addition.parent
    if view is None or elect is None or elect.operation.name != "warp.elect":
        raise Refused("a tile is added in another way than by one thread, from a view of a buffer")
    block = elect.operation.block
    ops = [each.operation for each in block.operations]
    waits = [op for op in ops if op.name == "warp.elect" and find_all(op, "warp.store_wait")]
    counts = [maker(op.operands[1], "warp.stage") for op in ops if op.name == "warp.wait"]
    count = next((op.operands[0] for op in counts if op is not None and op.block == block), None)
    if len(waits) != 1 or count is None or view.block != block:
        raise Refused("a loop has no ring by which it counts its iterations, or waits for additions elsewhere")
    return view, waits[0], count
