"""Schedules of backward kernels of the `warp` dialect whose first thread block at a block of queries stores its sums over keys."""

import dataclasses

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, Fields
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.nvidia.forming.claims import is_alone
from attn_mlir.backends.nvidia.forming.kernel import ROWS
from attn_mlir.backends.nvidia.hopper.pairs_claims import FIELD, sees_all_queries
from attn_mlir.backends.nvidia.hopper.pairs_kernel import read_kernel, semaphore_tensor
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all


def without_claims(unit: GpuKernel) -> GpuKernel:
    """A kernel that passes form by the schedule of another emitter, whose claims they leave out: its sums are added to zeros."""
    if unit.schedule.get("emitter") == "warp" or FIELD not in unit.schedule:
        return unit
    left = {name: value for name, value in unit.schedule.items() if name != FIELD and not name.startswith("semaphore_")}
    return dataclasses.replace(unit, schedule=left)


def claimed(kernel: ir.Operation) -> Fields:
    """What the schedule says of it: a counter for each block of queries. Empty where one may be seen by no keys, or somebody chose 0."""
    claims = int(attributes.read(kernel, CHOICES).get(FIELD, 1))
    if not claims:
        return {}
    try:
        found = read_kernel(kernel)
    except UnsupportedError:
        return {}
    if not found.step_ops("tile.accumulate") or not sees_all_queries(found):
        return {}
    over = ir.BlockArgument(semaphore_tensor(found)).arg_number
    parts = _parts(kernel, found.queries)
    return {FIELD: claims, "semaphore_over": over, "semaphore_rows": found.queries, "semaphore_parts": parts}


def _parts(kernel: ir.Operation, queries: int) -> int:
    """How many warpgroups make a sum over keys, each of which has counters of its own."""
    (keys,) = {ir.RankedTensorType(op.operands[1].type).shape[1] for op in find_all(kernel, "tile.accumulate")}
    warpgroups = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_q"]).value // ROWS
    return 1 if is_alone(str(attributes.read(kernel, CHOICES).get("key_sums", "auto")), (queries // ROWS, keys), warpgroups) else warpgroups
