"""Element types of floating-point numbers: bits, range, torch's dtype. What tells one type from another is looked up here."""

from dataclasses import dataclass
from typing import Literal

from attn_mlir.mlir import ir


@dataclass(frozen=True)
class Element:
    """A type of floating-point numbers with a sign, `exponent` and `mantissa` bits.

    `special`: "ieee" has infinities and NaN above the finite numbers; "nan" has one NaN there, whose bits are all ones; "nuz" has
    one NaN in the place of -0.
    """

    name: str
    """As MLIR prints it."""
    torch: str
    exponent: int
    mantissa: int
    bias: int
    largest: float
    """The largest finite number."""
    special: Literal["ieee", "nan", "nuz"] = "ieee"

    @property
    def bits(self) -> int:
        """Its size."""
        return 1 + self.exponent + self.mantissa

    @property
    def is_eight_bit(self) -> bool:
        """Whether it is one of the types called fp8."""
        return self.bits == 8

    @property
    def twin(self) -> "Element":
        """The "nuz" type of as many exponent and mantissa bits: the same bits are there half of each number that both have."""
        sizes = (self.exponent, self.mantissa, "nuz")
        return next(other for other in ELEMENTS.values() if (other.exponent, other.mantissa, other.special) == sizes)

    def taken_by(self, family: str) -> bool:
        """Whether 8-bit matrix instructions of a family have all its values: "nuz" those without -0 and infinities, "ocp" the others.

        Those of "nuz" take halves of numbers of a type with one NaN, which its twin all has; of a type with infinities it has none.
        """
        return self.is_eight_bit and self.special in (("nuz", "nan") if family == "nuz" else ("ieee", "nan"))

    @property
    def digits(self) -> int:
        """Significant binary digits."""
        return 1 + self.mantissa


ELEMENTS = {
    element.name: element
    for element in (
        Element("f8E4M3FN", "float8_e4m3fn", 4, 3, 7, 448.0, "nan"),
        Element("f8E5M2", "float8_e5m2", 5, 2, 15, 57344.0),
        Element("f8E4M3FNUZ", "float8_e4m3fnuz", 4, 3, 8, 240.0, "nuz"),
        Element("f8E5M2FNUZ", "float8_e5m2fnuz", 5, 2, 16, 57344.0, "nuz"),
        Element("f16", "float16", 5, 10, 15, 65504.0),
        Element("bf16", "bfloat16", 8, 7, 127, 3.3895313892515355e38),
        Element("f32", "float32", 8, 23, 127, 3.4028234663852886e38),
        Element("f64", "float64", 11, 52, 1023, 1.7976931348623157e308),
    )
}
"""By name."""
EIGHT_BIT = tuple(name for name, element in ELEMENTS.items() if element.is_eight_bit)
"""The names of those of 8 bits."""


def element_of(type_: ir.Type) -> Element | None:
    """The element of a scalar type; None for other types than those of the table."""
    return ELEMENTS.get(str(type_))


def is_eight_bit(type_: ir.Type) -> bool:
    """Whether a type is one of those called fp8."""
    return isinstance(type_, ir.FloatType) and type_.width == 8 and str(type_) in EIGHT_BIT


def bits_of(type_: ir.Type) -> int:
    """The size of a float type, 0 for other types."""
    element = element_of(type_)
    return 0 if element is None else element.bits
