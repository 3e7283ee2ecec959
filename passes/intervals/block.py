"""The class of a block of positions: three-valued interval evaluation of the mask over rows x keys.

Intervals forget how two terms move together: over a block that crosses a multiple of m, x % m is anything in [0, m),
while x // m still tells the two sides apart. So a block is cut at the first multiple of the largest modulus inside it
(and with more cuts, at the last one), and its parts are evaluated one by one. Where an alternative of the mask holds
from or up to a fixed position, as in (q < 22) | ..., the block is cut there instead.
"""

import itertools

from attn_mlir.passes.intervals.box import Box
from attn_mlir.passes.intervals.interval import Interval
from attn_mlir.passes.intervals.nodes import Bound, Maker, postorder, terms_of

_LARGE = 200  # nodes of a mask that is not worth multiplying by the number of parts


def classify_block(mask: Bound, ranges: dict[Bound, Interval], cuts: int) -> tuple[Bound, Bound]:
    """(any, all) of `mask` over the box; each variable's range is cut at most `cuts` times, that of a large mask never."""
    cuts = 0 if len(postorder([mask])) > _LARGE else cuts
    pool = mask.pool
    choices = [_parts(pool, mask, variable, interval, cuts) for variable, interval in ranges.items()]
    truths = [Box(dict(zip(ranges, part, strict=True))).truth(mask) for part in itertools.product(*choices)]
    return pool.either(t.can_be_true for t in truths), ~pool.either(t.can_be_false for t in truths)


def _parts(pool: Maker, mask: Bound, variable: Bound, interval: Interval, cuts: int) -> list[Interval]:
    low, high = interval
    if not cuts or low is None or high is None:
        return [interval]
    period = _period(mask, variable)
    if period is None:
        return _at_threshold(pool, mask, variable, low, high)
    modulus, offset = period
    first = low + modulus - (low + offset) % modulus  # the first multiple after `low`
    head = Interval(low, pool.least(high, first - 1))
    start = pool.least(first, high)
    if cuts == 1:
        return [head, Interval(start, high)]
    last = high - (high + offset) % modulus  # the last multiple up to `high`
    return [head, Interval(start, pool.most(start, last - 1)), Interval(pool.most(last, low), high)]


def _at_threshold(pool: Maker, mask: Bound, variable: Bound, low: Bound, high: Bound) -> list[Interval]:
    """Cuts at the c of a condition variable >= c, or variable < c, that is one alternative of several."""
    alternatives = [a for node in postorder([mask]) if node.op == "or" for a in node.args if a.op == "ge0"]
    for alternative in alternatives:
        inner = alternative.args[0]
        k = dict(terms_of(inner)[1]).get(variable)
        rest = inner - variable if k == 1 else inner + variable
        if k not in (1, -1) or _varies(rest):
            continue
        start = -rest if k == 1 else rest + 1
        return [Interval(low, pool.most(low, pool.least(high, start - 1))), Interval(pool.least(high, pool.most(low, start)), high)]
    return [Interval(low, high)]


def _varies(*nodes: Bound) -> bool:
    return any(n.op in ("var", "gather", "unknown") for n in postorder(nodes))


def _period(mask: Bound, variable: Bound) -> tuple[Bound, Bound] | None:
    """(modulus, offset) of the largest constant modulus in (variable + offset) % modulus, else of a runtime one."""
    found: list[tuple[int, Bound, Bound]] = []
    for node in postorder([mask]):
        if node.op != "mod":
            continue
        inner, modulus = node.args
        terms = dict(terms_of(inner)[1])
        offset = inner - variable
        if terms.get(variable) != 1 or _varies(offset, modulus):
            continue
        if modulus.constant is None or modulus.constant > 1:
            found.append((modulus.constant or 0, node.pool.most(1, modulus), offset))
    if not found:
        return None
    _, modulus, offset = max(found, key=lambda entry: entry[0])
    return modulus, offset
