"""Accessors for ops with one variadic field, which then need no segment sizes in their IR.

The bindings record `operandSegmentSizes` on every op that has a variadic operand, although with a single variadic
field the sizes follow from the number of operands; MLIR accepts such ops without the attribute. The decorator here
replaces the generated accessors by ones that count, so that the printed IR stays free of the attribute.
"""

from collections.abc import Sequence
from typing import Any

from attn_mlir.mlir import ext, ir


def single_variadic(cls: type) -> type:
    """Class decorator: positional accessors for the operands and results of an `ext` operation."""
    for definition, values in ((ext.OperandDef, "operands"), (ext.ResultDef, "results")):
        fields = [f for f in cls._fields if isinstance(f, definition)]  # type: ignore[attr-defined]
        variadic = [i for i, f in enumerate(fields) if f.variadicity != ext.Variadicity.single]
        if len(variadic) == 1:
            for i, field in enumerate(fields):
                setattr(cls, field.name, property(_accessor(values, i, variadic[0], len(fields))))
    return cls


def _accessor(values: str, index: int, variadic: int, count: int) -> Any:
    def get(op: ir.OpView) -> ir.Value | Sequence[ir.Value]:
        everything = list(getattr(op.operation, values))
        if index < variadic:
            return everything[index]
        if index == variadic:
            return everything[variadic : len(everything) - (count - 1 - variadic)]
        return everything[index - count]

    return get
