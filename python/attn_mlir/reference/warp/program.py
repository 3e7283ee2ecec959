"""Kernels in the `warp` dialect, read once: values are numbers, attributes plain Python."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attn_mlir.dialects.warp.kinds import settled
from attn_mlir.dialects.warp.layouts import fragment
from attn_mlir.dialects.warp.structure import WARPS
from attn_mlir.mlir import ir
from attn_mlir.reference.scalar import SCALARS, round_to

_COMPARE = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _quotient(a: Any, b: Any) -> Any:
    """Rounds towards zero."""
    size = abs(a) // abs(b)
    return size * (1 - 2 * ((a < 0) != (b < 0)))


_INTEGERS: dict[str, Callable[..., Any]] = {
    "arith.addi": operator.add,
    "arith.subi": operator.sub,
    "arith.muli": operator.mul,
    "arith.divsi": _quotient,
    "arith.divui": operator.floordiv,
    "arith.remsi": lambda a, b: a - _quotient(a, b) * b,
    "arith.remui": operator.mod,
    "arith.ceildivsi": lambda a, b: -(-a // b),
    "arith.floordivsi": operator.floordiv,
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.index_cast": lambda a: a,
}
"""Arithmetic on positions, much faster than that of `scalar.SCALARS`: numbers are small and not negative where a sign matters."""
_BITS: dict[str, Callable[..., Any]] = {"arith.andi": operator.and_, "arith.ori": operator.or_, "arith.xori": operator.xor}


_ROUNDED = frozenset(("arith.addf", "arith.subf", "arith.mulf", "arith.divf", "math.fma", "math.exp2", "math.exp"))
"""What rounds its result to float32: a product that a multiply-add takes from must be what the GPU has, or its residual is not seen."""


class Inst:
    """An op. `scalar` computes its result of its operands, None for ops that are no scalar code; `ends`: it ends a block."""

    def __init__(self, op: ir.Operation, numbers: dict[ir.Value, int]) -> None:
        self.name, self.location = op.name, op.location
        self.ends = op.name in ("warp.yield", "scf.yield", "scf.condition")
        self.attributes = {name: plain(op.attributes[name]) for name in op.attributes}
        self.operands, self.results = _numbers(op.operands, numbers), _numbers(op.results, numbers)
        if self.name == "warp.alloc":
            self.attributes["part"] = _part(op)
        self.types = [result.type for result in op.results]
        self.fragments = [fragment(settled(type_)) for type_ in self.types]
        self.sources = [operand.type for operand in op.operands]
        self.source_fragments = [fragment(settled(type_)) for type_ in self.sources]
        self.scalar = _scalar(op)
        self.blocks = [
            (_numbers(block.arguments, numbers), [Inst(view.operation, numbers) for view in block.operations])
            for region in op.regions
            for block in region.blocks
        ]


def _part(alloc: ir.Operation) -> int:
    """The fewest columns of a buffer that a warpgroup, or a warp that transposes, writes or reads alone."""
    found = [alloc.results[0].type.shape[-1]]
    for view in (use.owner.operation for use in alloc.results[0].uses):
        if view.name == "warp.view":
            columns = view.results[0].type.shape[-1]
            turns = any(use.owner.operation.name == "warp.write_transposed" for use in view.results[0].uses)
            found.append(columns // WARPS if turns else columns)
    return min(found)


def plain(attribute: ir.Attribute) -> Any:
    """A number, string, flag or list of these; None for other attributes."""
    match attribute:
        case ir.ArrayAttr():
            return [plain(each) for each in attribute]
        case ir.DenseI64ArrayAttr():
            return list(attribute)
        case ir.IntegerAttr() | ir.FloatAttr() | ir.StringAttr() | ir.BoolAttr():
            return attribute.value
    return None


def _numbers(values: Sequence[ir.Value], numbers: dict[ir.Value, int]) -> list[int]:
    return [numbers.setdefault(value, len(numbers)) for value in values]


def _scalar(op: ir.Operation) -> Callable[..., Any] | None:
    name = op.name
    if not name.startswith(("arith.", "math.")):
        return None
    type_ = op.results[0].type
    if name == "arith.constant":
        value = plain(op.attributes["value"])
        value = float(round_to(np.asarray(value), type_)) if isinstance(value, float) else int(value)
        return lambda: value
    if name in _INTEGERS and str(type_) in ("index", "i32"):
        return _INTEGERS[name]
    if name in _BITS and str(type_) in ("index", "i1"):
        return _BITS[name]
    if name == "arith.cmpi" and str(op.operands[0].type) in ("index", "i32"):
        predicate = plain(op.attributes["predicate"])
        return _COMPARE[predicate if predicate < 6 else predicate - 4]
    if name == "arith.truncf":  # as its residual is seen
        return lambda a: round_to(np.asarray(a), type_)
    rule = SCALARS.get(name)
    if rule is None:
        return None
    if isinstance(type_, ir.F32Type) and name in _ROUNDED:
        return lambda *args: np.asarray(rule(op, *map(np.asarray, args))).astype(np.float32).astype(np.float64)
    return lambda *args: rule(op, *map(np.asarray, args))
