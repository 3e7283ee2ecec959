"""The delta rule in the evaluator: what `attn.erase`, `attn.write` and `output` add to a linear attention, by position and by chunk."""

import dataclasses
from collections.abc import Callable

import numpy as np

from attn_mlir.dialects.attn.linear_erase import eraser, output_of, reads_strictly, remover, writer
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.interpreter import EvaluationFrame
from attn_mlir.reference.problem import grid
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class Delta:
    """What a linear attention has besides k and v, with all H heads, and where its state is read."""

    erase: Array | None
    """The erase keys after their mod."""
    key: Array | None
    """The second writer's keys; None where it is k that is removed, or nothing."""
    value: Array | None
    """The second writer's values, where they are given."""
    reads: str
    output: str
    strict: tuple[bool, bool]
    """Whether o_t leaves out what position t writes, by its first and by its second writer."""

    def at(self, index: tuple[object, ...]) -> "Delta":
        """A part of it."""
        cut = {name: None if x is None else x[index] for name in ("erase", "key", "value") for x in [getattr(self, name)]}
        return dataclasses.replace(self, **cut)


def delta_of(op: ir.Operation, frame: EvaluationFrame, counts: tuple[int, int, int]) -> Delta:
    """What stands in the pieces of `op`; `counts` are the batch entries, heads of o and positions."""
    erase, write = eraser(op), writer(op)
    batch, heads, length = counts

    def all_heads(value: ir.Value) -> Array:
        x = np.asarray(frame.values[value])
        if (x.shape[0], x.shape[2]) != (batch, length) or x.shape[1] == 0 or heads % x.shape[1]:
            message = f"{list(x.shape)} in a piece does not fit {batch} batch entries of {heads} heads and {length} positions"
            raise EvaluationError(message, op.location)
        return np.repeat(x, heads // x.shape[1], axis=1)

    strict = (reads_strictly(op, False), reads_strictly(op, True))
    if erase is None:
        key, value = (None, None) if write is None else (all_heads(x) for x in write.operands)
        return Delta(None, key, value, "decayed", output_of(op), strict)
    x, *removed = (all_heads(each) for each in erase.operands)
    (made,) = frame.with_().run(block_of(erase), [x, *grid(x.shape)])
    reads, change = ir.StringAttr(erase.attributes["reads"]).value, remover(op)
    if change is not None:
        (changed,) = frame.with_().run(block_of(change), [removed[0], *grid(x.shape)])
        removed = [np.broadcast_to(changed, x.shape)]
    return Delta(np.broadcast_to(made, x.shape), removed[0] if removed else None, None, reads, output_of(op), strict)


def step(d: Delta, q: Array, k: Array, v: Array, state: Array) -> tuple[Array, Array]:
    """o [H, V] and the state after one position, whose state [H, K, V] has decayed; rows are [H, D]."""

    def read(x: Array, seen: Array) -> Array:
        return np.einsum("hk,hkv->hv", x, seen)

    def write(key: Array, value: Array) -> Array:
        return key[:, :, None] * value[:, None]

    seen = {"decayed": state, "written": state + write(k, v)}
    values = v
    if d.erase is not None:
        x = read(d.erase, seen[d.reads])
        values = v - x if d.key is None else -x
        after = state + write(k, values) if d.key is None else seen["written"] + write(d.key, values)
    else:
        after = seen["written"] if d.key is None or d.value is None else seen["written"] + write(d.key, d.value)
    return values if d.output == "values" else read(q, (seen | {"after": after})[d.output]), after


def own_terms(d: Delta, q: Array, k: Array, v: Array) -> Array:
    """What every position adds to its own row of o, [..., V], of those writers that it reads there."""
    writers = [(k, v), *([] if d.key is None or d.value is None else [(d.key, d.value)])]
    own = np.zeros_like(v)
    for (key, value), strict in zip(writers, d.strict, strict=False):
        own = own if strict else own + (q * key).sum(axis=-1, keepdims=True) * value
    return own


Pairs = Callable[[Array, Array, bool], Array]
"""Weighted products [H, t, s] of rows of two tensors, without or (strictly) of s before t only."""


def written(d: Delta, k: Array, v: Array, passed: Callable[[Array], Array], pairs: Pairs) -> tuple[list[tuple[Array, Array]], Array]:
    """What writes in a chunk, as (key, values), and the values that erasing makes.

    `passed(e)` is what e reads of the state before the chunk.
    """
    if d.erase is None:
        return [(k, v), *([] if d.key is None or d.value is None else [(d.key, d.value)])], v
    system = np.eye(k.shape[1]) + pairs(d.erase, k if d.key is None else d.key, True)
    if d.key is None:
        values = np.linalg.solve(system, v - passed(d.erase))
        return [(k, values)], values
    right = passed(d.erase) + pairs(d.erase, k, d.reads == "decayed") @ v
    values = -np.linalg.solve(system, right)
    return [(k, v), (d.key, values)], values
