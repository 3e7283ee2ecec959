"""The check that a derived program is as accurate as the row as written, on large scores, also ones that are nearly equal."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.check import KEYS, Samples
from attn_mlir.passes.derivation.evaluate import Array
from attn_mlir.passes.derivation.ranges import RangeFinder, parameter

_SIZES = (1.0, 30.0, 300.0)
_EACH = 4
_ROUNDINGS = 16.0


@dataclass(eq=False)
class Accuracy(RangeFinder):
    """Compares with the row as written. A relative error of some roundings of the scores is what rounding these does anyway.

    Of several scores, as of an attention and its tangent, the first one or all others are large in turn, with `all_large` all at once.
    """

    all_large: bool = False

    def _samples(self) -> Samples:
        row, dtype, rng = self.row, self._dtype, np.random.default_rng(17)
        kinds: Sequence[Callable[[float], Array]] = (
            lambda size: size * rng.normal(size=(_EACH, KEYS)),
            lambda size: size * (0.1 + np.abs(rng.normal(size=(_EACH, KEYS)))),
            lambda size: size + rng.normal(size=(_EACH, KEYS)),
            lambda size: size * rng.permuted(np.tile(np.linspace(-1, 1, KEYS), (_EACH, 1)), axis=1),
        )
        scores = np.concatenate([kind(size) for size in _SIZES for kind in kinds])
        rows = len(scores)
        every_second = np.arange(rows)[:, None] % 2 == 1
        others = [np.where(every_second, rng.permuted(scores, axis=1), rng.normal(size=scores.shape)) for _ in row.scores[1:]]
        if row.scores[1:] and not self.all_large:
            scores = np.where(every_second, rng.normal(size=scores.shape), scores)
        params = {leaf: parameter(leaf.type, rng, rows, dtype) for leaf in row.params.leaves}
        values = [rng.normal(size=(rows, KEYS, 2)).astype(dtype) for _ in range(max(len(row.weights), 1))]
        present = np.ones((rows, KEYS), bool)
        return Samples(scores.astype(dtype), values[0], present, params, np.ones(rows, bool), [x.astype(dtype) for x in others], values[1:])

    def _allowance(self, largest: Array) -> Array:
        return _ROUNDINGS * float(np.finfo(self._dtype).eps) * (1 + largest)
