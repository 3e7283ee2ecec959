"""Segments of a linear attention that are swept at the same time: the rule by which states pass between them, confirmed on numbers.

The state enters a recurrence linearly: after a segment it is decay S + F, for the state S before it, F what the segment makes of a zero
state, and decay the factor of the sum of its log decays. What erases multiplies the state by a matrix instead: M S + F, where M is what
the same recurrence makes of the identity without values.
"""

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import numpy as np

from attn_mlir.passes.derivation.chunk import LENGTH, SIZES, TOLERANCE, ChunkForm, ChunkReport, Sample, derive_chunks, problems, recurrence
from attn_mlir.passes.derivation.delta import CASES, DeltaPlaces, DeltaSample, by_position, delta_problems, derive_delta
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array, Evaluator

_SIZES = (1, 16, 37)
"""Positions of a delta rule's segments, fewer than of others."""


@functools.cache
def derive_segments(forward: bool) -> tuple[ChunkForm, ChunkReport]:
    """The chunked form of a scan in one direction, confirmed for segments, too. Raises DerivationError where it is not."""
    form, _ = derive_chunks(forward)
    return form, check_segments(form)


def in_segments(form: ChunkForm, p: Sample, size: int) -> tuple[Array, Array]:
    """o and the last state, of segments of `size` positions."""
    parts = [slice(begin, min(begin + size, LENGTH)) for begin in range(0, LENGTH, size)]
    state, o = p.state, np.zeros((LENGTH, 2))
    for at in parts if form.forward else reversed(parts):
        part = Sample(p.q[at], p.k[at], p.v[at], p.g[at], np.zeros_like(p.state))
        _, added = recurrence(part, form.forward)
        o[at], _ = recurrence(dataclasses.replace(part, state=state), form.forward)
        decay = Evaluator({form.places.end: part.g.sum(axis=0)})(form.factors["chunk_decay"])
        state = np.broadcast_to(decay, (3,))[:, None] * state + added
    return o, state


def check_segments(form: ChunkForm) -> ChunkReport:
    """Compares segments with the recurrence. Raises DerivationError where they differ."""
    wanted = [(p, recurrence(p, form.forward)) for p in problems()]
    return _compared((in_segments(form, p, size), known, size) for p, known in wanted for size in SIZES)


@functools.cache
def derive_delta_segments(forward: bool) -> tuple[ChunkForm, ChunkReport]:
    """The chunked form of a delta rule, confirmed for segments, too. Raises DerivationError where it is not."""
    form, _ = derive_delta(forward)
    wanted = [(places, p, by_position(places, p, forward)) for places in CASES for p in delta_problems(places.removed)]
    found = ((delta_in_segments(places, p, forward, size), known, size) for places, p, known in wanted for size in _SIZES)
    return form, _compared(found)


def delta_in_segments(places: DeltaPlaces, p: DeltaSample, forward: bool, size: int) -> tuple[Array, Array, Array]:
    """o, the last state and the values of the erasing writer, of segments of `size` positions."""
    parts = [slice(begin, min(begin + size, LENGTH)) for begin in range(0, LENGTH, size)]
    state, o, values = p.state, np.zeros((LENGTH, 2)), np.zeros((LENGTH, 2))
    for at in parts if forward else reversed(parts):
        part = DeltaSample(*(x[at] for x in (p.q, p.k, p.v, p.e, p.r, p.g)), np.zeros_like(p.state))
        _, added, _ = by_position(places, part, forward)
        wide = dataclasses.replace(part, v=np.zeros((len(part.q), 3)), state=np.eye(3))
        _, matrix, _ = by_position(places, wide, forward)
        o[at], _, values[at] = by_position(places, dataclasses.replace(part, state=state), forward)
        state = matrix @ state + added
    return o, state, values


def _compared(found: Iterable[tuple[Sequence[Array], Sequence[Array], int]]) -> ChunkReport:
    """How far segments are from the recurrence: what both make, and positions of a segment. Raises DerivationError where they differ."""
    points, error = 0, 0.0
    for made, wanted, size in found:
        for x, y in zip(made, wanted, strict=True):
            worst = float((np.abs(x - y) / np.maximum(1.0, np.abs(y).max())).max())
            points, error = points + x.size, max(error, worst)
            if not worst <= TOLERANCE:
                raise DerivationError(f"segments of {size} positions differ from the recurrence by {worst:.1e}")
    return ChunkReport(points, error)
