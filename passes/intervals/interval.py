"""Interval arithmetic on expressions: from the ends of operands to the ends of a result."""

from typing import NamedTuple

from attn_mlir.passes.intervals.nodes import Bound, Maker


class Interval(NamedTuple):
    """From `low` to `high`, both inclusive; None where unbounded."""

    low: Bound | None
    high: Bound | None

    @property
    def point(self) -> Bound | None:
        """The only value there is, else None."""
        return self.low if self.low is self.high else None

    @property
    def ends(self) -> tuple[Bound, Bound] | None:
        """Both ends, if there are both."""
        return None if self.low is None or self.high is None else (self.low, self.high)


UNBOUNDED = Interval(None, None)


def product(a: Interval, b: Interval) -> Interval:
    if a.ends is None or b.ends is None:
        return UNBOUNDED
    (low, high), (low_b, high_b) = a.ends, b.ends
    pool = low.pool
    for (x, y), point in ((a.ends, b.point), (b.ends, a.point)):
        if point is not None and pool.proves(point):
            return Interval(x * point, y * point)
    if pool.proves(low) and pool.proves(low_b):
        return Interval(low * low_b, high * high_b)
    corners = [x * y for x in a.ends for y in b.ends]
    return Interval(pool.least(*corners), pool.most(*corners))


def quotient(a: Interval, b: Interval) -> Interval:
    """Floor division. The divisor is not 0, since the user's own program divides by it; here it may seem to be."""
    if a.ends is None or b.ends is None:
        return UNBOUNDED
    (low, high), (low_b, high_b), divisor = a.ends, b.ends, b.point
    pool = low.pool
    if divisor is not None and (divisor.constant or pool.proves(divisor - 1)):
        ends = (low // divisor, high // divisor)
        return Interval(*reversed(ends)) if (divisor.constant or 1) < 0 else Interval(*ends)
    safe = [pool.most(1, n) for n in (low_b, high_b)]
    if pool.proves(low):
        least, most = low // safe[1], high // safe[0]
    else:
        corners = [x // y for x in (low, high) for y in dict.fromkeys(safe)]
        least, most = pool.least(*corners), pool.most(*corners)
    if pool.proves(low_b - 1):
        return Interval(least, most)
    largest = pool.most(pool.absolute(low), pool.absolute(high))
    positive = pool.at_least(low_b, 1)
    return Interval(pool.select(positive, least, -largest), pool.select(positive, most, largest))


def remainder(a: Interval, b: Interval) -> Interval:
    """Python's %. Over one period the ends map to the ends; otherwise anything from 0 to divisor - 1."""
    if b.ends is None:
        return UNBOUNDED
    low_b, high_b = b.ends
    pool = low_b.pool
    if pool.proves(low_b - 1):
        return Interval(*_within_period(pool, a, low_b, high_b))
    low, high = _within_period(pool, a, pool.most(1, low_b), pool.most(1, high_b))
    positive = pool.at_least(low_b, 1)
    return Interval(pool.select(positive, low, pool.least(0, low_b + 1)), pool.select(positive, high, pool.most(0, high_b - 1)))


def _within_period(pool: Maker, a: Interval, low: Bound, high: Bound) -> tuple[Bound, Bound]:
    """a % m for a positive m in [low, high]."""
    zero, top = pool.lift(0), high - 1
    if a.ends is None:
        return zero, top
    if low is not high:
        return zero, pool.least(top, a.ends[1]) if pool.proves(a.ends[0]) else top
    same = pool.equal(a.ends[0] // low, a.ends[1] // low)
    return pool.select(same, a.ends[0] % low, zero), pool.select(same, a.ends[1] % low, top)


def absolute(a: Interval) -> Interval:
    if a.low is not None:
        pool = a.low.pool
        if a.high is None:
            return Interval(pool.most(0, a.low), None)
        return Interval(pool.most(a.low, -a.high, 0), pool.most(-a.low, a.high))
    return UNBOUNDED if a.high is None else Interval(a.high.pool.most(0, -a.high), None)
