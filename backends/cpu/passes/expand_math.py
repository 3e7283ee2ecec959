"""Expands elementary functions on vectors into polynomials."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import vector_math
from attn_mlir.backends.cpu.target import host
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import walk

Expansion = Callable[[vector_math.Builder, ir.Value], ir.Value]

_EXPANSIONS: dict[str, Expansion] = {
    "math.exp": vector_math.exp,
    "math.exp2": vector_math.exp2,
    "math.log": vector_math.log,
    "math.log2": vector_math.log2,
    "math.tanh": vector_math.tanh,
    "math.erf": vector_math.erf,
}
_WIDE: dict[str, Expansion] = {"math.exp": vector_math.exp_f64}


@dataclass(frozen=True)
class ExpandMath(Pass):
    """Replaces exp, exp2, log, log2, tanh and erf of f32 vectors, and exp of f64 vectors, by polynomials with errors below 2 ulp.

    Other functions, types and scalars are left to libm.
    """

    name = "cpu-expand-math"

    def run(self, module: ir.Operation) -> bool:
        scalef = "avx512f" in host().features
        for op in list(walk(module)):
            expand = _expansion(op)
            if expand is None:
                continue
            with op.location, ir.InsertionPoint(op):
                builder = vector_math.Builder(ir.VectorType(op.results[0].type), scalef)
                result = expand(builder, op.operands[0])
            op.results[0].replace_all_uses_with(result)
            op.erase()
        return True


def _expansion(op: ir.Operation) -> Expansion | None:
    """How an op is expanded; None for one that stays."""
    if op.name not in _EXPANSIONS or not isinstance(op.results[0].type, ir.VectorType):
        return None
    wide = isinstance(ir.VectorType(op.results[0].type).element_type, ir.F64Type)
    return (_WIDE if wide else _EXPANSIONS).get(op.name)
