"""Evaluates expressions with numpy, vectorised over rows (axis 0) and keys (axis 1)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from attn_mlir.float_values import FUNCTIONS, compare
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.order import deepest_first

Array = np.ndarray
_FUNCTIONS = {**FUNCTIONS, "arith.andi": np.logical_and, "arith.ori": np.logical_or, "arith.xori": np.logical_xor}


def known(op: str) -> bool:
    """True for ops that `Evaluator` can evaluate."""
    return op in _FUNCTIONS or op in ("arith.cmpf", "arith.uitofp")


@dataclass(eq=False)
class Evaluator:
    """Values of expressions, given those of the leaves; `present` [rows, keys] tells which keys a reduction sees."""

    env: Mapping[Expr, Array]
    present: Array | None = None
    dtype: type = np.float64
    _memo: dict[Expr, Array] = field(default_factory=dict)

    def __call__(self, root: Expr) -> Array:
        if root in self._memo:
            return self._memo[root]
        with np.errstate(all="ignore"):
            for n in deepest_first(root, self._memo, lambda n: () if n in self.env else n.args):
                self._memo[n] = self._value(n)
        return self._memo[root]

    def _value(self, n: Expr) -> Array:
        if n in self.env:
            return self.env[n]
        if n.is_const:
            return np.asarray(n.attr) if isinstance(n.attr, bool) else np.asarray(n.attr, self.dtype)
        if n.is_leaf:
            raise DerivationError(f"the value of '{n.op}{n.attr}' is unknown here")
        if n.op == "reduce":
            return self._reduce(str(n.attr), self(n.args[0]))
        memo = self._memo
        args = [memo[a] if a in memo else self(a) for a in n.args]
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
