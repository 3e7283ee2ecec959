"""Which keys a block of query rows can see, in closed form: the mask solved for kv.

Every condition that is affine in kv, also below //, abs, min, max and select, is solved for it. The result is a
`KeyInterval`: an interval outside of which the condition is false for all rows of the block, and one inside which it is
true for all of them. Conjunctions intersect both; disjunctions take the hull of the first and join the second.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

from attn_mlir.passes.intervals.box import Box
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.nodes import Bound, depends_on, terms_of
from attn_mlir.passes.intervals.saturate import saturated

FREE, UP, DOWN, INTERVAL, LOOSE = "free", "up", "down", "interval", "loose"

_Ends = tuple[Bound | None, Bound | None]


class KeyInterval(NamedTuple):
    """Half-open intervals of kv; None is the end of all keys on that side.

    `shape` says what the keys of one row look like: all or none, a half line, an interval, or anything else (loose:
    then the bounds say less than three-valued evaluation of a block would).
    """

    may_low: Bound | None
    may_high: Bound | None
    must_low: Bound | None
    must_high: Bound | None
    shape: str


class Solver:
    """Solves boolean expressions for `kv` in [0, skv), over the rows of `box`."""

    def __init__(self, pool: Pool, kv: Bound, skv: Bound, box: Box) -> None:
        self._pool, self._kv, self._skv, self._box = pool, kv, skv, box
        self._zero = pool.lift(0)
        self._solved: dict[Bound, KeyInterval] = {}
        self._anything = KeyInterval(None, None, skv, self._zero, LOOSE)

    def solve(self, node: Bound) -> KeyInterval:
        """The keys for which `node` holds."""
        found = self._solved.get(node)
        if found is None:
            found = self._solved[node] = self._solve(node)
        return found

    def _solve(self, node: Bound) -> KeyInterval:
        if not depends_on(node, self._kv):  # an unknown may depend on kv, but nothing is known of it anyway
            return self._free(node)
        match node.op:
            case "and":
                return functools.reduce(self._intersect, map(self.solve, node.args))
            case "or":
                return self._either(node.args)
            case "ge0":
                return self._positive(node.args[0])
            case "eq0":
                return self._intersect(self._positive(node.args[0]), self._positive(-node.args[0]))
            case "not" if node.args[0].op == "eq0":
                d = node.args[0].args[0]
                return self._unite(self._positive(d - 1), self._positive(-d - 1))
        return self._anything

    def _either(self, nodes: Sequence[Bound]) -> KeyInterval:
        """Where a condition is the same for all pairs, as that a window has no limit, a block sees all keys or what the others say."""
        same = [node for node in nodes if not depends_on(node, self._kv) and self._is_same(node)]
        others = [node for node in nodes if node not in same]
        if not same or not others:
            return functools.reduce(self._unite, map(self.solve, nodes))
        pool, found = self._pool, functools.reduce(self._unite, map(self.solve, others))
        all_ = pool.either(self._box.truth(node).can_be_true for node in same)
        low, high, full_low, full_high = (
            None if end is None else pool.select(all_, whole, end)
            for end, whole in zip(found[:4], (self._zero, self._skv, self._zero, self._skv), strict=True)
        )
        return KeyInterval(low, high, full_low, full_high, found.shape)

    def _is_same(self, node: Bound) -> bool:
        truth = self._box.truth(node)
        return truth.can_be_false is self._pool.negation(truth.can_be_true)

    def _free(self, node: Bound) -> KeyInterval:
        truth = self._box.truth(node)
        may = self._pool.select(truth.can_be_true, self._skv, self._zero)
        must = self._pool.select(truth.can_be_false, self._zero, self._skv)
        return KeyInterval(None, None if may is self._skv else may, None, None if must is self._skv else must, FREE)

    def _positive(self, d: Bound) -> KeyInterval:
        """d >= 0, where one term of d depends on kv."""
        inside = [(atom, k) for atom, k in terms_of(d)[1] if depends_on(atom, self._kv)]
        if not inside:
            return self._free(self._pool.at_least(d, 0))
        if len(inside) > 1:
            return self._anything
        (atom, k), pool = inside[0], self._pool
        rest = d - pool.total([(atom, k)])
        return self._above(atom, -(rest // k)) if k > 0 else self._below(atom, rest // -k)

    def _above(self, atom: Bound, bound: Bound) -> KeyInterval:
        """atom >= bound, for a bound without kv."""
        pool = self._pool
        if atom is self._kv:
            low, high = self._box.interval(bound)
            return KeyInterval(low, None, self._skv if high is None else high, None, UP)
        match atom.op:
            case "floordiv" if self._is_divisor(atom.args[1]):
                return self._positive(atom.args[0] - bound * atom.args[1])
            case "mul":
                factor, other = self._factor(atom)
                return self._anything if factor is None else self._positive(other + (-bound) // factor)
            case "abs":
                return self.solve(pool.at_least(atom.args[0], bound) | pool.at_least(-atom.args[0], bound))
            case "max":
                return self.solve(pool.either(pool.at_least(a, bound) for a in atom.args))
            case "min":
                return self.solve(pool.both(pool.at_least(a, bound) for a in atom.args))
            case "select":
                condition, a, b = atom.args
                return self.solve(pool.select(condition, pool.at_least(a, bound), pool.at_least(b, bound)))
        return self._anything

    def _below(self, atom: Bound, bound: Bound) -> KeyInterval:
        """atom <= bound, for a bound without kv."""
        pool = self._pool
        if atom is self._kv:
            low, high = self._box.interval(bound + 1)
            return KeyInterval(None, high, None, self._zero if low is None else low, DOWN)
        match atom.op:
            case "floordiv" if self._is_divisor(atom.args[1]):
                divisor = atom.args[1]
                return self._positive(bound * divisor + divisor - 1 - atom.args[0])
            case "mul":
                factor, other = self._factor(atom)
                return self._anything if factor is None else self._positive(bound // factor - other)
            case "abs":
                return self.solve(pool.at_least(bound, atom.args[0]) & pool.at_least(bound, -atom.args[0]))
            case "max":
                return self.solve(pool.both(pool.at_least(bound, a) for a in atom.args))
            case "min":
                return self.solve(pool.either(pool.at_least(bound, a) for a in atom.args))
            case "select":
                condition, a, b = atom.args
                return self.solve(pool.select(condition, pool.at_least(bound, a), pool.at_least(bound, b)))
        return self._anything

    def _is_divisor(self, node: Bound) -> bool:
        return not depends_on(node, self._kv) and self._pool.proves(node - 1)

    def _factor(self, product: Bound) -> tuple[Bound | None, Bound]:
        """(a positive factor without kv, the other factor)."""
        for a, b in (product.args, product.args[::-1]):
            if self._is_divisor(a):
                return a, b
        return None, product

    def _intersect(self, a: KeyInterval, b: KeyInterval) -> KeyInterval:
        low, high = self._most, self._least
        shapes = {a.shape, b.shape} - {FREE}
        shape = LOOSE if LOOSE in shapes else FREE if not shapes else shapes.pop() if len(shapes) == 1 else INTERVAL
        return KeyInterval(low(a[0], b[0]), high(a[1], b[1]), low(a[2], b[2]), high(a[3], b[3]), shape)

    def _unite(self, a: KeyInterval, b: KeyInterval) -> KeyInterval:
        shapes = {a.shape, b.shape} - {FREE}
        shape = FREE if not shapes else shapes.pop() if len(shapes) == 1 and shapes <= {UP, DOWN} else LOOSE
        return KeyInterval(*self._hull(a[:2], b[:2]), *self._join(a[2:4], b[2:4]), shape)

    def _most(self, a: Bound | None, b: Bound | None) -> Bound | None:
        return b if a is None else a if b is None else self._pool.most(a, b)

    def _least(self, a: Bound | None, b: Bound | None) -> Bound | None:
        return b if a is None else a if b is None else self._pool.least(a, b)

    def _hull(self, a: _Ends, b: _Ends) -> _Ends:
        """The smallest interval that holds both; an empty one does not count."""
        pool = self._pool
        if a[0] is None and b[0] is None:
            return None, None if a[1] is None or b[1] is None else pool.most(a[1], b[1])
        if a[1] is None and b[1] is None:
            return (None if a[0] is None or b[0] is None else pool.least(a[0], b[0])), None
        (low, high), (low_b, high_b) = self._closed(a), self._closed(b)
        empty, empty_b = pool.at_least(low, high), pool.at_least(low_b, high_b)
        return (
            pool.select(empty, low_b, pool.select(empty_b, low, pool.least(low, low_b))),
            pool.select(empty, high_b, pool.select(empty_b, high, pool.most(high, high_b))),
        )

    def _join(self, a: _Ends, b: _Ends) -> _Ends:
        """Both intervals where they touch, else the longer one."""
        pool = self._pool
        if a[0] is None and b[0] is None:
            return None, None if a[1] is None or b[1] is None else pool.most(a[1], b[1])
        if a[1] is None and b[1] is None:
            return (None if a[0] is None or b[0] is None else pool.least(a[0], b[0])), None
        if self._nothing(a) or self._nothing(b):
            return b if self._nothing(a) else a
        (low, high), (low_b, high_b) = self._closed(a), self._closed(b)
        touch = pool.at_least(pool.least(high, high_b), pool.most(low, low_b))
        longer = pool.at_least(high - low, high_b - low_b)
        return (
            pool.select(touch, pool.least(low, low_b), pool.select(longer, low, low_b)),
            pool.select(touch, pool.most(high, high_b), pool.select(longer, high, high_b)),
        )

    def _nothing(self, ends: _Ends) -> bool:
        return ends[0] is self._skv or ends[1] is self._zero

    def _closed(self, ends: _Ends) -> tuple[Bound, Bound]:
        """With the ends of all keys in place of None, and within them, so that lengths compare.

        Saturated here although the emitter does so, too: ends that are compared and yielded stay the same nodes, written once.
        """
        pool = self._pool
        low = self._zero if ends[0] is None else pool.most(self._zero, *saturated([ends[0]]))
        return low, self._skv if ends[1] is None else pool.least(*saturated([ends[1]]), self._skv)

    def finish(self, region: KeyInterval) -> tuple[Bound, Bound, Bound, Bound]:
        """(begin, full_begin, full_end, end), ordered and within [0, skv]."""
        pool, zero, skv = self._pool, self._zero, self._skv
        begin = zero if region.may_low is None else pool.least(skv, pool.most(zero, region.may_low))
        end = skv if region.may_high is None else pool.most(begin, pool.least(region.may_high, skv))
        full_begin = begin if region.must_low is None else pool.least(end, pool.most(begin, region.must_low))
        full_end = end if region.must_high is None else pool.most(full_begin, pool.least(region.must_high, end))
        return begin, full_begin, full_end, end
