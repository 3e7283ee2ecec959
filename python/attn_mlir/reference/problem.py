"""One attention as arrays: inputs after their mods, scores, and which positions are present."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from attn_mlir.dialects.attn.partners import partner_of
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, piece, pieces
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.interpreter import EvaluationFrame
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class Blocking:
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
class OpInputs:
    """The inputs of an attention op. Arrays over positions broadcast to [B, Hq, Sq, Skv]."""

    op: ir.Operation
    frame: EvaluationFrame
    q: Array
    k: Array
    v: Array
    blocks: Blocking
    number: int = 0
    """That of the first batch entry: of a sequence of packed tensors."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[B, Hq, Sq, Skv]."""
        return (*self.q.shape[:3], self.k.shape[2])

    @property
    def group(self) -> int:
        """Query heads per key head."""
        return self.q.shape[1] // self.k.shape[1]

    def keep(self, o: Array, more: list[Array]) -> Array:
        """Remembers the outputs after o where `attn.output` finds them; returns o."""
        self.frame.outputs[self.op.results[0]] = more
        return o

    def indices(self) -> list[Array]:
        """b, h, q_idx and kv_idx."""
        return grid(self.shape, self.number)

    def run(self, piece_: ir.Operation, arguments: Sequence[Array], live: Array | None = None, present: Array | None = None) -> list[Array]:
        """Evaluates a piece on arrays."""
        return self.frame.with_(live, present).run(block_of(piece_), arguments)


def problem(op: ir.Operation, frame: EvaluationFrame, args: list[Array], blocks: Blocking) -> OpInputs:
    """Checks the operands of `op`."""
    q, k, v = args
    _check_shapes(op, q, k, v)
    return OpInputs(op, frame, q, k, v, blocks)


def _check_shapes(op: ir.Operation, q: Array, k: Array, v: Array) -> None:
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        raise EvaluationError(f"shapes do not fit: q {q.shape}, k {k.shape}, v {v.shape}", op.location)
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise EvaluationError(f"{q.shape[1]} query heads are not a multiple of {k.shape[1]} key heads", op.location)


def pairs_problem(op: ir.Operation, frame: EvaluationFrame, blocks: Blocking) -> OpInputs:
    """An `attn.pairs` as a problem: its first product takes the place of q k^T, and its key tensor that of v, too."""
    found = [[frame.values[value] for value in product.operands] for product in pieces(op, "attn.product")]
    (q, k), *others = found
    _check_shapes(op, q, k, k)
    for query, key in others:
        if query.shape[:3] != q.shape[:3] or key.shape[:3] != k.shape[:3]:
            raise EvaluationError(f"products of different shapes: {q.shape}, {k.shape} and {query.shape}, {key.shape}", op.location)
    return OpInputs(op, frame, q, k, k, blocks)


def grid(shape: Sequence[int], first: int = 0) -> list[Array]:
    """The indices along each dimension, of which the first one starts at `first`."""
    found = [np.arange(n).reshape([-1 if i == axis else 1 for i in range(len(shape))]) for axis, n in enumerate(shape)]
    return [found[0] + first, *found[1:]]


def modified(p: OpInputs, name: str, x: Array, live: Array | None) -> Array:
    """An input after its mod, `attn.query`, `attn.key` or `attn.value`."""
    mod = piece(p.op, name)
    if mod is None:
        return x
    partner = partner_of(mod)
    partners = [] if partner is None else [x[..., [partner.of(d) for d in range(x.shape[3])]]]
    (result,) = p.run(mod, [x, *partners, *grid(x.shape, p.number)], live)
    return np.broadcast_to(result, x.shape)


def product(p: OpInputs, query: Array, key: Array) -> Array:
    """The products of every query with every key of its head, [B, Hq, Sq, Skv]."""
    if query.shape[:3] != p.q.shape[:3] or key.shape[:3] != p.k.shape[:3]:
        raise EvaluationError(f"a product of {query.shape} and {key.shape} does not fit {p.q.shape} and {p.k.shape}", p.op.location)
    return query @ np.swapaxes(np.repeat(key, p.group, axis=1), 2, 3)


def further_products(p: OpInputs) -> list[Array]:
    """The products of the `attn.product` pieces."""
    return [product(p, *(p.frame.values[value] for value in x.operands)) for x in pieces(p.op, "attn.product")]


def scores(p: OpInputs, present: Array) -> list[Array]:
    """The scores, each [B, Hq, Sq, Skv]."""
    used = _used(p, present)
    x = [product(p, modified(p, "attn.query", p.q, None), modified(p, "attn.key", p.k, used)), *further_products(p)]
    mod = piece(p.op, "attn.score")
    if mod is not None:
        x = p.run(mod, [*x, *p.indices()], present)
    return [np.broadcast_to(s, p.shape) for s in x]


@dataclasses.dataclass(frozen=True)
class Term:
    """Rows to be summed, [B, Hq, Skv, D], and the number of the output that they are summed into."""

    rows: Array
    output: int


def terms(p: OpInputs, present: Array) -> list[Term]:
    """v after its mod, for output 0, and the tensors of the `attn.term` pieces."""
    v = modified(p, "attn.value", p.v, _used(p, present))
    found = [Term(np.repeat(v, p.group, axis=1), 0)]
    for term in pieces(p.op, "attn.term"):
        value = v if term.operands[0] == p.op.operands[2] else p.frame.values[term.operands[0]]
        if value.shape[:3] != p.k.shape[:3]:
            raise EvaluationError(f"a term of shape {value.shape} does not fit keys of shape {p.k.shape}", term.location)
        found.append(Term(np.repeat(value, p.group, axis=1), term.attributes["output"].value))
    return found


def _used(p: OpInputs, present: Array) -> Array:
    """Which keys some query sees, [B, Hkv, Skv, 1]."""
    b, hq, sq, skv = p.shape
    return np.any(present.reshape(b, hq // p.group, p.group, sq, skv), axis=(2, 3)).reshape(b, hq // p.group, skv, 1)


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
