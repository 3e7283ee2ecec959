"""The schedule of a kernel for TileLang: how many threads work on a tile, and how many blocks ahead tiles are loaded."""

from attn_mlir.backends.nvidia.attributes import Fields
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tilelang.program import print_program
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_MOST_THREADS = 512


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Fields) -> Fields | None:
    """`threads` and `stages`; None where the tiles do not fit into shared memory, or TileLang cannot make the kernel.

    Every warp has 16 rows of a tile, so that all tiles with the same rows lie in the same threads. `choices` may set both fields.
    """
    rows = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_q"]).value
    threads = int(choices.get("threads", min(max(2 * rows, 128), _MOST_THREADS)))
    wanted = [int(choices["stages"])] if "stages" in choices else [2, 1]
    for stages in wanted:
        try:
            program = print_program(kernel, threads, stages)
        except UnsupportedError:
            return None
        if program.shared_bytes <= target.shared_bytes:
            return {"threads": threads, "stages": stages}
    return None
