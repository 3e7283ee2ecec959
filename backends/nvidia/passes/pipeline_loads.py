"""Gives rings more stages, so that what comes next is copied while what is there is used."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.facts import chosen
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker


@dataclass(frozen=True)
class PipelineLoads(Pass):
    """Makes `stages` of the one stage of each ring that an inner loop fills: its buffer, its barriers, and the `warp.stage` of its uses.

    Without the option, `warp.schedule` says how many, or there are two; `first_stages` of it, where given, are those of the ring that the
    loop fills first, as of keys that are held until no warp takes its step again. An inner loop is one in a loop. A kernel stays as it is,
    with the reason in `warp.refused`, where no inner loop fills a ring of one stage, or shared memory does not hold so many.
    """

    name = "warp-pipeline-loads"
    stages: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.stages < 0:
            module.location.emit_error(f"{self.name}: `stages` must not be negative, got {self.stages}")
            return False
        change_kernels(module, self.name, self._deepen)
        return True

    def _deepen(self, kernel: ir.Operation) -> None:
        stages = chosen(kernel, "stages", self.stages, thresholds.WARP_STAGES)
        copies = [op for op in find_all(kernel, *rings.COPIES) if rings.depth(op) > 1]
        values = {value for op in copies for value in of_ring(op) if rings.stages_of(value.type) == 1}
        if not values:
            raise Refused("no inner loop fills a ring of one stage")
        first = values & set(of_ring(copies[0]))
        rings.deepen(kernel, {value: chosen(kernel, "first_stages", 0, stages) if value in first else stages for value in values})


def of_ring(copy: ir.Operation) -> list[ir.Value]:
    """The buffer and the barriers that a copy's stage is one of: what it fills, where its bytes count, and who waits in the same block."""
    tile, full, stage = rings.filled_by(copy)
    view = maker(tile, "warp.view")
    barriers = ("warp.wait", "warp.arrive", "warp.view")  # and, where tiles are transposed, what holds the transposes
    waits = [use.owner.operation.operands[0] for use in stage.uses if use.owner.operation.name in barriers]
    rows = [use.owner.operation for use in stage.uses if use.owner.operation.name in ("warp.copy_rows_async", "warp.copy_rows_scaled")]
    beside = [op.operands[len(op.operands) - 3] for op in rows]
    beside += [use.owner.operation.operands[0] for use in stage.uses if use.owner.operation.name == "warp.make_rows"]
    return [full, *waits, *beside, *([view.operands[0]] if view is not None else [])]
