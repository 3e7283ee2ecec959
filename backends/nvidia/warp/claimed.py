"""Schedules of backward kernels of the `warp` dialect whose first thread block at a block of queries stores its sums over keys."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, Fields
from attn_mlir.backends.nvidia.hopper.pairs_claims import FIELD, sees_all_queries
from attn_mlir.backends.nvidia.hopper.pairs_kernel import read_kernel
from attn_mlir.backends.nvidia.hopper.pairs_reduction import semaphore_tensor
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def claimed(kernel: ir.Operation) -> Fields:
    """What the schedule says of it: a counter for each block of queries. Empty where one may be seen by no keys, or nobody wants it."""
    if not attributes.read(kernel, CHOICES).get(FIELD, 1):
        return {}
    try:
        found = read_kernel(kernel)
    except UnsupportedError:
        return {}
    if not found.step_ops("tile.accumulate") or not sees_all_queries(found):
        return {}
    over = ir.BlockArgument(semaphore_tensor(found)).arg_number
    return {FIELD: 1, "semaphore_over": over, "semaphore_rows": found.queries, "semaphore_parts": 1}
