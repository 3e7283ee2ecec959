"""Does the `combine` of an OnlineFunc put results over different keys together to that over all of them?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attn_mlir.api.custom_io import CustomIO
from attn_mlir.api.online_func import OnlineFunc, check_online_func
from attn_mlir.dialects import loaded
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import LOCK, ir
from attn_mlir.reference import Sizes, evaluate
from attn_mlir.testing.backward import random_captures, trace_functions

_PARTS = (2, 5, 4)
_SIZES = Sizes(batch=4, heads=2, kv_heads=2, q_len=6, kv_len=sum(_PARTS))
_DIM, _SCALES = 3, (0.1, 1.0, 3.0, 30.0)
_TOLERANCE = 1e-8


@dataclass(frozen=True)
class Combination:
    """What `compare_combine` found, with the values at the worst place."""

    name: str
    largest: float
    combined: float
    whole: float
    agrees: bool

    def __str__(self) -> str:
        *parts, last = map(str, _PARTS)
        sizes = f"float64, parts of {', '.join(parts)} and {last} keys"
        if self.agrees:
            return f"{self.name}.combine gives what all keys give at once: {sizes}, largest difference {self.largest:.1e}"
        return (
            f"{self.name}.combine does not give what all keys give at once: {sizes}, o differs by up to {self.largest:.3g}; "
            f"for example {self.combined:.6g} where it is {self.whole:.6g}"
        )


class _Parts(torch.Tensor):
    """A row output of every part, dimension 0, with the methods that `combine` may call."""

    def get_reduce(self, kind: str) -> Any:
        """A reduction over the parts."""
        reductions = {"sum": self.sum, "max": self.amax, "min": self.amin, "mean": self.mean, "abssum": self.abs().sum}
        if kind not in reductions:
            raise ArgumentError(f"combine: get_reduce({kind!r}); there are {', '.join(reductions)}")
        return reductions[kind](0, keepdim=True)

    def max(self, other: Any) -> Any:  # type: ignore[override]
        """The larger of two values."""
        return torch.maximum(self, torch.as_tensor(other, dtype=self.dtype))


def compare_combine(online_func: OnlineFunc, custom_fwd_inputs: CustomIO | None = None, seed: int = 0) -> Combination:
    """Adds results over parts of the keys with the weights that `combine` gives, and compares that with the result over all."""
    online_func = check_online_func(online_func)
    name = type(online_func).__name__
    if type(online_func).combine is OnlineFunc.combine:
        raise ArgumentError(f"{name} defines no combine: there is nothing to compare, its merge rule is derived")
    traced, captured = trace_functions(online_func, custom_fwd_inputs, Inputs("f64", _DIM, _DIM))
    rng = np.random.default_rng(seed)
    s = _SIZES
    q = rng.normal(size=(s.batch, s.heads, s.q_len, _DIM)) * np.reshape(_SCALES, (4, 1, 1, 1))
    k, v = (rng.normal(size=(s.batch, s.kv_heads, s.kv_len, _DIM)) for _ in "kv")
    with LOCK, loaded():
        module, further = ir.Module.parse(traced.text), random_captures(traced, captured, s, seed)

        def run(begin: int, end: int) -> list[np.ndarray]:
            return evaluate(module, [q, k[:, :, begin:end], v[:, :, begin:end], *further])

        ends = np.cumsum(_PARTS)
        parts = [run(end - size, end) for size, end in zip(_PARTS, ends, strict=True)]
        whole = run(0, s.kv_len)[0]
    rows = {output: _stacked([part[1 + i] for part in parts]) for i, output in enumerate(traced.outputs)}
    weights = np.asarray(torch.as_tensor(online_func.combine(rows)))
    if weights.shape != (len(_PARTS), *whole.shape[:3]):
        raise ArgumentError(f"{name}.combine must return one number for each part of the keys")
    combined = (np.stack([part[0] for part in parts]) * weights[..., None]).sum(axis=0)
    error = np.nan_to_num(np.abs(combined - whole), nan=np.inf)
    worst = np.unravel_index(int(error.argmax()), error.shape)
    agrees = bool((error <= _TOLERANCE * np.maximum(1.0, np.abs(whole))).all())
    return Combination(name, float(error[worst]), float(combined[worst]), float(whole[worst]), agrees)


def _stacked(parts: Sequence[np.ndarray]) -> torch.Tensor:
    return torch.from_numpy(np.stack(parts)).as_subclass(_Parts)
