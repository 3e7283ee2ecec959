"""Linear attention: `attn.linear_attention` position by position, `attn.chunk` chunk by chunk, and what their gradients need."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.dialects.attn.linear_recurrence import state_shape
from attn_mlir.dialects.attn.linear_segments import identity_of, segment_of
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.reference.delta import Delta, delta_of, own_terms, written
from attn_mlir.reference.delta import step as delta_step
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.interpreter import EvaluationFrame
from attn_mlir.reference.problem import grid
from attn_mlir.reference.scalar import Array

OPS = ("attn.linear_attention", "attn.chunk")
_OPERANDS = ("q", "k", "v", "decay", "initial_state", "factor", "offsets")


def named_operands(op: ir.Operation, values: Sequence[object]) -> dict[str, object]:
    """What stands for each operand of `op` that is there, by its name; `values` are in the operands' order."""
    present = [size > 0 for size in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])]
    return dict(zip([name for name, there in zip(_OPERANDS, present, strict=True) if there], values, strict=True))


@dataclasses.dataclass(frozen=True)
class SequencePart:
    """Positions [begin, end) of one batch entry, or of one part of it by offsets; `number` is that of its initial state."""

    number: int
    batch: int
    begin: int
    end: int
    first_state: int
    """The number of its first state among those of its batch entry."""


@dataclasses.dataclass(frozen=True)
class ReferenceScan:
    """The inputs of a linear attention after their mods, with all H heads. States are [H, K, V], whatever the op's `state` says."""

    op: ir.Operation
    frame: EvaluationFrame
    q: Array
    k: Array
    v: Array
    g: Array
    """[B, H, T, 1], or with channels [B, H, T, K] or [B, H, T, V]."""
    initial: Array
    factor: Array | None
    own: Array
    """v as it comes."""
    sequences: list[SequencePart]
    delta: Delta

    @property
    def forward(self) -> bool:
        return ir.StringAttr(self.op.attributes["direction"]).value == "forward"

    @property
    def channels(self) -> str:
        return ir.StringAttr(self.op.attributes["channels"]).value

    @property
    def interval(self) -> int | None:
        return interval_of(self.op)

    def of_state(self, factor: Array) -> Array:
        """Factors [H, 1], [H, K] or [H, V] as what a state [H, K, V] is multiplied by."""
        return factor[:, None, :] if self.channels == "value" else factor[:, :, None]

    def run(self, name: str, arguments: Sequence[Array]) -> Array:
        """What one of the four factor pieces gives."""
        found = piece(self.op, name)
        if found is None:
            raise EvaluationError(f"'{self.op.name}' has no '{name}'", self.op.location)
        (result,) = self.frame.with_().run(block_of(found), arguments)
        return np.broadcast_to(result, np.broadcast_shapes(*(a.shape for a in arguments)))


def linear_attention(op: ir.Operation, frame: EvaluationFrame, args: list[Array]) -> list[Array]:
    """The results of an `attn.linear_attention`, by its recurrence."""
    return _results(scan_of(op, frame, args), _recurrence)


def chunk(op: ir.Operation, frame: EvaluationFrame, args: list[Array]) -> list[Array]:
    """The results of an `attn.chunk`, by its four pieces."""
    return _results(scan_of(op, frame, args), _chunks)


def scan_of(op: ir.Operation, frame: EvaluationFrame, args: list[Array]) -> ReferenceScan:
    """Checks the operands of `op` and applies its mods."""
    given = {name: np.asarray(value) for name, value in named_operands(op, args).items()}
    q, k, v = (given[name] for name in "qkv")
    counted = [q, k, v, given.get("decay", v)][ir.IntegerAttr(op.attributes["heads"]).value]
    batch, heads, length = counted.shape[:3]
    dims = {"none": 1, "key": k.shape[3], "value": v.shape[3]}[ir.StringAttr(op.attributes["channels"]).value]
    decay = given.get("decay", np.zeros((batch, heads, length, dims)))
    decay = decay[..., None] if decay.ndim == 3 else decay
    for name, x in (("q", q), ("k", k), ("v", v), ("decay", decay), ("factor", given.get("factor", v))):
        if (x.shape[0], x.shape[2]) != (batch, length) or x.shape[1] == 0 or heads % x.shape[1]:
            message = f"{name} {x.shape} does not fit {batch} batch entries of {heads} heads and {length} positions"
            raise EvaluationError(message, op.location)

    def all_heads(x: Array) -> Array:
        return np.repeat(x, heads // x.shape[1], axis=1)

    mods = {name: all_heads(modified(op, frame, f"attn.{mod}", given[name])) for name, mod in zip("qkv", _MODS, strict=True)}
    g = modified(op, frame, "attn.decay", all_heads(decay))
    sequences = _sequences(op, batch, length, given.get("offsets"))
    factor = all_heads(given["factor"]) if "factor" in given else None
    initial, delta = _initial(op, heads, len(sequences), given), delta_of(op, frame, (batch, heads, length))
    return ReferenceScan(op, frame, mods["q"], mods["k"], mods["v"], g, initial, factor, all_heads(v), sequences, delta)


_MODS = ("query", "key", "value")


def modified(op: ir.Operation, frame: EvaluationFrame, name: str, x: Array) -> Array:
    """x, [B, h, T, D], after the piece called `name`, if there is one."""
    mod = piece(op, name)
    if mod is None:
        return x
    (result,) = frame.with_().run(block_of(mod), [x, *grid(x.shape)])
    return np.broadcast_to(result, x.shape)


def _initial(op: ir.Operation, heads: int, count: int, given: dict[str, Array]) -> Array:
    rows, columns = state_shape(op)
    first = identity_of(op)
    start = np.zeros((rows, columns)) if first is None else np.eye(rows, columns, -first)
    initial = given.get("initial_state", np.broadcast_to(start, (count, heads, rows, columns)))
    if "starts" in op.attributes:
        initial = np.moveaxis(initial.reshape(initial.shape[0], heads, -1, rows, columns), 1, 2).reshape(-1, heads, rows, columns)
    if initial.shape != (count, heads, rows, columns):
        raise EvaluationError(f"initial_state {initial.shape} does not fit {count} sequences of {heads} heads", op.location)
    return _turned(op, initial)


def _turned(op: ir.Operation, states: Array) -> Array:
    """States between their form in the op, [..., K, V] or [..., V, K], and [..., K, V]."""
    return states if ir.StringAttr(op.attributes["state"]).value == "kv" else np.swapaxes(states, -1, -2)


def _sequences(op: ir.Operation, batch: int, length: int, offsets: Array | None) -> list[SequencePart]:
    interval = interval_of(op) or 1
    if offsets is None:
        segment = segment_of(op)
        if segment is None:
            return [SequencePart(b, b, 0, length, 0) for b in range(batch)]
        begins = range(0, length, segment)
        numbered = enumerate(itertools.product(range(batch), begins))
        return [SequencePart(n, b, begin, min(begin + segment, length), begin // interval) for n, (b, begin) in numbered]
    if batch != 1 or len(offsets) < 1 or offsets[0] < 0 or offsets[-1] > length or (np.diff(offsets) < 0).any():
        message = f"offsets {offsets.tolist()} do not cut one batch entry of {length} positions into sequences (batch is {batch})"
        raise EvaluationError(message, op.location)
    pairs = itertools.pairwise(offsets)
    return [SequencePart(n, 0, int(b), int(e), int(b) // interval + n) for n, (b, e) in enumerate(pairs)]


@dataclasses.dataclass(frozen=True)
class _Step:
    """o of some positions, [H, n, V], and the state after them; where `boundary` is set, the state as seen from there."""

    outputs: tuple[slice, Array] | None
    state: Array
    boundary: int | None = None


def _results(scan: ReferenceScan, steps: Callable[[ReferenceScan, SequencePart], Iterator[_Step]]) -> list[Array]:
    op, interval = scan.op, scan.interval
    batch, heads, length, columns = scan.v.shape
    o = np.zeros((batch, heads, length, columns))
    final = np.zeros_like(scan.initial)
    whole = "offsets" not in named_operands(op, list(op.operands))
    count = 0 if interval is None else -(-length // interval) if whole else length // interval + len(scan.sequences)
    states = np.full((batch, heads, count, scan.k.shape[3], columns), np.nan)  # Between sequences some rows hold no state.
    ends = states.copy()
    for sequence in scan.sequences:
        final[sequence.number] = scan.initial[sequence.number]
        for step in steps(scan, sequence):
            if step.outputs is not None:
                positions, values = step.outputs
                o[sequence.batch, :, positions] = values
            final[sequence.number] = step.state
            if interval is not None and step.boundary is not None:
                place = step.boundary - sequence.begin
                if place % interval == 0 and step.boundary < sequence.end:
                    states[sequence.batch, :, sequence.first_state + place // interval] = step.state
                if place > 0 and (place % interval == 0 or step.boundary == sequence.end):
                    ends[sequence.batch, :, sequence.first_state + -(-place // interval) - 1] = step.state
    found = {"final_state": _turned(op, final)}
    if "entering" in op.attributes and not scan.forward:
        states = ends
    if scan.factor is not None:
        here = scan.run("attn.decay_mask", [np.zeros(1), np.zeros(1)]) if piece(op, "attn.decay_mask") is not None else 1.0
        own = own_terms(scan.delta, scan.q, scan.k, scan.v) * here
        products = (o - own) * scan.factor
        if "crossing" in op.attributes:
            products, states = _crossing(scan, products, states if scan.forward else ends)
        found["diagonal"] = (own * scan.factor).sum(axis=3)
        found["products"] = products.sum(axis=3) if scan.channels == "none" else products
    turned = _turned(op, states)
    found["states"] = turned.reshape(batch, heads, count * turned.shape[3], turned.shape[4])
    o = modified(op, scan.frame, "attn.result", o)
    skip = piece(op, "attn.skip")
    if skip is not None:
        (factor,) = scan.frame.with_().run(block_of(skip), grid(o.shape[:3]))
        o = o + np.broadcast_to(factor, o.shape[:3])[..., None] * scan.own
    return [o, *(found[ir.StringAttr(name).value] for name in ir.ArrayAttr(op.attributes["outputs"]))]


def _crossing(scan: ReferenceScan, products: Array, states: Array) -> tuple[Array, Array]:
    """The `crossing` products, [B, H, T, V], and states, [B, H, N, K, V], from those without and the states before each interval (backward:
    after it).

    Forward, pairs of positions of an interval are all there that end at t or after it; backward, those that begin there are taken off.
    """
    found, kept = np.zeros_like(products), states.copy()
    for at in scan.sequences:
        for n, begin in enumerate(range(at.begin, at.end, scan.interval or 1)):
            positions = slice(begin, min(begin + (scan.interval or 1), at.end))
            x, g = products[at.batch, :, positions], scan.g[at.batch, :, positions]
            rest = np.cumsum(x[:, ::-1], axis=1)[:, ::-1]
            number = at.first_state + n
            if scan.forward:
                found[at.batch, :, positions] = rest
                continue
            leave = np.exp(g.sum(axis=1, keepdims=True) - np.cumsum(g, axis=1))
            of_state = np.einsum("htk,hkv->htv", scan.q[at.batch, :, positions], states[at.batch, :, number]) * leave
            kept[at.batch, :, number] = scan.of_state(np.exp(g.sum(axis=1))) * states[at.batch, :, number]
            beyond = of_state * scan.factor[at.batch, :, positions] if scan.factor is not None else of_state
            found[at.batch, :, positions] = beyond.sum(axis=1, keepdims=True) - rest
    return found, kept


def _recurrence(scan: ReferenceScan, at: SequencePart) -> Iterator[_Step]:
    q, k, v, g = (x[at.batch] for x in (scan.q, scan.k, scan.v, scan.g))
    state = scan.initial[at.number]
    yield _Step(None, state, at.begin if scan.forward else at.end)
    for t in range(at.begin, at.end) if scan.forward else reversed(range(at.begin, at.end)):
        factor = scan.of_state(np.exp(g[:, t]))
        if scan.forward:
            state = factor * state
        o, state = delta_step(scan.delta.at((at.batch, slice(None), t)), q[:, t], k[:, t], v[:, t], state)
        if not scan.forward:
            state = factor * state
        yield _Step((slice(t, t + 1), o[:, None]), state, t + 1 if scan.forward else t)


def _chunks(scan: ReferenceScan, at: SequencePart) -> Iterator[_Step]:
    size = ir.IntegerAttr(scan.op.attributes["chunk"]).value
    state = scan.initial[at.number]
    begins = range(at.begin, at.end, size)
    yield _Step(None, state, at.begin if scan.forward else at.end)
    for begin in begins if scan.forward else reversed(begins):
        end = min(begin + size, at.end)
        o, state = _one_chunk(scan, at.batch, slice(begin, end), state)
        yield _Step((slice(begin, end), o), state, end if scan.forward else begin)


def _one_chunk(scan: ReferenceScan, batch: int, positions: slice, state: Array) -> tuple[Array, Array]:
    """o of the positions, [H, C, V], and the new state."""
    q, k, v, g = (x[batch, :, positions] for x in (scan.q, scan.k, scan.v, scan.g))
    prefix = np.cumsum(g, axis=1)
    total = prefix[:, -1:]
    places = [prefix, np.broadcast_to(total, prefix.shape)]
    output_decay, input_decay = (scan.run(f"attn.{name}", places) for name in ("output_decay", "input_decay"))
    everything = np.ones((q.shape[1], q.shape[1]), bool)
    shape = (*prefix.shape[:2], *prefix.shape[1:])
    factor = scan.run("attn.decay_mask", [np.broadcast_to(x, shape) for x in (prefix[:, :, None], prefix[:, None])])

    def weight(strict: bool) -> Array:
        present = np.tril(everything, -1 if strict else 0) if scan.forward else np.triu(everything, 1 if strict else 0)
        return np.where(present[None, :, :, None], factor, 0.0)

    def pairs(x: Array, key: Array, strict: bool) -> Array:
        wide = np.broadcast_to(weight(strict), (*factor.shape[:3], q.shape[2]))
        return np.einsum("htk,hsk,htsk->hts", x, key, wide, optimize=True)

    chunk_decay, delta = scan.of_state(scan.run("attn.chunk_decay", [total[:, 0]])), scan.delta.at((batch, slice(None), positions))
    by_value = scan.channels == "value"

    def passed(x: Array) -> Array:
        return np.einsum("htk,hkv->htv", x, state) * output_decay if by_value else np.einsum("htk,hkv->htv", x * output_decay, state)

    writers, values = written(delta, k, v, passed, pairs)
    o, following = passed(q), chunk_decay * state
    for (key, value), strict in zip(writers, delta.strict, strict=False):
        if by_value:
            o = o + np.einsum("htk,hsk,htsv,hsv->htv", q, key, weight(strict), value, optimize=True)
            following = following + np.einsum("hsk,hsv,hsv->hkv", key, input_decay, value)
        else:
            o = o + pairs(q, key, strict) @ value
            following = following + np.einsum("hsk,hsv->hkv", key * input_decay, value)
    return values if delta.output == "values" else o, following


def head_sum(op: ir.Operation, x: Array, like: Array) -> Array:
    """The sums over groups of heads."""
    heads = like.shape[1]
    if heads == 0 or x.shape[1] % heads:
        raise EvaluationError(f"{x.shape[1]} heads are not a multiple of {heads}", op.location)
    return x.reshape(x.shape[0], heads, -1, *x.shape[2:]).sum(axis=2)


def decay_gradient(op: ir.Operation, args: Sequence[Array]) -> Array:
    """The gradient of the log decays."""
    a, b, s, e, *offsets = args
    interval, rows = (ir.IntegerAttr(op.attributes[name]).value for name in ("interval", "rows"))
    if a.shape != b.shape or s.shape != e.shape:
        raise EvaluationError(f"products {a.shape} and {b.shape}, states {s.shape} and {e.shape} do not fit", op.location)
    batch, heads, length = a.shape[:3]
    boundary = (s * e).sum(axis=3).reshape(batch, heads, -1, rows)
    boundary = boundary.sum(axis=3) if a.ndim == 3 else boundary
    crossing = "crossing" in op.attributes
    found, change = np.zeros_like(a), a + b if crossing else b - a
    for at in _sequences(op, batch, length, offsets[0] if offsets else None):
        for n, begin in enumerate(range(at.begin, at.end, interval)):
            part = change[at.batch, :, begin : min(begin + interval, at.end)]
            sums = part if crossing else np.cumsum(part, axis=1) - part
            found[at.batch, :, begin : begin + part.shape[1]] = sums + boundary[at.batch, :, at.first_state + n][:, None]
    return found


def decay_gradient_sum(op: ir.Operation, args: Sequence[Array]) -> Array:
    """The same of two scans in each direction."""
    a, a_2, b, b_2, s, e, e_2 = args
    if not (a.shape == a_2.shape and b.shape == b_2.shape and e.shape == e_2.shape):
        shapes = [x.shape for x in (a, a_2, b, b_2, e, e_2)]
        raise EvaluationError(f"products and states of shapes {shapes} do not fit", op.location)
    return decay_gradient(op, [a + a_2, b + b_2, s, e + e_2])
