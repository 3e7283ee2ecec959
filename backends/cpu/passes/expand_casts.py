"""Numbers of 16 and 8 bits without functions of a compiler's library, which a process need not have."""

from dataclasses import dataclass

import numpy as np

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.eight_bit import expand_eight_bit, like
from attn_mlir.backends.cpu.target import host
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, is_constant, types_in, walk

_QUIET_NAN = 0x7FC0


@dataclass(frozen=True)
class ExpandCasts(Pass):
    """Keeps bf16 as i16 and 8-bit floats as i8, converts between them and f32 by integer arithmetic, and rounds f64 by way of f32.

    Without instructions for bf16 LLVM calls a library, even where such values only pass from one basic block to another. `bf16` says when
    they are expanded: "always", "never", or "host", where the processor has no AVX512_BF16. Ties go to even, NaN becomes the quiet NaN
    without sign. LLVM has no floats of 8 bits, which are always expanded.
    """

    name = "cpu-expand-casts"
    bf16: str = "host"

    def __post_init__(self) -> None:
        if self.bf16 not in ("always", "never", "host"):
            raise ValueError(f"bf16 is always, never or host, got '{self.bf16}'")

    def run(self, module: ir.Operation) -> bool:
        expands = self.bf16 == "always" or (self.bf16 == "host" and not host().executes("avx512_bf16"))
        for op in [op for op in find_all(module, "arith.truncf") if emit.element_of(op.results[0].type).width <= 16]:
            if emit.element_of(op.operands[0].type).width == 64:
                with op.location, ir.InsertionPoint(op):
                    op.operands[0] = arith.truncf(like(op.results[0].type, ir.F32Type.get()), op.operands[0])
        types = types_in(module)
        expand_eight_bit(module, types)
        if expands and any(_is_brain(type_) for type_ in types):
            for op in list(walk(module)):
                with op.location:
                    _expand(op)
        return True


def _expand(op: ir.Operation) -> None:
    """Replaces an op that makes or reads a bf16 number; others move it as an integer."""
    if op.name in ("arith.truncf", "arith.extf", "arith.constant") and _touches(op):
        with ir.InsertionPoint(op):
            if is_constant(op.results[0]):
                made = _constant_of(op)
            else:
                made = (_rounded if op.name == "arith.truncf" else _widened)(op.operands[0], op.results[0].type)
        op.results[0].replace_all_uses_with(made)
        op.erase()
        return
    for value in [*op.results, *(argument for region in op.regions for block in region.blocks for argument in block.arguments)]:
        if _is_brain(value.type):
            value.set_type(like(value.type, ir.IntegerType.get_signless(16)))


def _touches(op: ir.Operation) -> bool:
    """Whether a cast or constant has to do with bf16. Operands that are integers by now come from such values."""
    words = [emit.element_of(value.type) for value in op.operands]
    return _is_brain(op.results[0].type) or any(isinstance(word, (ir.BF16Type, ir.IntegerType)) for word in words)


def _rounded(value: ir.Value, to: ir.Type) -> ir.Value:
    """f32 to bf16: half of the last place is added to the bits, less one where that place is even."""
    word = like(to, ir.IntegerType.get_signless(32))
    bits = arith.bitcast(word, value)
    upper = emit.number(word, 16)
    odd = arith.andi(arith.shrui(bits, upper), emit.number(word, 1))
    rounded = arith.shrui(arith.addi(bits, arith.addi(odd, emit.number(word, 0x7FFF))), upper)
    unordered = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
    chosen = arith.select(unordered, emit.number(word, _QUIET_NAN), rounded)
    return arith.trunci(like(to, ir.IntegerType.get_signless(16)), chosen)


def _widened(value: ir.Value, to: ir.Type) -> ir.Value:
    """bf16 to f32 or f64: the bits are the upper half of those of an f32."""
    word, single = like(to, ir.IntegerType.get_signless(32)), like(to, ir.F32Type.get())
    wide = arith.bitcast(single, arith.shli(arith.extui(word, value), emit.number(word, 16)))
    return wide if emit.element_of(to).width == 32 else arith.extf(to, wide)


def _constant_of(op: ir.Operation) -> ir.Value:
    """The constant's bits."""
    type_, value = op.results[0].type, op.attributes["value"]
    scalar = ir.DenseElementsAttr(value).get_splat_value() if isinstance(type_, ir.VectorType) else value
    bits = int(np.float32(ir.FloatAttr(scalar).value).view(np.uint32)) >> 16
    return emit.number(like(type_, ir.IntegerType.get_signless(16)), bits - (1 << 16 if bits >= 1 << 15 else 0))


def _is_brain(type_: ir.Type) -> bool:
    return isinstance(emit.element_of(type_), ir.BF16Type)
