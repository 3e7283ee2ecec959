"""Questions about types of the `warp` dialect, and values of several types in one op."""

import math
from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.elements import ELEMENTS
from attn_mlir.dialects.regions import around
from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import BarrierType, PendingType
from attn_mlir.dialects.warp.layouts import Fragment, fragment
from attn_mlir.mlir import ir

STEP = 16
"""Columns of 16-bit elements that a product takes at a time."""
RUNS = 3
"""How many runs of values of one type an op with values of several types has."""
_BYTES = {name: element.bits // 8 for name, element in ELEMENTS.items()} | {"i32": 4}


def is_shared(type_: ir.Type, *ranks: int) -> bool:
    """Whether it is a static memref in shared memory, of one of these ranks, whose elements have whole bytes."""
    fits = isinstance(type_, ir.MemRefType) and type_.rank in ranks and str(type_.memory_space).startswith("#warp.shared<")
    return fits and type_.has_static_shape and str(type_.element_type) in _BYTES


def is_global(type_: ir.Type, *ranks: int) -> bool:
    """Whether it is a memref in global memory, of one of these ranks."""
    return isinstance(type_, ir.MemRefType) and type_.rank in ranks and type_.memory_space is None


def swizzle_of(type_: ir.MemRefType) -> int:
    """Bytes over which chunks of shared memory are swizzled."""
    return ir.IntegerAttr(ir.DynamicAttr(type_.memory_space).params[0]).value


def is_tile(type_: ir.Type) -> bool:
    """Whether it is a tile in a stage of a swizzled buffer in shared memory."""
    return is_shared(type_, 2) and swizzle_of(type_) > 0


def bytes_of(type_: ir.Type) -> int:
    """Bytes of a static memref or tensor; a swizzled row takes whole swizzle atoms."""
    row, swizzle = row_bytes(type_), swizzle_of(type_) if is_shared(type_, 2, 3) else 0
    return math.prod(type_.shape[:-1]) * (-(-row // swizzle) * swizzle if swizzle else row)


def row_bytes(type_: ir.Type) -> int:
    """Bytes of the elements of a row."""
    return _BYTES[str(type_.element_type)] * type_.shape[-1]


def padded(columns: int) -> int:
    """Columns of a tile in shared memory, or of its fragment, that holds rows of so many elements: as many as products take at a time."""
    return -(-columns // STEP) * STEP


def stages_and_arrivals(type_: BarrierType) -> tuple[int, int]:
    """Of the type of barriers."""
    return ir.IntegerAttr(type_.stages).value, ir.IntegerAttr(type_.arrivals).value


def settled(type_: ir.Type) -> ir.Type:
    """The type of a fragment, be it in flight or not."""
    return ir.TypeAttr(type_.fragment).value if isinstance(type_, PendingType) else type_


def in_form(type_: ir.Type, *forms: str) -> Fragment | None:
    """The fragment that a type is, if it has one of these forms and fits its layout."""
    found = fragment(type_)
    return found if found is not None and found.form in forms and not found.misfit() else None


def runs(types: Sequence[ir.Type]) -> list[int]:
    """The segment sizes of values of these types: IRDL gives all values of a field one type, so there are fields for runs of equal ones."""
    lengths: list[int] = []
    for before, type_ in zip([None, *types], types, strict=False):
        lengths = [*lengths[:-1], lengths[-1] + 1] if type_ == before else [*lengths, 1]
    return lengths + [0] * (RUNS - len(lengths))


def inside(op: ir.OpView, name: str) -> bool:
    """Whether an op stands in an op of that name, directly or not."""
    return any(above.name == name for above in around(op.operation))


def comes_later(op: ir.OpView, name: str) -> bool:
    """Whether an op of that name stands before it in its block."""
    for view in op.operation.block.operations:
        if view.operation == op.operation:
            return False
        if view.operation.name == name:
            return True
    return False


def checks_ordered(op: Any) -> bool:
    """Whether an addition says whether it has a place in an order."""
    return check(op, isinstance(op.ordered, ir.BoolAttr), f"takes `ordered` as true or false, got {op.ordered}")
