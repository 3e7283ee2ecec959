"""Gives what a loop over tiles loads a second stage, so that it is copied while the tile before is computed."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.facts import chosen
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.passes.pipeline_loads import of_ring
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_STAGES = 2
_ALIGNMENT = 1024
"""Buffers begin at multiples of so many bytes, and so many are kept free: barriers lie behind all buffers."""


@dataclass(frozen=True)
class PipelineTiles(Pass):
    """Makes two stages of the one stage of each ring that no inner loop fills, as that of queries: a producer copies those of the next tile
    when it has sent the last keys of this one.

    It comes last, when it is known what else lies in shared memory. A kernel stays as it is, with the reason in `warp.refused`, where it
    has one role, adds to global memory, has no ring of one stage left, shared memory has no room, or `warp.schedule` says `tile_stages` 1.
    With 2 the last KiB are used, too: causal softmax of 80 columns was slower so.
    """

    name = "warp-pipeline-tiles"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _deepen)
        return True


def _deepen(kernel: ir.Operation) -> None:
    asked = chosen(kernel, "tile_stages", 0, 0)
    if asked == 1:
        raise Refused("the schedule says that what tiles load has one stage")
    if len(find_all(kernel, "warp.role")) == 1:
        raise Refused("no role copies ahead of the others")
    if find_all(kernel, "warp.atomic_add", "warp.add_async"):
        raise Refused("it has not been measured for kernels that add to global memory")
    values = {value for op in find_all(kernel, *rings.COPIES) for value in of_ring(op) if rings.stages_of(value.type) == 1}
    if not values:
        raise Refused("no ring of one stage is left")
    buffers = find_all(kernel, "warp.alloc")
    more = sum(bytes_of(value.type) for value in values if isinstance(value.type, ir.MemRefType))
    sizes = [bytes_of(op.results[0].type) for op in buffers]
    if asked:
        needed = more + _ALIGNMENT + sum(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)
    else:
        needed = more + sum(size + _ALIGNMENT for size in sizes)
    limit = number(kernel, "shared_limit")
    if needed > limit:
        raise Refused(f"two stages of what tiles load take up to {needed} bytes of shared memory with all else, there are {limit}")
    rings.deepen(kernel, dict.fromkeys(values, _STAGES))
