"""Segments of a linear attention that are swept at the same time: the rule by which states pass between them, confirmed on numbers.

The state enters a recurrence linearly: behind a segment it is carry S + F, for the state S before it, F what the segment makes of a zero
state, and carry the factor of the sum of its log decays.
"""

import dataclasses
import functools

import numpy as np

from attn_mlir.passes.derivation.chunk import LENGTH, SIZES, TOLERANCE, ChunkForm, ChunkReport, Sample, derive_chunks, problems, recurrence
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array, Evaluator


@functools.cache
def derive_segments(forward: bool) -> tuple[ChunkForm, ChunkReport]:
    """The chunked form of a sweep in one direction, confirmed for segments, too. Raises DerivationError where it is not."""
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
        carry = Evaluator({form.places.end: part.g.sum(axis=0)})(form.factors["carry"])
        state = np.broadcast_to(carry, (3,))[:, None] * state + added
    return o, state


def check_segments(form: ChunkForm) -> ChunkReport:
    """Compares segments with the recurrence. Raises DerivationError where they differ."""
    points, error = 0, 0.0
    for p in problems():
        wanted = recurrence(p, form.forward)
        for size in SIZES:
            for x, y in zip(in_segments(form, p, size), wanted, strict=True):
                worst = float((np.abs(x - y) / np.maximum(1.0, np.abs(y).max())).max())
                points, error = points + x.size, max(error, worst)
                if not worst <= TOLERANCE:
                    raise DerivationError(f"segments of {size} positions differ from the recurrence by {worst:.1e}")
    return ChunkReport(points, error)
