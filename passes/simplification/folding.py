"""Constant folding of float ops at the precision of their type."""

from collections.abc import Sequence

import numpy as np

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.evaluate import Evaluator, known
from attn_mlir.passes.derivation.expr import BOOL, Graph

# Transcendental functions stay: their value would then depend on this machine's library.
_EXACT = frozenset(
    {f"arith.{n}" for n in ("addf", "subf", "mulf", "divf", "negf", "maximumf", "minimumf", "cmpf", "select", "andi", "ori", "xori")}
    | {f"math.{n}" for n in ("sqrt", "absf", "floor", "ceil", "trunc")}
)
_KNOWN_POINTS = {("math.exp", 0.0): 1.0, ("math.exp2", 0.0): 1.0, ("math.log", 1.0): 0.0, ("math.log2", 1.0): 0.0, ("math.tanh", 0.0): 0.0}


FOLDED = (*sorted(_EXACT), *(name for name, _ in _KNOWN_POINTS))
"""The ops that `folded` knows."""


def number(value: ir.Value) -> float | None:
    """The value of a float constant."""
    attribute = _constant(value)
    return ir.FloatAttr(attribute).value if isinstance(attribute, ir.FloatAttr) else None


def truth(value: ir.Value) -> bool | None:
    """The value of an i1 constant."""
    attribute = _constant(value)
    return bool(ir.IntegerAttr(attribute).value) if str(value.type) == BOOL and attribute is not None else None


def _constant(value: ir.Value) -> ir.Attribute | None:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return None
    return owner.operation.attributes["value"]


def constant(value: float | bool, type_: ir.Type) -> ir.Value:
    """An `arith.constant` at the insertion point."""
    return arith.constant(type_, int(value) if str(type_) == BOOL else float(value))


def folded(op: ir.Operation) -> float | bool | None:
    """The value of `op` when all its operands are constants and the result is exact at its type."""
    operands = list(op.operands)
    if not operands or len(list(op.results)) != 1 or not known(op.name):
        return None
    values: list[float | bool] = []
    for operand in operands:
        value = number(operand) if number(operand) is not None else truth(operand)
        if value is None:
            return None
        values.append(value)
    if op.name not in _EXACT:
        return _KNOWN_POINTS.get((op.name, values[0])) if len(values) == 1 else None
    result = op.results[0].type
    return _evaluated(op, operands, values, result)


def _evaluated(op: ir.Operation, operands: Sequence[ir.Value], values: Sequence[float | bool], result: ir.Type) -> float | bool:
    graph = Graph()
    arguments = [graph.node("const", attr=v, type=BOOL if isinstance(v, bool) else "f") for v in values]
    attr = op.attributes["predicate"].value if op.name == "arith.cmpf" else None
    node = graph.node(op.name, *arguments, attr=attr, type=BOOL if str(result) == BOOL else "f")
    dtype = np.float64 if any(isinstance(o.type, ir.F64Type) for o in operands) else np.float32
    value = Evaluator({}, None, dtype)(node)
    return bool(value) if str(result) == BOOL else float(value)
