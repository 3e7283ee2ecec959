"""HIP C++ with matrix instructions: four waves of 32 rows each; what they multiply with goes through shared memory."""

from collections.abc import Mapping

from attn_mlir.backends.amd.mfma.kernel import MfmaKernel
from attn_mlir.backends.amd.mfma.tiles import MATRIX
from attn_mlir.backends.amd.target import AmdTarget
from attn_mlir.backends.gpu import attributes, printed
from attn_mlir.backends.gpu.attributes import SCHEDULE, Fields
from attn_mlir.backends.gpu.grid import depends_on_block
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt.merge import is_merge
from attn_mlir.dialects.elements import EIGHT_BIT, ELEMENTS
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_WIDE = 576
"""Columns of queries for which registers do without `recompute`."""


def plan(kernel: ir.Operation, target: AmdTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The schedule of a kernel with matrix products in 16 bits.

    `waves` per SIMD; `reverse`: the last blocks of rows first; `in_turn`: rows and columns of a block (1), or of all (2), share memory, one
    after the other; `recompute`: addresses are computed in each step again, as there are no registers to keep them; `late`: only what
    follows from the number of the thread is, where it is used; `products`: what those of 8-bit elements take, and why, if they are
    widened; `room`: bytes of shared memory that must do, so that what maps read for each column may be read where it is used.

    None for other kernels. Raises UnsupportedError where such a kernel cannot be made.
    """
    if not find_all(kernel, *DOTS):
        return None
    if is_merge(kernel):
        return None
    columns = max(ir.RankedTensorType(load.results[0].type).shape[1] for load in find_all(kernel, "tile.load"))
    sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
    pairs = "grid" in sizes and ir.StringAttr(sizes["grid"]).value == "pairs"
    fields: Fields = {
        "waves": 1 if pairs or columns > 128 else 2,  # a SIMD; two leave 256 registers, too few for those sums
        "reverse": int(_uneven(kernel) and not pairs and "lengths" not in sizes),
        "in_turn": 0,
    }
    fields |= _of_eight_bits(kernel, target)
    # Windows take a register for each of sixteen elements: 26 were spilled, and the model says 240,000 clocks in place of 359,000. A row of
    # q takes one for each four columns: of 640 columns 6 were spilled, of 768 92.
    if (columns > 128 and find_all(kernel, "tile.accumulate")) or columns > _WIDE or find_all(kernel, "tile.load_window"):
        fields["recompute"] = 1
    if columns <= 128 and not pairs and _keeps_much(kernel):
        fields["late"] = 1
    if choices.get("deterministic"):
        # Each program adds to a slot of its own, in which a lane adds to its elements one after the other, or waves and lanes have turns.
        fields |= {"deterministic": 1, "sums": "slots"}
    fields.update({name: value for name, value in choices.items() if name in fields})
    needed = 0
    for in_turn, room in ((0, 0), (1, 0), (0, target.lds_bytes), (1, target.lds_bytes), (2, 0), (2, target.lds_bytes)):
        tried = fields | {"in_turn": in_turn} | ({"room": room} if room else {})
        try:
            code = MfmaKernel(kernel, {"arch": target.arch, **tried}).emit()
            needed = printed.tried(kernel, "mfma", tried, code).shared_bytes
        except UnsupportedError:
            if not in_turn:
                raise
            continue
        if needed <= target.lds_bytes:
            return tried
    raise UnsupportedError(
        f"amd: the kernel needs {needed} bytes of shared memory, {target.arch} has {target.lds_bytes}: "
        "take smaller head dimensions, smaller blocks (`tile.choices`), or the CPU"
    )


def emit(kernel: ir.Operation, target: AmdTarget) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for what this emitter cannot do."""
    return MfmaKernel(kernel, {**attributes.read(kernel, SCHEDULE), "arch": target.arch}).emit()


def _of_eight_bits(kernel: ir.Operation, target: AmdTarget) -> Fields:
    """What products take where memory has 8-bit elements."""
    for load in find_all(kernel, "tile.load"):
        memory, element = (str(value.type.element_type) for value in (load.operands[0], load.results[0]))
        if memory not in EIGHT_BIT:
            continue
        if memory == element:
            return {"products": element if MATRIX[element].part == 1.0 else f"{element} as halves in {ELEMENTS[element].twin.name}"}
        if not target.eight_bit:
            return {"products": f"{element}, as {target.arch} has no 8-bit matrix instructions"}
        if memory not in MATRIX:
            return {"products": f"{element}, as {memory} has infinities and those of {target.arch} have none"}
        return {"products": f"{element}, as q is wider or mods make numbers that 8 bits do not hold"}
    return {}


def _keeps_much(kernel: ir.Operation) -> bool:
    """Whether a lane keeps a factor of weights in f16 and values of its row, which two waves a SIMD leave no registers for."""
    stored = [store.operands[0].type for store in find_all(kernel, "tile.store")]
    half = any(isinstance(ir.RankedTensorType(type_).element_type, ir.F16Type) for type_ in stored)
    return half and "tile.scale_log2" not in kernel.attributes and any(ir.RankedTensorType(type_).rank == 1 for type_ in stored)


def _uneven(kernel: ir.Operation) -> bool:
    """Whether some blocks of rows have more keys than others: the bounds of the loops depend on the block, or blocks are skipped."""
    if any(op.name == "scf.if" for op in walk(kernel)):
        return True
    return any(depends_on_block(value) for loop in find_all(kernel, "scf.for") for value in list(loop.operands)[:2])
