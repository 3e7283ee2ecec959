"""The symbols with which the AttentionEngine API declares row states and initial values."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from attn_mlir.errors import ArgumentError
from attn_mlir.frontend import ops
from attn_mlir.frontend.named_tensors import SymbolicTensor
from attn_mlir.frontend.values import Value

__all__ = ["SymbolScalar", "SymbolicArray", "SymbolicTensor", "Var"]

SymbolicArray = Value
"""What functions get as `scores`: one row of scores."""

# Infinite initial values become finite: exp(old maximum - new maximum) is then never exp(-inf + inf).
_LARGEST = 3.4028234663852886e38


@dataclasses.dataclass(frozen=True)
class Var:
    """A number, mostly given as text: Var("0.0"), Var("-inf")."""

    name: str | float

    @property
    def number(self) -> float:
        """Its value; "-inf" is the lowest finite f32, "inf" the highest."""
        try:
            number = float(self.name)
        except (TypeError, ValueError):
            raise ArgumentError(f'Var({self.name!r}) is no number: write for example Var("0.0") or Var("-inf")') from None
        if math.isnan(number):
            raise ArgumentError("Var does not take NaN")
        return min(max(number, -_LARGEST), _LARGEST)


class SymbolScalar(Value):
    """A named scalar with an initial value. Inside an online function it is that number, as in SymbolScalar("o_scale", Var("1")).

    The further arguments are accepted and have no effect.
    """

    __slots__ = ("initial", "varname")

    def __init__(
        self,
        varname: str,
        value: Any,
        prev: Sequence[Any] = (),
        shape_idx: Sequence[str] = ("block_M",),
        require_grad: bool = True,
        dtype: str = "float",
    ) -> None:
        self.varname = varname
        self.initial = (value if isinstance(value, Var) else Var(value)).number
        super().__init__(ops.constant(self.initial))

    def scan_key(self) -> float:
        return self.initial

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.varname, self.initial)

    def __deepcopy__(self, memo: Any) -> "SymbolScalar":
        return type(self)(self.varname, self.initial)

    def __repr__(self) -> str:
        return f"SymbolScalar({self.varname!r}, {self.initial!r})"
