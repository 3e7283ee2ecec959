"""One attention as arrays: inputs after their mods, scores, and which positions are present."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.interpreter import Frame
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class Blocks:
    """How positions are blocked: rows in blocks of `q`, keys in blocks whose sizes are `kv` in turn."""

    q: int = 16
    kv: tuple[int, ...] = (37,)

    def keys(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The blocks [lo, hi) of the keys [begin, end)."""
        found, lo = [], begin
        while lo < end:
            hi = min(lo + self.kv[len(found) % len(self.kv)], end)
            found.append((lo, hi))
            lo = hi
        return found


@dataclasses.dataclass(frozen=True)
class Problem:
    """The inputs of an attention op. Arrays over positions broadcast to [B, Hq, Sq, Skv]."""

    op: ir.Operation
    frame: Frame
    q: Array
    k: Array
    v: Array
    blocks: Blocks

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Sq, Skv]."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    def indices(self) -> list[Array]:
        """b, h, q_idx and kv_idx."""
        return _grid(self.shape)

    def run(self, piece_: ir.Operation, arguments: Sequence[Array], live: Array | None = None, present: Array | None = None) -> list[Array]:
        """Evaluates a piece on arrays."""
        return self.frame.with_(live, present).run(block_of(piece_), arguments)


def problem(op: ir.Operation, frame: Frame, args: list[Array], blocks: Blocks) -> Problem:
    """Checks the operands of `op`."""
    q, k, v = args
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise EvaluationError(f"shapes do not fit: q {q.shape}, k {k.shape}, v {v.shape}", op.location)
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise EvaluationError(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads", op.location)
    return Problem(op, frame, q, k, v, blocks)


def _grid(shape: Sequence[int]) -> list[Array]:
    return [np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(shape))]) for axis, n in enumerate(shape)]


def modified(p: Problem, name: str, x: Array, live: Array | None) -> Array:
    """An input after its mod, `attn.query`, `attn.key` or `attn.value`."""
    mod = piece(p.op, name)
    if mod is None:
        return x
    (result,) = p.run(mod, [x, *_grid(x.shape)], live)
    return np.broadcast_to(result, x.shape)


def scores(p: Problem, present: Array) -> tuple[Array, Array]:
    """The scores [B, Hq, Sq, Skv], and v after its mod, repeated to [B, Hq, Skv, Dv]."""
    b, hq, sq, skv = p.shape
    used = np.any(present.reshape(b, hq // p.group, p.group, sq, skv), axis=(2, 3)).reshape(b, hq // p.group, skv, 1)
    q = modified(p, "attn.query", p.q, None)
    k = np.repeat(modified(p, "attn.key", p.k, used), p.group, axis=1)
    v = np.repeat(modified(p, "attn.value", p.v, used), p.group, axis=1)
    s = q @ np.swapaxes(k, 2, 3)
    mod = piece(p.op, "attn.score")
    if mod is not None:
        (s,) = p.run(mod, [s, *p.indices()], present)
    return np.broadcast_to(s, p.shape), v


def weighted_sum(weights: Array, v: Array, present: Array) -> Array:
    """sum_j w_j v_j over present positions: [B, H, Sq, Dv]. What v holds at other positions never matters."""
    w = np.where(present, weights, 0.0)
    if np.isfinite(v).all():
        return w @ v
    out = np.empty((*w.shape[:3], v.shape[3]))
    for i in np.ndindex(*w.shape[:3]):
        here = present[i]
        out[i] = w[i][here] @ v[i[0], i[1]][here]
    return out
