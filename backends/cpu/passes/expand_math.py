"""Expands elementary functions on f32 vectors into polynomials."""

from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import vector_math
from attn_mlir.backends.cpu.target import host
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import walk

_EXPANSIONS = {
    "math.exp": vector_math.exp,
    "math.exp2": vector_math.exp2,
    "math.log": vector_math.log,
    "math.log2": vector_math.log2,
    "math.tanh": vector_math.tanh,
    "math.erf": vector_math.erf,
}


@dataclass(frozen=True)
class ExpandMath(Pass):
    """Replaces exp, exp2, log, log2, tanh and erf of f32 vectors by polynomials with errors below 2 ulp.

    Other functions, types and scalars are left to libm.
    """

    name = "cpu-expand-math"

    def run(self, module: ir.Operation) -> bool:
        scalef = "avx512f" in host().features
        for op in [op for op in walk(module) if op.name in _EXPANSIONS and _is_f32_vector(op)]:
            with op.location, ir.InsertionPoint(op):
                builder = vector_math.Builder(ir.VectorType(op.results[0].type), scalef)
                result = _EXPANSIONS[op.name](builder, op.operands[0])
            op.results[0].replace_all_uses_with(result)
            op.erase()
        return True


def _is_f32_vector(op: ir.Operation) -> bool:
    type_ = op.results[0].type
    return isinstance(type_, ir.VectorType) and isinstance(type_.element_type, ir.F32Type)
