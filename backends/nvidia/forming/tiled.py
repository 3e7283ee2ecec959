"""Questions about tiled functions: what their programs are, which loads read the same, whether a count is the rest of a block."""

from collections.abc import Callable, Iterable, Sequence

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.regions import around
from attn_mlir.dialects.warp.copies import TURNED
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker, walk


def grid_of(function: ir.Operation) -> str:
    """What the programs of a tiled function are."""
    facts = ir.DictAttr(function.attributes["tile.kernel"])
    return ir.StringAttr(facts["grid"]).value if "grid" in facts else "rows"


def equal_loads(function: ir.Operation) -> dict[ir.Value, ir.Value]:
    """Of loads of what an earlier one of their block has read, that one's tile."""
    first: dict[tuple[ir.Value, ...], ir.Operation] = {}
    found: dict[ir.Value, ir.Value] = {}
    for load in find_all(function, "tile.load"):
        kept = first.setdefault(tuple(load.operands), load)
        if kept != load and kept.block == load.block:
            found[load.results[0]] = kept.results[0]
    return found


def used_in(op: ir.Operation) -> set[ir.Value]:
    """The values that an op and its regions use."""
    return {v for inner in (op, *walk(op)) for v in inner.operands}


def is_rest(row: ir.Value, count: ir.Value, block: int, exists: Callable[[ir.Value], bool]) -> bool:
    """Whether `count` rows from `row` on are all that exist of a block: min(row + block, rows) - row, or min(rows - row, block).

    `exists` tells whether a value is the number of rows.
    """
    least, left = maker(count, "arith.minsi"), maker(count, "arith.subi")
    if least is not None:
        rest = [op for op in (maker(v, "arith.subi") for v in least.operands) if op is not None and op.operands[1] == row]
        return has_constant(least.operands, block) and any(exists(op.operands[0]) for op in rest)
    end = maker(left.operands[0], "arith.minsi") if left is not None and left.operands[1] == row else None
    sums = [maker(v, "arith.addi") for v in end.operands] if end is not None else []
    steps = [v for op in sums if op is not None and row in list(op.operands) for v in op.operands if v != row]
    return end is not None and has_constant(steps, block) and any(map(exists, end.operands))


def has_constant(values: Sequence[ir.Value], number: int) -> bool:
    """Whether a constant of that number is among the values."""
    found = [maker(value, "arith.constant") for value in values]
    return any(op is not None and ir.IntegerAttr(op.attributes["value"]).value == number for op in found)


_ATOM = 32
"""Keys of a swizzle atom of transposed values, at least."""


def where_turned(load: ir.Operation, tiles: Iterable[ir.Value], rows: int) -> str:
    """Where tiles are transposed: nowhere (empty), "here", or "ahead" of the kernel, where the schedule says so (`copies.TURNED`).

    They are where products sum over the rows of what a load makes, `tiles`, and its elements have 8 bits: then they take its transpose.

    Raises Refused where something else needs the tile as it is, or its rows are no whole swizzle atoms of the transpose.
    """
    if not is_eight_bit(ir.RankedTensorType(load.results[0].type).element_type):
        return ""
    uses = [use for tile in tiles for use in tile.uses]
    last = [use.operand_number == len(list(use.owner.operation.operands)) - 1 for use in uses]
    over_rows = [
        is_last and "transpose_b" in use.owner.operation.attributes and not ir.BoolAttr(use.owner.operation.attributes["transpose_b"]).value
        for use, is_last in zip(uses, last, strict=True)
    ]
    if any(over_rows) and not all(over_rows):
        raise Refused("a tile of 8-bit elements is used as it is and transposed: keys and values must be two tensors")
    if any(over_rows) and rows % _ATOM:
        raise Refused(f"values of 8 bits are transposed in blocks of a multiple of {_ATOM} keys, not {rows}")
    if not any(over_rows):
        return ""
    function = next(op for op in around(load) if op.name == "func.func")
    return "ahead" if SCHEDULE in function.attributes and attributes.read(function, SCHEDULE).get(TURNED) else "here"


def stored_element(tile: ir.Type, memory: ir.MemRefType, columns_for: Callable[[int], int]) -> ir.Type:
    """What elements are stored as. Raises Refused where more columns are stored than exist, but of 16 bits: copies leave them out."""
    columns = ir.RankedTensorType(tile).shape[1:]
    if any(n > 0 and n != columns_for(n) for n in columns) and memory.element_type.width != 16:
        raise Refused(f"rows of {columns[0]} elements of {memory.element_type} are stored in tiles of {columns_for(columns[0])} columns")
    return memory.element_type
