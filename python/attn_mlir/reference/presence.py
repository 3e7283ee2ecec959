"""Which positions an op computes: its mask, or what bounds and `attn.block_mask` make of it."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.key_lists import KeyLists, key_lists_of
from attn_mlir.passes.regions import piece
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.problem import OpInputs
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class Presence:
    """`present` [B, Hq, Sq, Skv]; `visited` says the same of whole blocks: a row skips the others."""

    present: Array
    visited: list[Array]
    """One [B, Hq, Sq, 1] for each block of keys."""


def presence(p: OpInputs) -> Presence:
    """Follows the pieces as a kernel does: nothing outside of the bounds, no mask where they promise that all is present."""
    mask = _mask(p)
    bounds = _bounds(p)
    kv = p.indices()[3]
    if bounds is None:
        begin = full_begin = full_end = np.zeros((1, 1, 1, 1), np.int64)
        end = np.full((1, 1, 1, 1), p.shape[3])
    else:
        begin, full_begin, full_end, end = bounds
    kept = (mask | ((full_begin <= kv) & (kv < full_end))) & (begin <= kv) & (kv < end)
    present = np.array(np.broadcast_to(kept, p.shape))
    visited = []
    for lo, hi in p.blocks.keys(0, p.shape[3]):
        first, last = np.maximum(begin, lo), np.minimum(end, hi)
        visit, everything = _classes(p, first, last)
        inside = (first <= kv[..., lo:hi]) & (kv[..., lo:hi] < last)
        present[..., lo:hi] = (present[..., lo:hi] | (everything & inside)) & visit
        visited.append(np.broadcast_to(visit, (*p.shape[:3], 1)))
    present = _only_listed(p, present)
    _check_proof(p, present)
    return Presence(present, visited)


def pairs_presence(p: OpInputs) -> Array:
    """The positions of an `attn.pairs`: for each block of keys, blocks of the rows within its `attn.query_bounds`."""
    mask = np.broadcast_to(_mask(p), p.shape)
    _, _, q, _ = p.indices()
    present = np.zeros(p.shape, bool)
    for lo, hi in p.blocks.keys(0, p.shape[3]):
        begin, full_begin, full_end, end = _query_bounds(p, lo, hi)
        here = mask[..., lo:hi]
        kept = (here | ((full_begin <= q) & (q < full_end))) & (begin <= q) & (q < end)
        for q_lo in range(0, p.shape[2], p.blocks.q):
            q_hi = min(q_lo + p.blocks.q, p.shape[2])
            first, last = np.maximum(begin, q_lo), np.minimum(end, q_hi)
            some = first < last
            visit, everything = _block_mask(p, [first, last, np.asarray(lo), np.asarray(hi)], some)
            rows = q[:, :, q_lo:q_hi]
            inside = (first <= rows) & (rows < last)
            present[:, :, q_lo:q_hi, lo:hi] = (kept[:, :, q_lo:q_hi] | (everything & inside)) & visit
    return _only_listed(p, present)


def _query_bounds(p: OpInputs, lo: int, hi: int) -> Sequence[Array]:
    """What the rows that see keys [lo, hi) are, each [B, Hq, 1, 1]."""
    bounds = piece(p.op, "attn.query_bounds")
    b, h, _, _ = p.indices()
    if bounds is None:
        none = np.zeros((1, 1, 1, 1), np.int64)
        return none, none, none, np.full((1, 1, 1, 1), p.shape[2])
    return _ordered(bounds, p.run(bounds, [b, h, np.asarray(lo), np.asarray(hi)]), p.shape[2])


def _rows(p: OpInputs) -> tuple[Array, Array]:
    """First row of each row's block, and one past the last."""
    q = p.indices()[2]
    begin = q // p.blocks.q * p.blocks.q
    return begin, np.minimum(begin + p.blocks.q, p.shape[2])


def _mask(p: OpInputs) -> Array:
    mask = piece(p.op, "attn.mask")
    if mask is None:
        return np.ones((1, 1, 1, 1), bool)
    (result,) = p.run(mask, p.indices())
    return result


def _only_listed(p: OpInputs, present: Array) -> Array:
    """Those of the pairs whose keys are listed, [B, Hq, Sq, Skv]."""
    lists = key_lists_of(p.op)
    return present if lists is None else present & _listed(p, lists)


def _listed(p: OpInputs, lists: KeyLists) -> Array:
    entries, ranges = (p.frame.values[value] for value in (lists.entries, lists.ranges))
    present = np.zeros(p.shape, bool)
    for b, h, block in np.ndindex(p.shape[0], p.shape[1], -(-p.shape[2] // lists.queries)):
        rows = slice(block * lists.queries, (block + 1) * lists.queries)
        begin, end = ranges[b, h * ranges.shape[1] // p.shape[1], block]
        for number in entries[int(begin) : int(end)]:
            present[b, h, rows, int(number) * lists.keys : (int(number) + 1) * lists.keys] = True
    return present


def _bounds(p: OpInputs) -> list[Array] | None:
    bounds = piece(p.op, "attn.bounds")
    if bounds is None:
        return None
    b, h, _, _ = p.indices()
    return _ordered(bounds, p.run(bounds, [b, h, *_rows(p)]), p.shape[3])


def _ordered(bounds: ir.Operation, ranges: list[Array], size: int) -> list[Array]:
    begin, full_begin, full_end, end = ranges
    ordered = (0 <= begin) & (begin <= full_begin) & (full_begin <= full_end) & (full_end <= end) & (end <= size)
    if not ordered.all():
        ordered, *ranges = np.broadcast_arrays(ordered, *ranges)
        worst = [int(r[~ordered][0]) for r in ranges]
        raise EvaluationError(f"'{bounds.name}' gives {worst}, which is not ordered within [0, {size}]", bounds.location)
    return ranges


def _classes(p: OpInputs, first: Array, last: Array) -> tuple[Array, Array]:
    """(visit, all) of the blocks of keys [first, last)."""
    return _block_mask(p, [*_rows(p), first, last], first < last)


def _block_mask(p: OpInputs, limits: list[Array], some: Array) -> tuple[Array, Array]:
    """(visit, all) of blocks of rows and keys, where there are `some`."""
    block_mask = piece(p.op, "attn.block_mask")
    if block_mask is None:
        return some, np.zeros_like(some)
    b, h, _, _ = p.indices()
    visit, everything = p.run(block_mask, [b, h, *limits], live=some)
    return some & visit, some & everything


def _check_proof(p: OpInputs, present: Array) -> None:
    if "rows_nonempty" not in p.op.attributes or not p.op.attributes["rows_nonempty"].value or p.shape[3] == 0:
        return
    empty = np.argwhere(~present.any(axis=3))
    if len(empty):
        b, h, q = map(int, empty[0])
        raise EvaluationError(f"rows_nonempty = true, but row {q} of head {h} in batch {b} has no key", p.op.location)
