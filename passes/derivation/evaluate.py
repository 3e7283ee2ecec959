"""Evaluates expressions with numpy, vectorised over rows (axis 0) and keys (axis 1)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.expr import Node
from attn_mlir.passes.order import deepest_first

Array = np.ndarray
_erf = np.vectorize(math.erf, otypes=[float])


def _rsqrt(x: Array) -> Array:
    return 1 / np.sqrt(x)


_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "arith.addf": np.add,
    "arith.subf": np.subtract,
    "arith.mulf": np.multiply,
    "arith.divf": np.divide,
    "arith.remf": np.fmod,
    "arith.negf": np.negative,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.select": np.where,
    "arith.andi": np.logical_and,
    "arith.ori": np.logical_or,
    "arith.xori": np.logical_xor,
    "math.exp": np.exp,
    "math.exp2": np.exp2,
    "math.expm1": np.expm1,
    "math.log": np.log,
    "math.log2": np.log2,
    "math.log1p": np.log1p,
    "math.sqrt": np.sqrt,
    "math.rsqrt": _rsqrt,
    "math.absf": np.abs,
    "math.tanh": np.tanh,
    "math.sinh": np.sinh,
    "math.cosh": np.cosh,
    "math.tan": np.tan,
    "math.atan": np.arctan,
    "math.atan2": np.arctan2,
    "math.erf": _erf,
    "math.sin": np.sin,
    "math.cos": np.cos,
    "math.powf": np.power,
    "math.floor": np.floor,
    "math.ceil": np.ceil,
    "math.round": np.round,
    "math.roundeven": np.round,
    "math.trunc": np.trunc,
    "math.fma": lambda x, y, z: x * y + z,
    "math.copysign": np.copysign,
}
_COMPARE: tuple[Callable[[Array, Array], Array], ...] = (np.equal, np.greater, np.greater_equal, np.less, np.less_equal, np.not_equal)


def known(op: str) -> bool:
    """True for ops that `Evaluator` can evaluate."""
    return op in _FUNCTIONS or op in ("arith.cmpf", "arith.uitofp")


def compare(predicate: int, x: Array, y: Array) -> Array:
    """`arith.cmpf` with MLIR's predicate number."""
    unordered = np.isnan(x) | np.isnan(y)
    if predicate in (0, 15):
        return np.full(unordered.shape, predicate == 15)
    if predicate in (7, 14):
        return unordered if predicate == 14 else ~unordered
    if predicate < 7:
        return _COMPARE[predicate - 1](x, y) & ~unordered
    return _COMPARE[predicate - 8](x, y) | unordered


@dataclass(eq=False)
class Evaluator:
    """Values of expressions, given those of the leaves; `present` [rows, keys] tells which keys a reduction sees."""

    env: Mapping[Node, Array]
    present: Array | None = None
    dtype: type = np.float64
    _memo: dict[Node, Array] = field(default_factory=dict)

    def __call__(self, root: Node) -> Array:
        with np.errstate(all="ignore"):
            for n in deepest_first(root, self._memo, lambda n: () if n in self.env else n.args):
                self._memo[n] = self._value(n)
        return self._memo[root]

    def _value(self, n: Node) -> Array:
        if n in self.env:
            return self.env[n]
        if n.is_const:
            return np.asarray(n.attr) if isinstance(n.attr, bool) else np.asarray(n.attr, self.dtype)
        if n.is_leaf:
            raise DerivationError(f"the value of '{n.op}{n.attr}' is unknown here")
        if n.op == "reduce":
            return self._reduce(str(n.attr), self(n.args[0]))
        args = [self(a) for a in n.args]
        if n.op == "arith.cmpf":
            return compare(int(n.attr), *args)  # type: ignore[call-overload]
        if n.op == "arith.uitofp":
            return args[0].astype(self.dtype)
        function = _FUNCTIONS.get(n.op)
        if function is None:
            raise DerivationError(f"'{n.op}' of a value that varies along the row is not understood")
        result = np.asarray(function(*args))
        return result.astype(self.dtype) if result.dtype == np.float64 and self.dtype is not np.float64 else result

    def _reduce(self, kind: str, value: Array) -> Array:
        if self.present is None:
            raise DerivationError("a reduction cannot be evaluated without keys")
        value = np.broadcast_to(value, self.present.shape)
        if kind == "sum":
            return np.where(self.present, value, 0).sum(axis=1, keepdims=True, dtype=self.dtype)
        lowest = np.finfo(np.float32 if self.dtype is np.float32 else np.float64).min
        if kind == "max":
            return np.where(self.present, value, lowest).max(axis=1, keepdims=True, initial=lowest)
        return np.where(self.present, value, -lowest).min(axis=1, keepdims=True, initial=-lowest)
