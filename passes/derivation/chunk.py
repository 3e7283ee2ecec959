"""The chunked form of a linear attention, derived from its recurrence.

In one step from position to position the state is multiplied by exp(g). Over several steps the exponents add up, so that between two
places of the sequence the factor is exp of the log decays that are passed on the way. Measured from the first position of a chunk, place
x has passed the prefix sum P(x): 0 at the chunk's beginning, `total` at its end. So on the way from x to y the factor is

    exp(P(y) - P(x))   from the first position to the last,    exp(P(x) - P(y))   in the other direction

and it is the product of the factors from x to any place between and from there to y. With the boundary of the chunk between them, the
state that a chunk begins with replaces all positions before it. Sums of decays g <= 0 grow in one direction only: every exponent is <= 0.
"""

import functools
from dataclasses import dataclass

import numpy as np

from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Array, Evaluator
from attn_mlir.passes.derivation.expr import Expr, Graph

PIECES = {
    "chunk_decay": ("total",),
    "input_decay": ("prefix", "total"),
    "output_decay": ("prefix", "total"),
    "decay_mask": ("prefix_t", "prefix_s"),
}
LENGTH = 37
SIZES = (1, 4, 16, 37, 64)
TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False)
class PrefixSums:
    """Prefix sums of the log decays, as expressions, at the places that a chunk's formulas connect."""

    graph: Graph

    @property
    def begin(self) -> Expr:
        return self.graph.const(0.0)

    @property
    def end(self) -> Expr:
        return self.graph.leaf("total")

    @property
    def position(self) -> Expr:
        return self.graph.leaf("prefix")

    @property
    def position_t(self) -> Expr:
        return self.graph.leaf("prefix", 1)

    @property
    def position_s(self) -> Expr:
        return self.graph.leaf("prefix", 2)

    @property
    def names(self) -> dict[Expr, str]:
        """What the leaves are called."""
        return {self.end: "total", self.position: "prefix", self.position_t: "prefix_t", self.position_s: "prefix_s"}


@dataclass(frozen=True, eq=False)
class ChunkForm:
    """The four factors of the chunked form, as expressions."""

    places: PrefixSums
    forward: bool
    factors: dict[str, Expr]

    def leaves(self, name: str) -> list[Expr]:
        """The arguments of a factor."""
        by_name = {text: leaf for leaf, text in self.places.names.items()}
        return [by_name[argument] for argument in PIECES[name]]

    def values(self, g: Array) -> dict[str, Array]:
        """The factors of a chunk with these log decays."""
        prefix, places = np.cumsum(g, axis=0), self.places
        env = {places.position: prefix, places.end: prefix[-1:], places.position_t: prefix[:, None], places.position_s: prefix[None]}
        return {name: Evaluator(env)(node) for name, node in self.factors.items()}


@dataclass(frozen=True)
class ChunkReport:
    """`points` values compared, and the largest relative error."""

    points: int
    error: float


@functools.cache
def derive_chunks(forward: bool) -> tuple[ChunkForm, ChunkReport]:
    """The chunked form of a scan in one direction, confirmed on numbers. Raises DerivationError where it is not."""
    places = PrefixSums(Graph())

    def between(origin: Expr, to: Expr) -> Expr:
        g = places.graph
        return g.unary("math.exp", g.sub(to, origin) if forward else g.sub(origin, to))

    before, after = (places.begin, places.end) if forward else (places.end, places.begin)
    factors = {
        "chunk_decay": between(before, after),
        "input_decay": between(places.position, after),
        "output_decay": between(before, places.position),
        "decay_mask": between(places.position_s, places.position_t),
    }
    form = ChunkForm(places, forward, factors)
    return form, check_chunks(form)


@dataclass(frozen=True, eq=False)
class Sample:
    """A random linear attention of one head: q, k [T, 3], v [T, 2], log decays [T, 1] or [T, 3], a state [3, 2]."""

    q: Array
    k: Array
    v: Array
    g: Array
    state: Array


def problems(seed: int = 0) -> list[Sample]:
    """Decays near 1, in the middle, so strong that nothing is left, none, mixed ones, growth; for heads and for channels."""
    rng = np.random.default_rng(seed)
    drawn = []
    for dims in (1, 3):
        shape = (LENGTH, dims)
        uniform = -rng.random(shape)
        strong = np.where(rng.random(shape) < 0.2, -104.0, -rng.random(shape))
        decays = (1e-3 * uniform, uniform, 10 * uniform, 0 * uniform, strong, 0.1 * rng.normal(size=shape))
        drawn += [Sample(*_inputs(rng), g, rng.normal(size=(3, 2))) for g in decays]
    return drawn


def _inputs(rng: np.random.Generator) -> tuple[Array, Array, Array]:
    q, k, v = (rng.normal(size=(LENGTH, d)) for d in (3, 3, 2))
    return q, k, v


def recurrence(p: Sample, forward: bool) -> tuple[Array, Array]:
    """o and the last state, position by position."""
    length = len(p.q)
    state, o = p.state, np.zeros((length, 2))
    for t in range(length) if forward else reversed(range(length)):
        decayed = np.exp(p.g[t])[:, None]
        state = (decayed * state if forward else state) + np.outer(p.k[t], p.v[t])
        o[t] = p.q[t] @ state
        state = state if forward else decayed * state
    return o, state


def chunked(form: ChunkForm, p: Sample, size: int) -> tuple[Array, Array, Array]:
    """o and the last state, chunk by chunk, and the largest factor that occurs."""
    state, o, largest = p.state, np.zeros((LENGTH, 2)), 0.0
    begins = range(0, LENGTH, size)
    for begin in begins if form.forward else reversed(begins):
        at = slice(begin, min(begin + size, LENGTH))
        q, k, v, found = p.q[at], p.k[at], p.v[at], form.values(p.g[at])
        present = np.tril(np.ones((len(q), len(q)), bool))
        present = (present if form.forward else present.T)[:, :, None]
        weight = np.where(present, found["decay_mask"], 0.0)
        largest = max(largest, *(float(x.max()) for x in (weight, found["chunk_decay"], found["input_decay"], found["output_decay"])))
        o[at] = (q * found["output_decay"]) @ state + ((q[:, None] * k * weight).sum(axis=2)) @ v
        state = np.broadcast_to(found["chunk_decay"], (1, 3)).T * state + (k * found["input_decay"]).T @ v
    return o, state, np.asarray(largest)


def check_chunks(form: ChunkForm) -> ChunkReport:
    """Compares the chunked form with the recurrence; where decays are at most 1, no factor may be above 1."""
    points, error = 0, 0.0
    for p in problems():
        wanted = recurrence(p, form.forward)
        for size in SIZES:
            *got, largest = chunked(form, p, size)
            if (p.g <= 0).all() and not largest <= 1 + TOLERANCE:
                raise DerivationError(f"a factor of the chunked form grows to {largest:.1e} although no decay is above 1")
            for x, y in zip(got, wanted, strict=True):
                worst = float((np.abs(x - y) / np.maximum(1.0, np.abs(y).max())).max())
                points, error = points + x.size, max(error, worst)
                if not worst <= TOLERANCE:
                    raise DerivationError(f"the chunked form of {size} positions differs from the recurrence by {worst:.1e}")
    return ChunkReport(points, error)
