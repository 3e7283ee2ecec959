"""HIP C++ for chunk scans (linear attention): matrix products of tiles in shared memory, the state in registers."""

from collections.abc import Mapping

from attn_mlir.backends.amd.chunks.kernel import ChunkKernel
from attn_mlir.backends.amd.target import AmdTarget
from attn_mlir.backends.gpu import attributes, printed
from attn_mlir.backends.gpu.attributes import SCHEDULE, Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt.plan import reads_own_elements
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_USUAL = 4
"""Products of a scan: with the state, of the pairs, with their weights, and of what enters the state."""


def plan(kernel: ir.Operation, target: AmdTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The schedule of a kernel with the grid "chunks", or of one that adds up rows and has no products; None for others.

    `waves` per SIMD that registers are limited for; `reuse`: more barriers, so that more tiles have the same place in shared memory (2:
    even more, where nothing fits otherwise); `split`: factors of large products come there in so many parts.

    Raises UnsupportedError where such a kernel cannot be made.
    """
    grid = grid_kind(kernel)
    if grid != "chunks" and (grid != "rows" or not _adds_rows(kernel)):
        return None
    needed = 0
    # Tiles of f32, and of scans with more than the usual products, need all registers of a SIMD.
    products = find_all(kernel, *DOTS)
    wide = any(isinstance(ir.RankedTensorType(op.operands[-1].type).element_type, ir.F32Type) for op in products)
    alone = wide or len(products) > _USUAL
    made: list[Fields] = []
    tries: list[Fields] = [{"reuse": 0}, {"reuse": 1}, {"reuse": 2}, {"reuse": 2, "split": 2}, {"reuse": 2, "split": 4}]
    for number, tried in enumerate(tries):
        if made and number > 1:
            break
        fields: Fields = {"waves": 1, **tried}
        hoped = fields if alone else {**fields, "waves": 2}
        code = ChunkKernel(kernel, {"arch": target.arch, **hoped}).emit()
        needed = printed.tried(kernel, "chunks", hoped, code).shared_bytes
        if 2 * needed <= target.lds_bytes and not alone:
            made.insert(0, hoped)  # two blocks fit into LDS, so that two waves share a SIMD
            break
        if needed <= target.lds_bytes:
            made.append(fields)
    if not made:
        raise UnsupportedError(
            f"amd: a chunk scan needs {needed} bytes of shared memory, {target.arch} has {target.lds_bytes}: choose smaller chunks "
            "or smaller blocks of values"
        )
    return {name: choices.get(name, value) for name, value in made[0].items()}


def emit(kernel: ir.Operation, target: AmdTarget) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for what this emitter cannot do."""
    return ChunkKernel(kernel, {**attributes.read(kernel, SCHEDULE), "arch": target.arch}).emit()


def _adds_rows(kernel: ir.Operation) -> bool:
    """Whether a kernel adds up heads, positions or states, as gradients of linear attention need it, and does nothing else."""
    others = find_all(kernel, *DOTS, "tile.accumulate", "tile.scatter_add")
    return not others and (len(find_all(kernel, "scf.for", "tile.cumsum")) > 0 or not reads_own_elements(kernel))
