"""Which kernels come from the `warp` dialect where nobody asks for an emitter: those measured to be as fast as the Hopper emitter's."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE, Fields
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.warp.emitter import formed
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_COLUMNS = 128
"""Columns of q, k and v, and rows of q and keys of a block: forward passes of softmax are 1.00 to 1.05 times as fast, causal sigmoids
1.02 to 1.10 (one H200, 2026-11-26, lengths of 1024 to 16384: docs/notes/warp-h100.md). Of 64 columns they are at 0.97 to 1.01, with terms
of positions at 0.89 to 1.26: those stay with the Hopper emitter."""
_OPS = frozenset({
    "arith.constant", "arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.maximumf", "arith.minimumf", "arith.select",
    "arith.cmpf", "arith.cmpi", "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.minsi", "arith.maxsi", "arith.truncf",
    "math.exp2", "math.exp", "math.fma", "math.log", "math.log2", "tensor.extract", "memref.dim", "scf.for", "scf.yield", "func.return",
    "tile.program_id", "tile.load", "tile.store", "tile.fill", "tile.dot", "tile.dot_add", "tile.dot_rescale", "tile.map", "tile.yield",
})  # fmt: skip
"""Ops of such kernels: none reads a captured tensor, or computes with positions but to compare them."""


def preferred(kernel: ir.Operation, fields: Fields) -> Fields:
    """A schedule of the Hopper emitter, with "warp" as its emitter where passes form a kernel that was measured to be no slower."""
    if fields.get("emitter") != "hopper" or not _is_measured(kernel):
        return fields
    made: Fields = {**fields, "emitter": "warp"}
    before = SCHEDULE in kernel.attributes
    kernel.attributes[SCHEDULE] = attributes.write(made)
    try:
        formed(kernel)
    except Refused:
        return fields
    finally:
        if not before:
            del kernel.attributes[SCHEDULE]
    return made


def _is_measured(kernel: ir.Operation) -> bool:
    """Whether it is a forward pass over all keys that depends on scores alone, or on these and a causal mask."""
    if attributes.grid_kind(kernel) != "rows":
        return False
    facts = {item.name: item.attr for item in ir.DictAttr(kernel.attributes["tile.kernel"])}
    if set(facts) - {"block_q", "block_kv", "grid"} or any(
        ir.IntegerAttr(facts[name]).value != _COLUMNS for name in ("block_q", "block_kv")
    ):
        return False
    operations = list(walk(kernel))
    loads, loops = find_all(kernel, "tile.load"), find_all(kernel, "scf.for")
    shapes = [ir.MemRefType(op.operands[0].type) for op in loads]
    return (
        all(op == kernel or op.name in _OPS for op in operations)
        and all(shape.shape[-1] == _COLUMNS and str(shape.element_type) in ("f16", "bf16") for shape in shapes)
        and any(op.name in ("math.exp", "math.exp2") for op in operations)
        and len({op.operands[0] for op in loads}) == 3
        and len(loops) <= 2
        and len(find_all(kernel, "tile.dot")) == len(loops)
    )
