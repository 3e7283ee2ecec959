"""The schedule of a kernel for TileLang: how many threads work on a tile, and how many blocks ahead tiles are loaded."""

from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tilelang.context import of_pieces
from attn_mlir.backends.nvidia.tilelang.maps import PRODUCTS
from attn_mlir.backends.nvidia.tilelang.program import print_program
from attn_mlir.backends.nvidia.tilelang.solves import SOLVE
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.dropout import expand
from attn_mlir.passes.regions import find_all

_MOST_THREADS = 512
_HELD = 128
"""Elements of a state that a thread holds at most."""
_OWN_BYTES = 2048
"""Shared memory that TileLang may want beside the tiles, for reductions and alignment."""


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Fields) -> Fields | None:
    """`threads` and `stages`; None where matrices are not of 16 bits, tiles do not fit, or TileLang cannot make the kernel.

    Every warp has 16 rows of a tile, so that all tiles with the same rows lie in the same threads. `choices` may set both fields; where so
    many stages do not fit, there are fewer. With
    `deterministic`, programs get slots for their sums, and add in a fixed order.
    """
    if any(not narrow(op) for op in find_all(kernel, *PRODUCTS)):
        return None
    for op in find_all(kernel, "attn.kept"):  # for which TileLang has no word
        expand(op)
    if grid_kind(kernel) == "chunks":
        return plan_chunks(kernel, target, choices)
    rows = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_q"]).value
    threads = int(choices["threads"]) if "threads" in choices else min(max(2 * rows, 128), _MOST_THREADS)
    for stages in range(int(choices.get("stages", 2)), 0, -1):
        try:
            program = print_program(kernel, threads, stages, bool(choices.get("deterministic")))
        except UnsupportedError:
            return None
        if program.shared_bytes + _OWN_BYTES <= target.shared_bytes:
            fields: Fields = {"threads": threads, "stages": stages}
            return {**fields, "deterministic": 1, "sums": "slots"} if choices.get("deterministic") else fields
    return None


def plan_chunks(kernel: ir.Operation, target: NvidiaTarget, choices: Fields) -> Fields | None:
    """`threads` and `stages` of a scan: a warpgroup for every 64 rows of a chunk and every 128 x 128 elements of the state.

    Two programs on a multiprocessor hide more than the next chunk loaded ahead does; where they find place with both, they have both.
    Where channels have decays, maps read the tiles of q and k at other rows than their own: with tiles in stages, whose numbers are
    variables, TileLang would have all threads meet twice for each of their steps.
    """
    facts = ir.DictAttr(kernel.attributes["tile.kernel"])
    rows = ir.IntegerAttr(facts["block_q"]).value
    sums = [op.results[0] for op in find_all(kernel, "tile.dot_rescale")]
    held = max((height * width for height, width in map(_shape, sums)), default=0)
    if find_all(kernel, SOLVE):  # what is read, solved and written takes registers as the state does
        held *= 2
    channels = any(len(_shape(op.results[0])) == 2 for op in find_all(kernel, "tile.cumsum"))
    if of_pieces(kernel):  # a product of the state's size is added to it, and maps of channels' decays hold as much again
        carried = [value for op in find_all(kernel, "scf.for") for value in op.results if len(_shape(value)) == 2]
        state = max((height * width for height, width in map(_shape, carried)), default=1)
        held = min(4 * state, 256 * _HELD) if channels else 2 * state
        held = 1 << (held - 1).bit_length()  # whole warpgroups share columns evenly
    if rows < 32:
        return None  # four warps cannot share products of fewer rows and columns
    threads = int(choices["threads"]) if "threads" in choices else min(max(2 * rows, held // _HELD, 128), _MOST_THREADS)
    fitting: dict[int, int] = {}
    for stages in [int(choices["stages"])] if "stages" in choices else [2, 1]:
        tiles = print_program(kernel, threads, stages).shared_bytes
        # Tiles that share memory leave gaps between them.
        needed = tiles + (tiles // 10 if of_pieces(kernel) else 0) + _OWN_BYTES
        if needed <= target.shared_bytes:
            fitting[stages] = needed
    if not fitting:
        return None
    together = [stages for stages, needed in fitting.items() if 2 * needed <= target.shared_bytes]
    return {"threads": threads, "stages": min(fitting) if channels else max(together or fitting)}


def _shape(value: ir.Value) -> list[int]:
    return ir.RankedTensorType(value.type).shape


def narrow(op: ir.Operation) -> bool:
    """Whether a product multiplies tiles of f16 or bf16."""
    factors = [value.type for value in op.operands if isinstance(value.type, ir.RankedTensorType) and value.type.rank == 2]
    return all(ir.RankedTensorType(type_).element_type.width == 16 for type_ in factors[-2:])
