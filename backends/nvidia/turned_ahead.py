"""8-bit values that many queries read: transposed in memory, before a kernel that then copies tiles as products take them.

A kernel that transposes tiles does so again for each block of queries, beside products. To do it once takes one more pass over v, and
memory of its bytes, which is torch's, so that CUDA graphs capture it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.nvidia import thresholds, turning
from attn_mlir.backends.nvidia.forming.rings import swizzle_of_row
from attn_mlir.dialects.warp.copies import TURNED

TURNED_FROM = "turned_from"
"""In schedules of kernels that transpose: how many queries must read each key for values that are transposed before."""
_VALUES = 2
"""Which argument they are."""

__all__ = ["TURNED", "TURNED_FROM", "pays", "queries_of", "reason", "turned"]


def queries_of(units: Iterable[GpuKernel]) -> int:
    """From how many queries of each key on transposed values are better; 0 where they never are."""
    return max((int(unit.schedule.get(TURNED_FROM, 0)) for unit in units), default=0)


def pays(inputs: Sequence[Any], queries: int) -> bool:
    """Whether so many queries read each key, and there is so much to compute, that to transpose values once is faster, and a kernel can."""
    q, k, v = inputs[:3]
    if not 0 < k.shape[1] <= q.shape[1] or 0 in v.shape or q.shape[2] * (q.shape[1] // k.shape[1]) < queries:
        return False
    work = q.shape[:3].numel() * k.shape[2] * (q.shape[3] + v.shape[3])
    return work >= thresholds.TURNED_WORK and turning.may_turn(v)


def turned(inputs: Sequence[Any], unit: GpuKernel) -> list[Any]:
    """The inputs, with v as the tiles that a kernel copies, whose program was compiled for that. Raises torch.OutOfMemoryError."""
    q, k, v, *rest = inputs
    (keys,) = {parameter.box[1] for parameter in unit.code.parameters if parameter.kind == "descriptor" and parameter.argument == _VALUES}
    batch, heads, length, columns = v.shape
    tiles = empty((batch, heads, -(-length // keys) * keys, columns), dtype=v.dtype, device=v.device)
    turning.turn(v, tiles, keys, swizzle_of_row(keys))
    return [q, k, tiles, *rest]


def reason(inputs: Sequence[Any]) -> str:
    """What `explain()` says of v."""
    q, k, v = inputs[:3]
    return f"{q.shape[2] * (q.shape[1] // k.shape[1])} queries read each key: v is transposed before the kernel, {v.numel()} bytes"
