"""Row functions of the tests on torch tensors: the same rules as `rows.V`, evaluated densely."""

import math
from dataclasses import dataclass

import torch

Tensor = torch.Tensor


@dataclass(eq=False)
class Captured:
    """Stands for `V.text`: gives the captured numbers per head."""

    t: Tensor

    def param(self, name: str) -> "T":
        return T(self.t[None, :, None, None], None, self)


@dataclass(eq=False)
class T:
    """A value of the row, [B, H, Sq, Skv or 1]; `present` tells which keys a reduction sees."""

    value: Tensor
    present: Tensor | None
    text: Captured

    def _new(self, value: Tensor) -> "T":
        return T(value, self.present, self.text)

    def _of(self, other: "float | T") -> "Tensor | float":
        return other.value if isinstance(other, T) else other

    def __add__(self, other: "float | T") -> "T":
        return self._new(self.value + self._of(other))

    __radd__ = __add__

    def __sub__(self, other: "float | T") -> "T":
        return self._new(self.value - self._of(other))

    def __rsub__(self, other: float) -> "T":
        return self._new(other - self.value)

    def __mul__(self, other: "float | T") -> "T":
        return self._new(self.value * self._of(other))

    __rmul__ = __mul__

    def __truediv__(self, other: "float | T") -> "T":
        return self._new(self.value / self._of(other))

    def __rtruediv__(self, other: float) -> "T":
        return self._new(other / self.value)

    def __neg__(self) -> "T":
        return self._new(-self.value)

    def most(self, other: float) -> "T":
        return self._new(self.value.clamp(min=other))

    def exp(self) -> "T":
        return self._new(self.value.exp())

    def log(self) -> "T":
        return self._new(self.value.log())

    def sqrt(self) -> "T":
        return self._new(self.value.sqrt())

    def abs(self) -> "T":
        return self._new(self.value.abs())

    def detach(self) -> "T":
        return self._new(self.value.detach())

    def sum(self, name: str | None = None) -> "T":
        return self._new(self.value.expand_as(self._keys()).where(self._keys(), 0.0).sum(-1, keepdim=True))

    def max(self, name: str | None = None) -> "T":
        return self._new(self.value.expand_as(self._keys()).where(self._keys(), -math.inf).amax(-1, keepdim=True))

    def count(self, name: str | None = None) -> "T":
        return self._new(torch.ones((), dtype=self.value.dtype)).sum()

    def mean(self) -> "T":
        return self.sum() / self.count()

    def _keys(self) -> Tensor:
        if self.present is None:
            raise ValueError("a captured number has no keys")
        return self.present
