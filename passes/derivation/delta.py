"""The chunked form of the delta rule, derived from its recurrence.

What a position writes depends on what it reads, and so on what the positions before it in the chunk have written. Every reader sees the
state before the chunk through `leave` and what position s has written through `weight`, as q does; so the values of a chunk solve

    (I + A) U = V - output_decay e_t S,    A[t, s] = decay_mask (e_t . k_s) for s before t,                 where k is what is removed
    (I + A) X = output_decay e_t S + B V,  A of e and r alike, B of e and k; r writes -X                where another key r is

a system of a unit lower triangle (upper, towards earlier positions). Then o and S follow as without erasing, with U for V or with r and
-X besides. Nothing else is new: the factors are those of `derivation.chunk`, and no factor above 1 occurs in A or B.
"""

import functools
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.chunk import LENGTH, TOLERANCE, ChunkForm, ChunkReport, derive_chunks, problems
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array

_SIZES = (1, 16, 37)
"""Positions of chunks, fewer than without erasing: what they share is confirmed there."""
_DECAYS = (1, 4, 7, 10)
"""Which of the random decays: in the middle, and so strong that nothing is left; of heads and of channels."""


@dataclass(frozen=True, eq=False)
class DeltaPlaces:
    """Who reads the state where; see `attn.erase` and `output`."""

    removed: bool
    reads: str
    output: str

    @property
    def strict(self) -> tuple[bool, bool]:
        """Whether q leaves out what its own position writes, by each writer."""
        return {"after": (False, False), "written": (False, True), "decayed": (True, True)}[self.output]


CASES = (
    DeltaPlaces(False, "decayed", "after"),
    DeltaPlaces(False, "decayed", "decayed"),
    DeltaPlaces(True, "decayed", "after"),
    DeltaPlaces(True, "written", "written"),
)


@dataclass(frozen=True, eq=False)
class DeltaSample:
    """A random delta rule of one head: q, k, e, r [T, 3], v [T, 2], log decays [T, 1] or [T, 3], a state [3, 2]."""

    q: Array
    k: Array
    v: Array
    e: Array
    r: Array
    g: Array
    state: Array


def delta_problems(removed: bool) -> list[DeltaSample]:
    """Keys of length 1, erased by factors up to 2; another key that is removed is a little off the erase key's direction."""
    rng = np.random.default_rng(1)

    def unit() -> Array:
        x = rng.normal(size=(LENGTH, 3))
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    made = []
    for p in [problems(2)[number] for number in _DECAYS]:
        k, other = unit(), unit()
        r = other if removed else k
        e = rng.uniform(0, 2, (LENGTH, 1)) * (r + 0.05 * unit())
        made.append(DeltaSample(p.q, k, p.v, e, r, p.g, p.state))
    return made


@functools.cache
def derive_delta(forward: bool) -> tuple[ChunkForm, ChunkReport]:
    """The chunked form, confirmed for the delta rule, too. Raises DerivationError where it is not."""
    form, _ = derive_chunks(forward)
    return form, check_delta(form)


def by_position(places: DeltaPlaces, p: DeltaSample, forward: bool) -> tuple[Array, Array, Array]:
    """o, the last state and the values of the erasing writer, position by position."""
    state, o, values = p.state, np.zeros_like(p.v), np.zeros_like(p.v)
    for t in range(len(p.v)) if forward else reversed(range(len(p.v))):
        factor = np.exp(p.g[t])[:, None]
        decayed = factor * state if forward else state
        written = decayed + np.outer(p.k[t], p.v[t])
        x = p.e[t] @ (written if places.reads == "written" else decayed)
        values[t] = -x if places.removed else p.v[t] - x
        state = written + np.outer(p.r[t], -x) if places.removed else decayed + np.outer(p.k[t], values[t])
        o[t] = p.q[t] @ {"decayed": decayed, "written": written, "after": state}[places.output]
        state = state if forward else factor * state
    return o, state, values


def in_chunks(form: ChunkForm, places: DeltaPlaces, p: DeltaSample, size: int) -> tuple[Array, Array, Array]:
    """The same chunk by chunk: a system for each."""
    state, o, values = p.state, np.zeros((LENGTH, 2)), np.zeros((LENGTH, 2))
    begins = range(0, LENGTH, size)
    for begin in begins if form.forward else reversed(begins):
        at = slice(begin, min(begin + size, LENGTH))
        q, k, v, e, r = (x[at] for x in (p.q, p.k, p.v, p.e, p.r))
        factor = form.values(p.g[at])

        def pairs(x: Array, key: Array, strict: bool, weight: Array = factor["decay_mask"]) -> Array:
            everything = np.ones((len(x), len(x)), bool)
            present = np.tril(everything, -strict) if form.forward else np.triu(everything, strict)
            return (x[:, None] * key[None] * np.where(present[:, :, None], weight, 0.0)).sum(axis=2)

        system, passed = np.eye(len(q)) + pairs(e, r, True), (e * factor["output_decay"]) @ state
        if places.removed:
            u = -np.linalg.solve(system, passed + pairs(e, k, places.reads == "decayed") @ v)
            writers = [(k, v), (r, u)]
        else:
            u = np.linalg.solve(system, v - passed)
            writers = [(k, u)]
        o[at], values[at] = (q * factor["output_decay"]) @ state, u
        state = np.broadcast_to(factor["chunk_decay"], (1, 3)).T * state
        for (key, value), strict in zip(writers, places.strict, strict=False):
            o[at] += pairs(q, key, strict) @ value
            state = state + (key * factor["input_decay"]).T @ value
    return o, state, values


def check_delta(form: ChunkForm) -> ChunkReport:
    """Compares the chunked form with the recurrence, wherever states may be read. Raises DerivationError where they differ."""
    points, error = 0, 0.0
    for places in CASES:
        for p in delta_problems(places.removed):
            wanted = by_position(places, p, form.forward)
            for size in _SIZES:
                for x, y in zip(in_chunks(form, places, p, size), wanted, strict=True):
                    worst = float((np.abs(x - y) / np.maximum(1.0, np.abs(y).max())).max())
                    points, error = points + x.size, max(error, worst)
                    if not worst <= TOLERANCE:
                        raise DerivationError(f"the chunked delta rule of {size} positions differs from the recurrence by {worst:.1e}")
    return ChunkReport(points, error)
