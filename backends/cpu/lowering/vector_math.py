"""Elementary functions on vectors of f32, and exp on those of f64.

exp and log: range reduction by powers of two and minimax polynomials (weighted least squares in float64, errors 2e-9 and
4e-9 relative before rounding; in f64 Taylor's, 4e-18). tanh: a polynomial below 0.625, else through exp. erf: two polynomials in the manner
of N. Juffa's erff. NaN propagates; exp(-inf) = 0, log(0) = -inf, log(x < 0) = NaN.
"""

import math as numbers
from dataclasses import dataclass

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.mlir import arith, ir, math, vector

_EXP2 = (
    1.0,
    0.6931471824645996,
    0.24022646248340607,
    0.05550328642129898,
    0.009618489071726799,
    0.0013399930903688073,
    0.00015345810970757157,
)
_LOG1P = (
    1.0, -0.49999988079071045, 0.33333325386047363, -0.25001585483551025, 0.2000196874141693, -0.16609013080596924,
    0.1418183594942093, -0.1324346363544464, 0.12904655933380127, -0.07621107250452042,
)  # fmt: skip
_TANH = (1.0, -0.3333325982093811, 0.13331127166748047, -0.05372106656432152, 0.02059098705649376, -0.005659988150000572)
_ERF_SMALL = (1.28379166e-1, -3.76125336e-1, 1.12819925e-1, -2.67681349e-2, 4.99119423e-3, -5.96761703e-4)
_LOG2E_HIGH, _LOG2E_LOW = 1.44269502162933349609375, 1.92596299112661746887e-8
_EXP2_F64 = tuple(numbers.log(2.0) ** n / numbers.factorial(n) for n in range(14))
_LOG2E, _LOG2E_REST = 1.4426950408889634, 2.0355273740931033e-17
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6


@dataclass(frozen=True)
class Builder:
    """Vector arithmetic of one type; `scalef`: the target multiplies by powers of two in one instruction (AVX-512)."""

    type: ir.VectorType
    scalef: bool

    @property
    def lanes(self) -> int:
        """Number of elements."""
        return self.type.shape[0]

    @property
    def integers(self) -> ir.VectorType:
        """The vector type of i32 of the same length."""
        return ir.VectorType.get(self.type.shape, ir.IntegerType.get_signless(32))

    def constant(self, value: float) -> ir.Value:
        return emit.number(self.type, value)

    def int_constant(self, value: int) -> ir.Value:
        attribute = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), value)
        return arith.ConstantOp(self.integers, ir.DenseElementsAttr.get_splat(self.integers, attribute)).result

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.MulFOp(a, b).result

    def add(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.AddFOp(a, b).result

    def sub(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.SubFOp(a, b).result

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return vector.FMAOp(a, b, c).result

    def compare(self, predicate: str, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.CmpFOp(getattr(arith.CmpFPredicate, predicate), a, b).result

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        return arith.SelectOp(condition, a, b).result

    def at_least(self, value: ir.Value, low: float) -> ir.Value:
        """max(value, low); NaN stays NaN, in one instruction."""
        bound = self.constant(low)
        return self.select(self.compare("OGT", bound, value), bound, value)

    def at_most(self, value: ir.Value, high: float) -> ir.Value:
        """min(value, high); NaN stays NaN, in one instruction."""
        bound = self.constant(high)
        return self.select(self.compare("OLT", bound, value), bound, value)

    def polynomial(self, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
        """Horner's scheme; coefficients from the constant term up."""
        total = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.constant(coefficient))
        return total

    def bits(self, value: ir.Value) -> ir.Value:
        return arith.BitcastOp(self.integers, value).result

    def from_bits(self, value: ir.Value) -> ir.Value:
        return arith.BitcastOp(self.type, value).result


def exp(b: Builder, x: ir.Value) -> ir.Value:
    """e^x: 2^n 2^f with n + f = x log2(e), f exact to 2^-31."""
    x = b.at_most(b.at_least(x, -104.0), 89.0)
    n = math.RoundEvenOp(b.mul(x, b.constant(_LOG2E_HIGH))).result
    f = b.fma(x, b.constant(_LOG2E_HIGH), arith.NegFOp(n).result)
    f = b.fma(x, b.constant(_LOG2E_LOW), f)
    return _scale(b, b.polynomial(f, _EXP2), n)


def exp_f64(b: Builder, x: ir.Value) -> ir.Value:
    """e^x for x in f64: 2^n 2^f with n + f = x log2(e); 0 below -745."""
    x = b.at_most(b.at_least(x, -746.0), 710.0)
    n = math.RoundEvenOp(b.mul(x, b.constant(_LOG2E))).result
    f = b.fma(x, b.constant(_LOG2E), arith.NegFOp(n).result)
    f = b.fma(x, b.constant(_LOG2E_REST), f)
    half = math.FloorOp(b.mul(n, b.constant(0.5))).result
    return b.mul(b.mul(b.polynomial(f, _EXP2_F64), _power_f64(b, half)), _power_f64(b, b.sub(n, half)))


def _power_f64(b: Builder, n: ir.Value) -> ir.Value:
    """2^n in f64, n whole in [-1022, 1023]; NaN gives something finite."""
    i32, i64 = (ir.VectorType.get(b.type.shape, ir.IntegerType.get_signless(width)) for width in (32, 64))
    bounded = b.select(b.compare("UNO", n, n), b.constant(0.0), n)
    biased = arith.AddIOp(arith.FPToSIOp(i32, bounded).result, b.int_constant(1023)).result
    shift = arith.ConstantOp(i64, ir.DenseElementsAttr.get_splat(i64, ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 52))).result
    return b.from_bits(arith.ShLIOp(arith.ExtUIOp(i64, biased).result, shift).result)


def exp2(b: Builder, x: ir.Value) -> ir.Value:
    """2^x."""
    x = b.at_most(b.at_least(x, -150.0), 129.0)
    n = math.RoundEvenOp(x).result
    return _scale(b, b.polynomial(b.sub(x, n), _EXP2), n)


def _scale(b: Builder, p: ir.Value, n: ir.Value) -> ir.Value:
    """p 2^n for whole n in [-150, 129]."""
    if b.scalef and b.lanes % 16 == 0:
        return _scalef(b, p, n)
    # Two factors, because 2^n alone may be subnormal or overflow.
    half = math.FloorOp(b.mul(n, b.constant(0.5))).result
    return b.mul(b.mul(p, _power(b, half)), _power(b, b.sub(n, half)))


def _power(b: Builder, n: ir.Value) -> ir.Value:
    """2^n as a float, n whole in [-126, 127]; NaN gives something finite."""
    bounded = b.select(b.compare("UNO", n, n), b.constant(0.0), n)
    exponent = arith.AddIOp(arith.FPToSIOp(b.integers, bounded).result, b.int_constant(127)).result
    return b.from_bits(arith.ShLIOp(exponent, b.int_constant(23)).result)


def _scalef(b: Builder, p: ir.Value, n: ir.Value) -> ir.Value:
    """The AVX-512 instruction, on 16 lanes at a time."""
    part = ir.VectorType.get([16], b.type.element_type)
    i16, i32 = ir.IntegerType.get_signless(16), ir.IntegerType.get_signless(32)
    mask = arith.ConstantOp(i16, -1).result
    rounding = arith.ConstantOp(i32, 4).result
    result = p
    for begin in range(0, b.lanes, 16):
        pieces = [_slice(v, begin, part) if b.lanes > 16 else v for v in (p, n)]
        call = ir.Operation.create(
            "llvm.call_intrinsic",
            results=[part],
            operands=[*pieces, pieces[0], mask, rounding],
            attributes={
                "intrin": ir.StringAttr.get("llvm.x86.avx512.mask.scalef.ps.512"),
                "operandSegmentSizes": ir.DenseI32ArrayAttr.get([5, 0]),
                "op_bundle_sizes": ir.DenseI32ArrayAttr.get([]),
            },
        ).result
        if b.lanes == 16:
            return call
        result = _insert(call, result, begin)
    return result


def _slice(value: ir.Value, begin: int, part: ir.VectorType) -> ir.Value:
    return vector.ExtractStridedSliceOp(part, value, [begin], [part.shape[0]], [1]).result


def _insert(part: ir.Value, whole: ir.Value, begin: int) -> ir.Value:
    return vector.InsertStridedSliceOp(part, whole, [begin], [1]).result


def log(b: Builder, x: ir.Value) -> ir.Value:
    """Natural logarithm."""
    exponent, mantissa_log = _log_parts(b, x)
    value = b.fma(exponent, b.constant(_LN2_HIGH), b.fma(exponent, b.constant(_LN2_LOW), mantissa_log))
    return _log_special(b, x, value)


def log2(b: Builder, x: ir.Value) -> ir.Value:
    """Logarithm to base 2."""
    exponent, mantissa_log = _log_parts(b, x)
    scaled = b.fma(mantissa_log, b.constant(_LOG2E_HIGH), b.mul(mantissa_log, b.constant(_LOG2E_LOW)))
    return _log_special(b, x, b.add(exponent, scaled))


def _log_parts(b: Builder, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """(n, log m) with x = 2^n m and m in [sqrt(1/2), sqrt(2))."""
    small = b.compare("OLT", x, b.constant(1.17549435e-38))
    normal = b.select(small, b.mul(x, b.constant(8388608.0)), x)
    bits = b.bits(normal)
    # Subtracting the bits of sqrt(1/2) puts the split between exponents at sqrt(2).
    shifted = arith.SubIOp(bits, b.int_constant(0x3F3504F3)).result
    n = arith.ShRSIOp(shifted, b.int_constant(23)).result
    mantissa = b.from_bits(arith.SubIOp(bits, arith.ShLIOp(n, b.int_constant(23)).result).result)
    exponent = b.sub(arith.SIToFPOp(b.type, n).result, b.select(small, b.constant(23.0), b.constant(0.0)))
    z = b.sub(mantissa, b.constant(1.0))
    return exponent, b.mul(z, b.polynomial(z, _LOG1P))


def _log_special(b: Builder, x: ir.Value, value: ir.Value) -> ir.Value:
    infinity = float("inf")
    value = b.select(b.compare("OEQ", x, b.constant(infinity)), x, value)
    value = b.select(b.compare("OEQ", x, b.constant(0.0)), b.constant(-infinity), value)
    return b.select(b.compare("ULT", x, b.constant(0.0)), b.constant(float("nan")), value)


def tanh(b: Builder, x: ir.Value) -> ir.Value:
    """Hyperbolic tangent."""
    size = math.AbsFOp(x).result
    square = b.mul(x, x)
    small = b.mul(x, b.polynomial(square, _TANH))
    denominator = b.add(exp(b, b.mul(size, b.constant(2.0))), b.constant(1.0))
    large = b.sub(b.constant(1.0), arith.DivFOp(b.constant(2.0), denominator).result)
    return b.select(b.compare("OLT", size, b.constant(0.625)), small, math.CopySignOp(large, x).result)


def erf(b: Builder, x: ir.Value) -> ir.Value:
    """Error function."""
    size, square = math.AbsFOp(x).result, b.mul(x, x)
    small = b.fma(b.polynomial(square, _ERF_SMALL), x, x)
    r = b.fma(b.constant(-1.72853470e-5), size, b.constant(3.83197126e-4))
    u = b.fma(b.constant(-3.88396438e-3), size, b.constant(2.42546219e-2))
    r = b.fma(r, square, u)
    for coefficient in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = b.fma(r, size, b.constant(coefficient))
    r = b.fma(r, size, arith.NegFOp(size).result)
    large = math.CopySignOp(b.sub(b.constant(1.0), exp(b, r)), x).result
    large = b.select(b.compare("OGT", size, b.constant(4.0)), math.CopySignOp(b.constant(1.0), x).result, large)
    return b.select(b.compare("UGT", size, b.constant(0.921875)), large, small)
