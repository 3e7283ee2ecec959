"""Lets all warps copy what later iterations of a loop use, where no producer does it."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.ahead import LoopAhead, points_of
from attn_mlir.backends.nvidia.forming.facts import chosen, target_of
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_STAGES = 2


@dataclass(frozen=True)
class PrefetchLoads(Pass):
    """Makes `stages` of the one stage that inner loops fill, and issues copies stages - 1 iterations ahead of their use.

    It is `warp-pipeline-loads` for kernels whose warps copy for themselves (`warp.copy_lanes_async`): the first copies stand before the
    loop; in each iteration a load waits for its own copies alone, all warps meet, and copies for a later iteration begin, into the stage
    that all have left. A load before the loop, whose copies only the loop uses, is waited for behind the loop's first copies. With
    `together`, the loads of an iteration are waited for at the first of them, and all meet once. Without the options, `warp.schedule` says
    how many stages, or there are two, and whether loads are waited for together, or they are not.

    A kernel stays as it is, with the reason in `warp.refused`, where no inner loop has such loads, what they copy depends on what the loop
    computes, or shared memory does not hold so many stages; without a reason where a chip has TMA, and its warps copy nothing.
    """

    name = "warp-prefetch-loads"
    stages: int = 0
    together: bool = False

    def run(self, module: ir.Operation) -> bool:
        if self.stages < 0:
            module.location.emit_error(f"{self.name}: `stages` must not be negative, got {self.stages}")
            return False
        change_kernels(module, self.name, self._prefetch)
        return True

    def _prefetch(self, kernel: ir.Operation) -> None:
        if target_of(kernel).bulk_copies and not find_all(kernel, "warp.copy_lanes_async"):
            return
        stages = chosen(kernel, "stages", self.stages, _STAGES)
        if stages == 1:
            raise Refused("one stage leaves nothing to copy ahead")
        loops = [(loop, points_of(loop)) for loop in find_all(kernel, "scf.for") if rings.depth(loop)]
        loops = [(loop, points) for loop, points in loops if points]
        if not loops:
            raise Refused("no inner loop holds copies of all warps")
        rings.deepen(kernel, dict.fromkeys((buffer for _, points in loops for point in points for buffer in point.buffers), stages))
        for loop, points in loops:
            LoopAhead(loop, points, stages - 1, bool(chosen(kernel, "together", self.together, 0))).change()
