"""Expands elementary functions on vectors into polynomials."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import vector_math
from attn_mlir.backends.cpu.target import host
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.patterns import apply_rules

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

        def expanded(op: ir.Operation) -> ir.Value | None:
            expand = _expansion(op)
            return None if expand is None else expand(vector_math.Builder(ir.VectorType(op.results[0].type), scalef), op.operands[0])

        apply_rules(module, dict.fromkeys(_EXPANSIONS, expanded))
        return True


def _expansion(op: ir.Operation) -> Expansion | None:
    """How an op is expanded; None for one that stays."""
    if not isinstance(op.results[0].type, ir.VectorType):
        return None
    wide = isinstance(ir.VectorType(op.results[0].type).element_type, ir.F64Type)
    return (_WIDE if wide else _EXPANSIONS).get(op.name)
