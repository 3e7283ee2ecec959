"""Which kernels come from the `warp` dialect where nobody asks for an emitter: those measured to be as fast as the Hopper emitter's."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import CHOICES, Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming.facts import FIELDS
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.warp.emitter import print_ahead
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_OPS = frozenset({
    "arith.constant", "arith.mulf", "arith.addf", "arith.subf", "arith.divf", "arith.maximumf", "arith.minimumf", "arith.select",
    "arith.cmpf", "arith.cmpi", "arith.addi", "arith.subi", "arith.muli", "arith.divsi", "arith.minsi", "arith.maxsi", "arith.truncf",
    "math.exp2", "math.exp", "math.fma", "math.log", "math.log2", "tensor.extract", "memref.dim", "scf.for", "scf.yield", "func.return",
    "tile.program_id", "tile.load", "tile.store", "tile.fill", "tile.dot", "tile.dot_add", "tile.dot_rescale", "tile.map", "tile.yield",
})  # fmt: skip
"""Ops of such kernels: none reads a captured tensor, or computes with positions but to compare them."""
_LOOPS = 3
"""Over queries of such a pass, at most: those that a causal mask cuts, whole blocks, and the last one."""
_EXPONENTIALS = ("math.exp", "math.exp2")
_PAIRS = _OPS | {"tile.accumulate", "memref.load", "arith.negf"}
"""The same of backward passes, which read numbers of queries."""
_READ = frozenset({*FIELDS, "arch", "length", "longer", "block_q", "block_kv", "deterministic", "tilelang"})
"""Names of choices and of fields of a schedule that say something of such a kernel, or nothing of any kernel of rows and pairs."""


def preferred(kernel: ir.Operation, fields: Fields) -> Fields:
    """A schedule of the Hopper emitter, with "warp" as its emitter where passes form a kernel that was measured to be no slower.

    Where somebody chose something that passes do not read, or an emitter, it stays as it is.
    """
    asked = {name for name in attributes.read(kernel, CHOICES) if not name.startswith(attributes.LAUNCH)}
    if fields.get("emitter") != "hopper" or asked - _READ or not (_is_measured(kernel, fields) or _are_pairs_measured(kernel, fields)):
        return fields
    kept = {name: value for name, value in fields.items() if name in _READ or name.startswith(attributes.LAUNCH)}
    if "longer" in kept and not _is_masked(kernel):
        kept["longer"] = max(int(kept["longer"]), thresholds.WARP_LONGER)
    made: Fields = {**kept, "emitter": "warp"}
    try:
        print_ahead(kernel, made)
    except (Refused, UnsupportedError):
        return fields
    return made


def _is_measured(kernel: ir.Operation, fields: Fields) -> bool:
    """Whether it is a forward pass of softmax over all keys or under a causal mask, or of a sigmoid under one, but for a few ops more."""
    if attributes.grid_kind(kernel) != "rows":
        return False
    facts = {item.name: item.attr for item in ir.DictAttr(kernel.attributes["tile.kernel"])}
    if set(facts) - {"block_q", "block_kv", "grid"} or any(
        ir.IntegerAttr(facts[name]).value != thresholds.WARP_COLUMNS for name in ("block_q", "block_kv")
    ):
        return False
    arguments = list(kernel.regions[0].blocks[0].arguments)
    loads, loops = find_all(kernel, "tile.load"), find_all(kernel, "scf.for")
    shapes = [ir.MemRefType(op.operands[0].type) for op in loads]
    return (
        all(op == kernel or op.name in _OPS for op in walk(kernel))
        and all(isinstance(argument.type, ir.MemRefType) for argument in arguments)
        and all(shape.shape[-1] == thresholds.WARP_COLUMNS and str(shape.element_type) in ("f16", "bf16") for shape in shapes)
        and len({op.operands[0] for op in loads}) == 3
        and 1 <= len(loops) <= 2
        and len(find_all(kernel, "tile.dot")) == len(loops)
        and all(_is_one_exponential(loop, bool(fields.get("lazy_rescale")), _is_masked(kernel)) for loop in loops)
    )


def _are_pairs_measured(kernel: ir.Operation, fields: Fields) -> bool:
    """Whether it is a backward pass that was measured: by its columns, its mask, and whether it reads numbers of queries, as softmax does.

    Additions in a fixed order were slower, and so are other ops of pairs, which spill.
    """
    if attributes.grid_kind(kernel) != "pairs" or fields.get("deterministic"):
        return False
    facts = {item.name: item.attr for item in ir.DictAttr(kernel.attributes["tile.kernel"])}
    arguments = list(kernel.regions[0].blocks[0].arguments)
    loads, maps = find_all(kernel, "tile.load"), [map_ for map_ in find_all(kernel, "tile.map") if _is_of_pairs(map_)]
    shapes = {str(ir.MemRefType(op.operands[0].type).element_type): ir.MemRefType(op.operands[0].type).shape[-1] for op in loads}
    columns = {ir.MemRefType(op.operands[0].type).shape[-1] for op in loads}
    numbers = {read.operands[0] for map_ in maps for read in find_all(map_, "memref.load")}
    sums = ir.ArrayAttr(facts["outputs"]) if "outputs" in facts else []
    if (
        set(facts) - {"block_q", "block_kv", "grid", "disjoint", "outputs", "over", "score"}
        or sorted(ir.StringAttr(kind).value for kind in sums) != ["accumulate", "store", "store"]
        or not all(op == kernel or op.name in _PAIRS for op in walk(kernel))
        or not all(isinstance(argument.type, ir.MemRefType) for argument in arguments[:-1])
        or not shapes.keys() <= {"f16", "bf16"}
        or len(columns) != 1
        or len({op.operands[0] for op in loads}) != 4
        or any(sum(op.name in _EXPONENTIALS for op in walk(map_)) != 1 for map_ in maps)
        or len(maps) > _LOOPS
    ):
        return False
    words = ("softmax" if len(numbers) == 2 else "" if numbers else "sigmoid", *(("masked",) if _is_masked(kernel) else ()))
    blocks = tuple(ir.IntegerAttr(facts[name]).value for name in ("block_q", "block_kv"))
    return (" ".join(words), *columns, *blocks) in thresholds.WARP_PAIRS


def _is_one_exponential(loop: ir.Operation, keeps: bool, masked: bool) -> bool:
    """Whether each pair of a loop needs one exponential, below a maximum that is kept (`keeps`) or, in a `masked` kernel, below none."""
    maps = find_all(loop, "tile.map")
    count = sum(op.name in _EXPONENTIALS for map_ in maps if _is_of_pairs(map_) for op in walk(map_))
    has_maximum = any(kind == "max" for map_ in maps for kind in map_.opview.kinds())
    return count == 1 and (keeps if has_maximum else masked)


def _is_masked(kernel: ir.Operation) -> bool:
    """Whether positions are compared."""
    return any(_is_of_pairs(map_) and find_all(map_, "arith.cmpi") for map_ in find_all(kernel, "tile.map"))


def _is_of_pairs(map_: ir.Operation) -> bool:
    return len(list(map_.operands)) == 2
