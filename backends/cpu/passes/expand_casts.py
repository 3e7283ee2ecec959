"""Rounds to 16 bits without functions of a compiler's library, which a process need not have."""

from dataclasses import dataclass

from attn_mlir.backends.cpu.target import host
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import walk

_QUIET_NAN = 0x7FC0


@dataclass(frozen=True)
class ExpandCasts(Pass):
    """Rounds f32 to bf16 by integer arithmetic, and f64 to 16 bits by way of f32. Without an instruction LLVM would call a library.

    `bf16` says when the former is done: "always", "never", or "host", where the processor has no AVX512_BF16. Ties go to even, NaN becomes
    the quiet NaN without sign.
    """

    name = "cpu-expand-casts"
    bf16: str = "host"

    def __post_init__(self) -> None:
        if self.bf16 not in ("always", "never", "host"):
            raise ValueError(f"bf16 is always, never or host, got '{self.bf16}'")

    def run(self, module: ir.Operation) -> bool:
        expands = self.bf16 == "always" or (self.bf16 == "host" and "avx512_bf16" not in host().features)
        for op in [op for op in walk(module) if op.name == "arith.truncf" and _element(op.results[0].type).width == 16]:
            value, to = op.operands[0], op.results[0].type
            brain = isinstance(_element(to), ir.BF16Type)
            through = _element(value.type).width == 64
            if not through and not (brain and expands):
                continue
            with op.location, ir.InsertionPoint(op):
                value = arith.truncf(_like(to, ir.F32Type.get()), value) if through else value
                result = _rounded(value, to) if brain and expands else arith.truncf(to, value)
            op.results[0].replace_all_uses_with(result)
            op.erase()
        return True


def _rounded(value: ir.Value, to: ir.Type) -> ir.Value:
    """f32 to bf16: half of the last place is added to the bits, less one where that place is even."""
    word = _like(to, ir.IntegerType.get_signless(32))
    bits = arith.bitcast(word, value)
    upper = _constant(word, 16)
    odd = arith.andi(arith.shrui(bits, upper), _constant(word, 1))
    rounded = arith.shrui(arith.addi(bits, arith.addi(odd, _constant(word, 0x7FFF))), upper)
    unordered = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    chosen = arith.select(unordered, _constant(word, _QUIET_NAN), rounded)
    return arith.bitcast(to, arith.trunci(_like(to, ir.IntegerType.get_signless(16)), chosen))


def _element(type_: ir.Type) -> ir.Type:
    return ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_


def _like(type_: ir.Type, element: ir.Type) -> ir.Type:
    """The type with other elements."""
    return ir.VectorType.get(ir.VectorType(type_).shape, element) if isinstance(type_, ir.VectorType) else element


def _constant(type_: ir.Type, number: int) -> ir.Value:
    if not isinstance(type_, ir.VectorType):
        return arith.constant(type_, number)
    element = ir.IntegerAttr.get(ir.VectorType(type_).element_type, number)
    return arith.constant(type_, ir.DenseElementsAttr.get_splat(type_, element))
