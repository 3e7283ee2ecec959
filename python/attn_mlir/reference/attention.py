"""`attn.attention`: the definition of an attention, all keys of a row at once."""

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.presence import presence
from attn_mlir.reference.problem import OpInputs, scores, terms, weighted_sum
from attn_mlir.reference.scalar import Array


def attention(p: OpInputs) -> list[Array]:
    """The results of an `attn.attention`."""
    present = presence(p).present
    row = piece(p.op, "attn.row")
    if row is None:
        raise EvaluationError("'attn.attention' has no 'attn.row'", p.op.location)
    b, h, q, _ = p.indices()
    summed = terms(p, present)
    yielded = p.run(row, [*scores(p, present), b, h, q], present, present)
    weights, outputs = yielded[: len(summed)], yielded[len(summed) :]
    filled = np.asarray(present.any(axis=3))
    totals: dict[int, Array] = {}
    for term, weight in zip(summed, weights, strict=True):
        part = weighted_sum(np.broadcast_to(weight, p.shape), term.rows, present)
        totals[term.output] = totals[term.output] + part if term.output in totals else part
    o, *more = (np.where(filled[..., None], totals[n], 0.0) for n in range(len(totals)))
    names = [name.value for name in p.op.attributes["outputs"]]
    rows = [row_output(p, name, value, row) for name, value in zip(names, outputs, strict=True)]
    return [p.keep(o, more), *(_without_keys(name, value, filled) for name, value in zip(names, rows, strict=True))]


def row_output(p: OpInputs, name: str, value: Array, piece_: ir.Operation) -> Array:
    """A value of each row as [B, Hq, Sq]."""
    if value.ndim == 4 and value.shape[3] != 1:
        if p.shape[3] and not _constant_along_row(value):
            raise EvaluationError(f"row output '{name}' varies along the row", piece_.location)
        value = value[..., :1] if value.shape[3] else np.zeros((*value.shape[:3], 1))
    return np.array(np.broadcast_to(value, (*p.shape[:3], 1))[..., 0])


def _constant_along_row(value: Array) -> bool:
    return bool(np.array_equal(value, np.broadcast_to(value[..., :1], value.shape), equal_nan=True))


def _without_keys(name: str, value: Array, filled: Array) -> Array:
    """Fully masked rows: lse is -inf, anything else 0 unless it is finite by itself."""
    if name == "lse":
        return np.where(filled, value, -np.inf)
    return np.where(filled | np.isfinite(value), value, 0.0)
