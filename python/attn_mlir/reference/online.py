"""`attn.online`: blocks of keys one after the other, as kernels run it; optionally in parts that are merged."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, piece, pieces
from attn_mlir.reference.attention import row_output
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.presence import Presence, presence
from attn_mlir.reference.problem import OpInputs, Term, scores, terms, weighted_sum
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class State:
    """Row states [B, Hq, Sq, 1] and output accumulators [B, Hq, Sq, D]."""

    rows: list[Array]
    accumulators: list[Array]


@dataclasses.dataclass(frozen=True)
class _KvPass:
    p: OpInputs
    where: Presence
    s: list[Array]
    sources: list[Array]
    """For each accumulator the rows that it sums."""

    def run(self, begin: int, end: int) -> State:
        """All passes over the blocks that start in [begin, end)."""
        p = self.p
        rows = [self._full(x) for x in p.run(_piece(p, "attn.init"), p.indices()[:3])]
        state = State(rows, [np.zeros((*p.shape[:3], rows_.shape[3])) for rows_ in self.sources])
        for step in pieces(p.op, "attn.step"):
            for block, (lo, hi) in enumerate(p.blocks.keys(0, p.shape[3])):
                if begin <= lo < end:
                    state = self._step(step, state, block, lo, hi)
        return state

    def _step(self, step: ir.Operation, old: State, block: int, lo: int, hi: int) -> State:
        p, states = self.p, len(old.rows)
        present, visited = self.where.present[..., lo:hi], self.where.visited[block]
        b, h, q, _ = p.indices()
        yielded = p.run(step, [*(s[..., lo:hi] for s in self.s), b, h, q, *old.rows], present, present)
        rows = [np.where(visited, self._full(new), before) for new, before in zip(yielded[:states], old.rows, strict=True)]
        if len(yielded) == states:  # not the last pass
            return State(rows, old.accumulators)
        count = len(old.accumulators)
        weights, scales = yielded[states : states + count], yielded[states + count :]
        accumulators = []
        for acc, weight, scale, source in zip(old.accumulators, weights, scales, self.sources, strict=True):
            new = acc * self._full(scale) + weighted_sum(np.broadcast_to(weight, present.shape), source[:, :, lo:hi], present)
            accumulators.append(np.where(visited, new, acc))
        return State(rows, accumulators)

    def _full(self, value: Array) -> Array:
        """A value of each row, as [B, Hq, Sq, 1]."""
        return row_output(self.p, "state or scale", value, self.p.op)[..., None]


def online(p: OpInputs, split: int = 1) -> list[Array]:
    """The results of an `attn.online`. With `split` > 1 the blocks of keys are dealt to that many parts, which are merged."""
    where = presence(p)
    summed = terms(p, where.present)
    sources = [summed[i].rows for i in _sources(p)]
    kv_pass = _KvPass(p, where, scores(p, where.present), sources)
    limits = _parts(p, split)
    states = [kv_pass.run(begin, end) for begin, end in itertools.pairwise(limits)]
    state = states[0]
    for other in states[1:]:
        state = _merge(p, state, other)
    return _finalize(p, state, summed)


def _sources(p: OpInputs) -> list[int]:
    if "sources" in p.op.attributes:
        return list(p.op.attributes["sources"])
    return [0] * p.op.attributes["accumulators"].value


def _parts(p: OpInputs, split: int) -> list[int]:
    """Limits of the parts, as evenly as blocks allow; a part may be empty."""
    blocks = p.blocks.keys(0, p.shape[3])
    inner = [blocks[len(blocks) * i // split][0] if blocks else 0 for i in range(1, split)]
    return [0, *inner, p.shape[3]]


def _merge(p: OpInputs, a: State, b: State) -> State:
    states, count = len(a.rows), len(a.accumulators)
    yielded = p.run(_piece(p, "attn.merge"), [*a.rows, *b.rows])
    scales = [np.broadcast_to(x, (*p.shape[:3], 1)) for x in yielded[states:]]
    accumulators = [x * sx + y * sy for x, sx, y, sy in zip(a.accumulators, scales[:count], b.accumulators, scales[count:], strict=True)]
    return State([np.broadcast_to(x, (*p.shape[:3], 1)) for x in yielded[:states]], accumulators)


def _finalize(p: OpInputs, state: State, summed: Sequence[Term]) -> list[Array]:
    finalize = _piece(p, "attn.finalize")
    b, h, q, _ = p.indices()
    yielded = p.run(finalize, [*state.accumulators, b, h, q, *state.rows])
    dims = {term.output: term.rows.shape[3] for term in summed}
    o, *more = (_sized(finalize, yielded[n], (*p.shape[:3], dims[n])) for n in range(len(dims)))
    outputs = yielded[len(dims) :]
    names: Sequence[str] = [name.value for name in p.op.attributes["outputs"]]
    rows = [row_output(p, name, value, finalize) for name, value in zip(names, outputs, strict=True)]
    return [p.keep(o, more), *rows]


def _sized(finalize: ir.Operation, value: Array, shape: tuple[int, ...]) -> Array:
    try:
        return np.array(np.broadcast_to(value, shape))
    except ValueError:
        raise EvaluationError(f"'attn.finalize' makes an output {list(shape)} of an array {list(value.shape)}", finalize.location) from None


def _piece(p: OpInputs, name: str) -> ir.Operation:
    found = piece(p.op, name)
    if found is None:
        raise EvaluationError(f"'{p.op.name}' has no '{name}', which this way of running it needs", p.op.location)
    return found


def merges(op: ir.Operation) -> bool:
    """Whether an `attn.online` can be run in parts."""
    found = piece(op, "attn.merge")
    return found is not None and len(block_of(found).arguments) > 0
