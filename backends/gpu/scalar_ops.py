"""How scalar ops look in CUDA and HIP C++: tables of float functions, comparisons and helper functions."""

import re

from attn_mlir.backends.gpu import dropout, eight_bit
from attn_mlir.dialects.elements import EIGHT_BIT
from attn_mlir.mlir import ir

FLOAT_TYPES = {
    "f16": "__half", "bf16": "__nv_bfloat16", "f32": "float", "f64": "double", **dict.fromkeys(EIGHT_BIT, "unsigned char")
}  # fmt: skip
INTEGER_TYPES = {1: "bool", 8: "signed char", 16: "short", 32: "int", 64: "long long"}

OPERATORS = {"arith.addf": "+", "arith.subf": "-", "arith.mulf": "*", "arith.divf": "/"}
FUNCTIONS = {
    "arith.maxnumf": "fmax", "arith.minnumf": "fmin", "arith.remf": "fmod",
    "math.exp": "exp", "math.exp2": "exp2", "math.expm1": "expm1",
    "math.log": "log", "math.log2": "log2", "math.log10": "log10", "math.log1p": "log1p",
    "math.sqrt": "sqrt", "math.rsqrt": "rsqrt", "math.cbrt": "cbrt", "math.absf": "fabs",
    "math.sinh": "sinh", "math.cosh": "cosh", "math.asin": "asin", "math.acos": "acos", "math.atan": "atan", "math.atan2": "atan2",
    "math.erf": "erf", "math.erfc": "erfc",
    "math.floor": "floor", "math.ceil": "ceil", "math.trunc": "trunc", "math.roundeven": "rint", "math.round": "round",
    "math.copysign": "copysign", "math.fma": "fma",
}  # fmt: skip
"""Functions of the CUDA library; those of f32 end in f. `-use_fast_math` makes exp, exp2, log, log2, log10, sqrt and / approximate."""

HELPED = {"arith.maximumf": "max_nan", "arith.minimumf": "min_nan", "math.tanh": "tanh", "math.sin": "sine", "math.cos": "cosine",
          "math.tan": "tangent", "math.powf": "power"}  # fmt: skip
"""Ops on f32 that call a function of `HELPERS`; on f64, the one of `WIDE`."""
WIDE = {"arith.maximumf": "max_nan_wide", "arith.minimumf": "min_nan_wide", "math.tanh": "tanh", "math.sin": "sin", "math.cos": "cos",
        "math.tan": "tan", "math.powf": "pow"}  # fmt: skip

ORDERED = {1: "==", 2: ">", 3: ">=", 4: "<", 5: "<="}
INVERTED = {9: "<=", 10: "<", 11: ">=", 12: ">"}
"""Unordered comparisons as negated ordered ones."""
SIGNED = ("==", "!=", "<", "<=", ">", ">=")

EXACT = "gpu.exact"
"""Attribute of arithmetic whose result is rounded once: no factor moves through it, no reciprocal takes the place of its division."""

_START = "static __device__ __forceinline__ "
_TANH_P = (0.999999881, 0.129431263, 0.00296989921, 1.16358178e-05)
_TANH_Q = (1.0, 0.462763637, 0.0238924418, 0.000241355971, 2.52626592e-07)


def _horner(coefficients: tuple[float, ...], x: str) -> str:
    text = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        text = f"fmaf({text}, {x}, {coefficient!r}f)"
    return text


_REDUCE = """{start}float reduce_angle(float x) {{  // x - 2 pi round(x / (2 pi))
  const float turns = rintf(x * 0.159154943f);
  return fmaf(turns, 1.74845553e-7f, fmaf(turns, -6.28318548f, x));
}}"""

_EXTREMUM = """{start}float {kind}_nan(float a, float b) {{  // NaN if one of them is
#ifdef __CUDA_ARCH__
  float result;
  asm("{kind}.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a || b != b ? a + b : f{kind}f(a, b);
#endif
}}"""

_POWER = """{start}float power(float x, float y) {{
  const float size = fabsf(x) == 1.0f ? 1.0f : exp2f(y * log2f(fabsf(x)));
  const float half = 0.5f * y;
  const bool whole = truncf(y) == y, odd = whole && truncf(half) != half;  // -0 counts as 0
  const float result = x < 0.0f ? (whole ? (odd ? -size : size) : NAN) : size;
  return y == 0.0f ? 1.0f : result;
}}"""

_DIVISION = """template <typename T> {start}T {name}(T a, T b) {{  // divides by 1 instead of by 0, and wraps
  if (b == 0) return a;
  if (b == -1) return {negative};
  const T q = a / b;
  return {result};
}}"""


_ADDED = """{start}float added_up_to_one(float x, float least) {{  // min(x + least, 1), 0 for NaN: one instruction where there is such
#ifdef __CUDA_ARCH__
  float sum;
  asm("add.sat.ftz.f32 %0, %1, %2;" : "=f"(sum) : "f"(x), "f"(least));
  return sum;
#else
  const float sum = x + least;
  return sum < 1.0f ? sum : sum == sum ? 1.0f : 0.0f;
#endif
}}"""

_RECIPROCAL = """{start}float reciprocal(float x) {{
#ifdef __CUDA_ARCH__
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return 1.0f / x;
#endif
}}"""

_SHARED = """{start}void {name}(float a, float least, const float (&x)[{count}], float (&quotient)[{count}]) {{
  // a / min(x + least, 1), for sums of at least 2^-{power}: one reciprocal. If an x is NaN, so is a quotient.
  const float {clamp};
  {rest}
}}"""

_PRODUCTS = {
    "quotients_2": "const float all = reciprocal(x0 * x1) * a;\n  quotient[0] = all * x1, quotient[1] = all * x0;",
    "quotients_4": """const float a0 = x0 * x1, a1 = x2 * x3, all = reciprocal(a0 * a1) * a;
  const float first = all * a1, second = all * a0;
  quotient[0] = first * x1, quotient[1] = first * x0, quotient[2] = second * x3, quotient[3] = second * x2;""",
    # Products of two, times 2^63, are between 2^-63 and 2^63, and those of four normal numbers.
    "quotients_4_wide": """const float a0 = x0 * x1 * 9.223372e18f, a1 = x2 * x3 * 9.223372e18f;
  const float all = reciprocal(a0 * a1) * (a * 9.223372e18f), first = all * a1, second = all * a0;
  quotient[0] = first * x1, quotient[1] = first * x0, quotient[2] = second * x3, quotient[3] = second * x2;""",
}


def _shared(name: str, count: int, power: int) -> str:
    """Quotients of 2 or 4 elements by one reciprocal."""
    clamp = ", ".join(f"x{number} = added_up_to_one(x[{number}], least)" for number in range(count))
    return _SHARED.format(start=_START, name=name, count=count, power=power, clamp=clamp, rest=_PRODUCTS[name])


_DIVISOR = """struct Divisor {  // floor(x / d) for |x| < 2^26 and every d, 0 counts as 1: a product with 2^(26 + shift) / |d|, rounded up
  unsigned factor, shift;
  int sign;
  __device__ __forceinline__ explicit Divisor(long long d) {
    const unsigned size = (unsigned)max(1ll, min(max(d, -67108864ll), 67108864ll) * (d < 0 ? -1 : 1));  // larger ones give the same
    shift = 32 - __clz((int)(size - 1));
    factor = (unsigned)(((1ull << (26 + shift)) + size - 1) / size);
    sign = d < 0 ? -1 : 0;
  }
  __device__ __forceinline__ int floor(int x) const {
    x = (x ^ sign) - sign;  // x / d = -x / -d
    const int below = x >> 31;  // floor(x) = -1 - floor(-1 - x)
    return (int)(__umulhi((unsigned)(x ^ below) << 6, factor) >> shift) ^ below;
  }
};"""


def _division(name: str, result: str) -> str:
    negative = "(T)(0 - (unsigned long long)a)" if name != "remainder" else "0"
    text = _DIVISION.format(start=_START, name=name, negative=negative, result=result)
    return text.replace("return a;", "return 0;", 1) if name == "remainder" else text


HELPERS: dict[str, str] = {
    "max_nan": _EXTREMUM.format(start=_START, kind="max"),
    "min_nan": _EXTREMUM.format(start=_START, kind="min"),
    "max_nan_wide": f"{_START}double max_nan(double a, double b) {{ return a != a || b != b ? a + b : fmax(a, b); }}",
    "min_nan_wide": f"{_START}double min_nan(double a, double b) {{ return a != a || b != b ? a + b : fmin(a, b); }}",
    "tanh": f"""{_START}float tanh_rational(float x) {{  // relative error below 5e-7
  const float y = max_nan(min_nan(x, 7.8f), -7.8f), u = y * y;
  const float p = {_horner(_TANH_P, "u")};
  const float q = {_horner(_TANH_Q, "u")};
  return y * p / q;
}}""",
    "tanh_fast": f"""{_START}float tanh_fast(float x) {{  // relative error 2^-11 where there is an instruction
#ifdef __CUDA_ARCH__
  float result;
  asm("tanh.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
#else
  return tanh_rational(x);
#endif
}}""",
    "exact_quotient": f"""{_START}float exact_quotient(float a, float b) {{  // rounded once, which `/` may not be
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  const float q = a / b, result = fmaf(fmaf(-q, b, a), 1.0f / b, q);
  return fabsf(result) < INFINITY ? result : q;
#endif
}}""",
    "added_up_to_one": _ADDED.format(start=_START),
    "reciprocal": _RECIPROCAL.format(start=_START),
    "quotients_2": _shared("quotients_2", 2, 63),
    "quotients_4": _shared("quotients_4", 4, 31),
    "quotients_4_wide": _shared("quotients_4_wide", 4, 63),
    "reduce_angle": _REDUCE.format(start=_START),
    "sine": f"{_START}float sine(float x) {{ return sinf(reduce_angle(x)); }}",
    "cosine": f"{_START}float cosine(float x) {{ return cosf(reduce_angle(x)); }}",
    "tangent": f"{_START}float tangent(float x) {{ return sine(x) / cosine(x); }}",
    "power": _POWER.format(start=_START),
    "quotient": _division("quotient", "q"),
    "floor_quotient": _division("floor_quotient", "q - (a % b != 0 && (a < 0) != (b < 0))"),
    "ceil_quotient": _division("ceil_quotient", "q + (a % b != 0 && (a < 0) == (b < 0))"),
    "remainder": _division("remainder", "a - q * b"),
    "divisor": _DIVISOR,
    **eight_bit.HELPERS,
    **dropout.HELPERS,
}
"""Functions that printed code calls, in an order in which each comes after those that it calls."""
NEEDS = {
    "tanh": ("max_nan", "min_nan"),
    "tanh_fast": ("tanh", "max_nan", "min_nan"),
    "sine": ("reduce_angle",),
    "cosine": ("reduce_angle",),
    "tangent": ("reduce_angle", "sine", "cosine"),
    **dict.fromkeys(_PRODUCTS, ("added_up_to_one", "reciprocal")),
    **dropout.NEEDS,
}
CALLED = {"tanh": "tanh_rational", "divisor": "Divisor", "max_nan_wide": "max_nan", "min_nan_wide": "min_nan"}
"""Names of helper functions in C++, where they differ from their keys."""


def helper_source(used: set[str], cuda: bool = True) -> str:
    """The definitions of these helpers and of what they need; without `cuda`, only what is C++ everywhere."""
    wanted = used | {need for name in used for need in NEEDS.get(name, ())}
    text = "".join(f"{text}\n" for name, text in HELPERS.items() if name in wanted)
    return text if cuda else re.sub(r"#ifdef __CUDA_ARCH__\n.*?#else\n(.*?)#endif\n", r"\1", text, flags=re.DOTALL)


def c_type(type_: ir.Type) -> str:
    """How a scalar type is called in C++; `index` is `long long` (values of it that fit are kept in `int`)."""
    if isinstance(type_, ir.IntegerType):
        return INTEGER_TYPES[type_.width]
    return "long long" if isinstance(type_, ir.IndexType) else FLOAT_TYPES[str(type_)]
