"""Floats of 8 bits as bytes: what `dialects.elements` says of a type is all that its conversions need."""

from collections.abc import Iterable

import numpy as np

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.dialects.elements import Element, element_of, is_eight_bit
from attn_mlir.float_values import encoded
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import find_all, is_constant, walk

_SIGN, _MAGNITUDE, _QUIET_NAN, _INFINITY = 0x80, 0x7F, 0x7FC00000, 0x7F800000
_OF_SINGLE = 23
"""Bits of f32's mantissa."""


def like(type_: ir.Type, element: ir.Type) -> ir.Type:
    """The type with other elements."""
    return ir.VectorType.get(ir.VectorType(type_).shape, element) if isinstance(type_, ir.VectorType) else element


def expand_eight_bit(module: ir.Operation, types: Iterable[ir.Type]) -> None:
    """Makes bytes of all 8-bit floats, if any are among the module's types, and integer arithmetic of the ops that convert them."""
    if not any(is_eight_bit(emit.element_of(type_)) for type_ in types):
        return
    for op in find_all(module, "arith.truncf", "arith.extf", "arith.constant"):
        to, of = op.results[0].type, op.operands[0].type if len(op.operands) else None
        with op.location, ir.InsertionPoint(op):
            if (element := _eight_bit(to)) is not None:
                byte = _constant(op, element) if is_constant(op.results[0]) else rounded(op.operands[0], element)
                made = emit.made("arith.bitcast", to, byte)
            elif of is not None and (element := _eight_bit(of)) is not None:
                made = widened(emit.made("arith.bitcast", like(of, _integer(8)), op.operands[0]), element, to)
            else:
                continue
        op.results[0].replace_all_uses_with(made)
        op.erase()
    for op in list(walk(module)):
        if op.name == "arith.bitcast" and emit.element_of(op.results[0].type).width == 8:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
            continue
        for value in [*op.results, *(argument for region in op.regions for block in region.blocks for argument in block.arguments)]:
            if _eight_bit(value.type):
                value.set_type(like(value.type, _integer(8)))


def rounded(value: ir.Value, element: Element) -> ir.Value:
    """f32 to bytes: to the nearest number, ties to even; what is beyond the range becomes infinite, or NaN where there is no infinity."""
    word, dropped = like(value.type, _integer(32)), _OF_SINGLE - element.mantissa
    bits = arith.bitcast(word, value)
    magnitude = arith.andi(bits, emit.number(word, 0x7FFFFFFF))
    odd = arith.andi(arith.shrui(magnitude, emit.number(word, dropped)), emit.number(word, 1))
    up = arith.addi(magnitude, arith.addi(odd, emit.number(word, (1 << (dropped - 1)) - 1)))
    normal = arith.subi(arith.shrui(up, emit.number(word, dropped)), emit.number(word, (127 - element.bias) << element.mantissa))
    # The sum has the spacing of subnormal numbers, so that the addition rounds to it.
    spaced = emit.number(value.type, 2.0 ** (1 - element.bias - element.mantissa + _OF_SINGLE))
    shifted = arith.bitcast(word, arith.addf(arith.bitcast(value.type, magnitude), spaced))
    subnormal = arith.subi(shifted, arith.bitcast(word, spaced))
    is_small = arith.cmpi(arith.CmpIPredicate.ult, magnitude, emit.number(word, (128 - element.bias) << _OF_SINGLE))
    code = arith.select(is_small, subnormal, normal)
    sign = arith.andi(arith.shrui(bits, emit.number(word, 24)), emit.number(word, _SIGN))
    if element.special == "nuz":
        beyond = arith.cmpi(arith.CmpIPredicate.ugt, code, emit.number(word, _MAGNITUDE))
        zero = arith.cmpi(arith.CmpIPredicate.eq, code, emit.number(word, 0))
        signed = arith.select(zero, code, arith.ori(code, sign))
        return arith.trunci(like(value.type, _integer(8)), arith.select(beyond, emit.number(word, _SIGN), signed))
    top = encoded(np.inf, element)
    code = arith.minui(code, emit.number(word, top))
    if element.special == "ieee":
        unordered = arith.cmpf(arith.CmpFPredicate.UNO, value, value)
        code = arith.select(unordered, emit.number(word, _MAGNITUDE), code)
    return arith.trunci(like(value.type, _integer(8)), arith.ori(code, sign))


def widened(byte: ir.Value, element: Element, to: ir.Type) -> ir.Value:
    """Bytes to f32 or a wider type."""
    word, single = like(to, _integer(32)), like(to, ir.F32Type.get())
    whole = arith.extui(word, byte)
    magnitude = arith.andi(whole, emit.number(word, _MAGNITUDE))
    sign = arith.shli(arith.andi(whole, emit.number(word, _SIGN)), emit.number(word, 24))
    shifted = arith.shli(magnitude, emit.number(word, _OF_SINGLE - element.mantissa))
    bits = arith.addi(shifted, emit.number(word, (127 - element.bias) << _OF_SINGLE))
    of_subnormal = emit.number(single, 2.0 ** (1 - element.bias - element.mantissa))
    subnormal = arith.bitcast(word, arith.mulf(arith.sitofp(single, magnitude), of_subnormal))
    is_small = arith.cmpi(arith.CmpIPredicate.ult, magnitude, emit.number(word, 1 << element.mantissa))
    bits = arith.select(is_small, subnormal, bits)
    if element.special == "ieee":
        special = arith.cmpi(arith.CmpIPredicate.uge, magnitude, emit.number(word, encoded(np.inf, element)))
        bits = arith.select(special, arith.ori(bits, emit.number(word, _INFINITY)), bits)
    else:
        of_nan = (whole, _SIGN) if element.special == "nuz" else (magnitude, _MAGNITUDE)
        is_nan = arith.cmpi(arith.CmpIPredicate.eq, of_nan[0], emit.number(word, of_nan[1]))
        bits = arith.select(is_nan, emit.number(word, _QUIET_NAN), bits)
    wide = arith.bitcast(single, arith.ori(bits, sign))
    return wide if emit.element_of(to).width == 32 else arith.extf(to, wide)


def _constant(op: ir.Operation, element: Element) -> ir.Value:
    """The bytes of a constant."""
    type_, value = op.results[0].type, op.attributes["value"]
    scalar = ir.DenseElementsAttr(value).get_splat_value() if isinstance(type_, ir.VectorType) else value
    byte = encoded(ir.FloatAttr(scalar).value, element)
    return emit.number(like(type_, _integer(8)), byte - 256 if byte > _MAGNITUDE else byte)


def _eight_bit(type_: ir.Type) -> Element | None:
    """The element of a type of 8-bit floats, None for other types."""
    of = emit.element_of(type_)
    return element_of(of) if is_eight_bit(of) else None


def _integer(bits: int) -> ir.Type:
    return ir.IntegerType.get_signless(bits)
