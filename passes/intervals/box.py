"""Interval evaluation of expressions over a box: every variable lies between two expressions.

An index expression becomes (low, high), both inclusive, None where unbounded. A boolean one becomes a `Truth`: whether
it can be true and whether it can be false somewhere in the box. Both are expressions again, over the box's corners.
"""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from attn_mlir.passes.intervals.interval import UNBOUNDED, Interval, absolute, product, quotient, remainder
from attn_mlir.passes.intervals.nodes import Bound, depends_on, terms_of


class Truth(NamedTuple):
    can_be_true: Bound
    can_be_false: Bound


@dataclasses.dataclass
class Box:
    """Evaluates expressions where each key of `ranges` lies in its interval; other leaves stand for themselves."""

    ranges: Mapping[Bound, Interval]

    def __post_init__(self) -> None:
        self._intervals: dict[Bound, Interval] = dict(self.ranges)
        self._truths: dict[Bound, Truth] = {}

    def interval(self, node: Bound) -> Interval:
        found = self._intervals.get(node)
        if found is None:
            found = self._intervals[node] = self._interval(node)
        return found

    def truth(self, node: Bound) -> Truth:
        found = self._truths.get(node)
        if found is None:
            found = self._truths[node] = self._truth(node)
        return found

    def _truth(self, node: Bound) -> Truth:
        pool = node.pool
        match node.op:
            case "bool":
                return Truth(node, ~node)
            case "and":
                parts = [self.truth(a) for a in node.args]
                return Truth(pool.both(t.can_be_true for t in parts), pool.either(t.can_be_false for t in parts))
            case "or":
                parts = [self.truth(a) for a in node.args]
                return Truth(pool.either(t.can_be_true for t in parts), pool.both(t.can_be_false for t in parts))
            case "not":
                return Truth(*reversed(self.truth(node.args[0])))
            case "ge0":
                low, high = self.interval(node.args[0])
                return Truth(pool.true if high is None else pool.at_least(high, 0), pool.true if low is None else ~pool.at_least(low, 0))
            case "eq0":
                low, high = self.interval(node.args[0])
                below = pool.true if low is None else pool.at_least(-low, 0)
                above = pool.true if high is None else pool.at_least(high, 0)
                if low is None or high is None:
                    return Truth(below & above, pool.true)
                return Truth(below & above, ~(pool.equal(low, 0) if low is high else pool.at_least(low, 0) & pool.at_least(-high, 0)))
        return Truth(pool.true, pool.true)

    def _interval(self, node: Bound) -> Interval:
        pool = node.pool
        match node.op:
            case "sum":
                return self._sum(node)
            case "mul":
                return product(self.interval(node.args[0]), self.interval(node.args[1]))
            case "floordiv":
                return quotient(self.interval(node.args[0]), self.interval(node.args[1]))
            case "mod":
                return remainder(self.interval(node.args[0]), self.interval(node.args[1]))
            case "min" | "max":
                return self._extreme(node)
            case "abs":
                return absolute(self.interval(node.args[0]))
            case "select":
                return self._select(node)
            case "gather":
                return self._gather(node)
            case "unknown" | "rmin" | "rmax":
                return UNBOUNDED if node.op == "unknown" else Interval(node, node)
            case "const" | "value" | "dim" | "var":
                return Interval(node, node)
        return Interval(pool.lift(0), pool.lift(1))

    def _sum(self, node: Bound) -> Interval:
        constant, terms = terms_of(node)
        pool = node.pool
        lows: list[tuple[Bound | None, int]] = []
        highs: list[tuple[Bound | None, int]] = []
        for atom, k in terms:
            low, high = self.interval(atom)
            lows.append((low if k > 0 else high, k))
            highs.append((high if k > 0 else low, k))
        sides = ([(n, k) for n, k in side if n is not None] for side in (lows, highs))
        return Interval(*(pool.total([(pool.lift(constant), 1), *side]) if len(side) == len(terms) else None for side in sides))

    def _extreme(self, node: Bound) -> Interval:
        pool = node.pool
        intervals = [self.interval(a) for a in node.args]
        lows, highs = [i.low for i in intervals], [i.high for i in intervals]
        tight, loose = (highs, lows) if node.op == "min" else (lows, highs)  # min is bounded above by any one operand
        known = [n for n in tight if n is not None]
        bound = pool.extreme(node.op, known) if known else None
        other = None if any(n is None for n in loose) else pool.extreme(node.op, [n for n in loose if n is not None])
        return Interval(other, bound) if node.op == "min" else Interval(bound, other)

    def _select(self, node: Bound) -> Interval:
        condition, a, b = node.args
        can_be_true, can_be_false = self.truth(condition)
        first, second = self._refined(condition, a), self._refined(~condition, b)
        if can_be_true.constant == 0 or can_be_false.constant == 0:
            return second if can_be_true.constant == 0 else first
        ends = []
        for x, y, op in ((first.low, second.low, "min"), (first.high, second.high, "max")):
            if x is None or y is None:
                ends.append(None)
                continue
            pool = node.pool
            ends.append(pool.select(can_be_true, pool.select(can_be_false, pool.extreme(op, [x, y]), x), y))
        return Interval(*ends)

    def _refined(self, condition: Bound, arm: Bound) -> Interval:
        """The interval of `arm` where `condition` holds: x + n under x < 0 has x <= -1."""
        plain = self.interval(arm)
        if condition.op != "ge0":
            return plain
        x = condition.args[0]
        pool = arm.pool
        for sign in (1, -1):
            rest = arm - x if sign > 0 else arm + x
            if any(depends_on(rest, leaf) for leaf, _ in terms_of(x)[1] if leaf not in self.ranges or self.ranges[leaf].point is None):
                continue
            low, high = self.interval(x)
            low = pool.lift(0) if low is None else pool.most(low, 0)
            inner = Interval(low, high) if sign > 0 else Interval(None if high is None else -high, -low)
            outer = self.interval(rest)
            return Interval(*(None if m is None or n is None else m + n for m, n in zip(inner, outer, strict=True)))
        return plain

    def _gather(self, node: Bound) -> Interval:
        """The range of a tensor's elements over a box of indices, kept inside the tensor."""
        pool, tensor = node.pool, node.data
        intervals = [self.interval(index) for index in node.args]
        points = [i.point for i in intervals]
        if all(p is not None for p in points):
            same = pool.node("gather", tuple(p for p in points if p is not None), tensor)
            return Interval(same, same)
        begins, ends = [], []
        for dimension, (low, high) in enumerate(intervals):
            size = pool.lift(tensor.type.get_dim_size(dimension)) if not tensor.type.is_dynamic_dim(dimension) else None
            size = pool.leaf("dim", (tensor, dimension), 0) if size is None else size
            begins.append(pool.lift(0) if low is None else pool.most(0, pool.least(low, size - 1)))
            ends.append(size if high is None else pool.least(pool.most(high + 1, 1), size))
        box = (*begins, *ends)
        is_bool = str(tensor.type.element_type) == "i1"
        low, high = (pool.elements(op, box, tensor, is_bool) for op in ("rmin", "rmax"))
        return Interval(low, high)
