"""8-bit floats in C++: helper functions that round f32 to bytes and widen these, of what `dialects.elements` says of a type."""

from attn_mlir.dialects.elements import EIGHT_BIT, ELEMENTS, Element
from attn_mlir.float_values import encoded

_START = "static __device__ __forceinline__ "
_ROUND = """{start}unsigned char round_{name}(float x) {{  // to the nearest number, ties to even
  const unsigned bits = (unsigned)__float_as_int(x), size = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  // The sum has the spacing of subnormal numbers, so that the addition rounds to it.
  const unsigned small = (unsigned)__float_as_int(__int_as_float((int)size) + {spaced}) - (unsigned)__float_as_int({spaced});
  const unsigned whole = ((size + (size >> {dropped} & 1u) + {half}u) >> {dropped}) - {offset}u;
  unsigned code = size < {least}u ? small : whole;
  {end}
}}"""
_WIDEN = """{start}float widen_{name}(unsigned char byte) {{
  const unsigned size = byte & 0x7fu;
  const unsigned small = (unsigned)__float_as_int((float)(int)size * {unit}), whole = (size << {dropped}) + {offset}u;
  unsigned bits = size < {least}u ? small : whole;
  {special}
  return __int_as_float((int)(bits | (byte & 0x80u) << 24));
}}"""


def _helpers(element: Element) -> dict[str, str]:
    dropped, subnormal = 23 - element.mantissa, 1 - element.bias - element.mantissa
    infinity = encoded(float("inf"), element)
    end = {
        "ieee": f"if (code > {infinity}u) code = size > 0x7f800000u ? 0x7fu : {infinity}u;\n  return (unsigned char)(code | sign);",
        "nan": "if (code > 0x7fu) code = 0x7fu;\n  return (unsigned char)(code | sign);",
        "nuz": "if (code > 0x7fu) return 0x80;\n  return (unsigned char)(code ? code | sign : 0u);",
    }
    special = {
        "ieee": f"if (size >= {infinity}u) bits |= 0x7f800000u;",
        "nan": "if (size == 0x7fu) bits = 0x7fc00000u;",
        "nuz": "if (byte == 0x80) bits = 0x7fc00000u;",
    }
    rounding = _ROUND.format(
        start=_START, name=element.name, spaced=f"{2.0 ** (subnormal + 23)!r}f", dropped=dropped, half=(1 << (dropped - 1)) - 1,
        offset=(127 - element.bias) << element.mantissa, least=(128 - element.bias) << 23, end=end[element.special],
    )  # fmt: skip
    widening = _WIDEN.format(
        start=_START, name=element.name, unit=f"{2.0**subnormal!r}f", dropped=dropped, offset=(127 - element.bias) << 23,
        least=1 << element.mantissa, special=special[element.special],
    )  # fmt: skip
    return {f"round_{element.name}": rounding, f"widen_{element.name}": widening}


HELPERS = {key: text for name in EIGHT_BIT for key, text in _helpers(ELEMENTS[name]).items()}
"""By their names in C++: `round_` and `widen_` with the name of the type."""
