"""The class of a block of positions: three-valued interval evaluation of the mask over rows x keys.

Intervals forget how two terms move together: over a block that crosses a multiple of m, x % m is anything in [0, m),
while x // m still tells the two sides apart. So a block is cut at the first multiple of the largest modulus inside it
(and with more cuts, at the last one), and its parts are evaluated one by one.
"""

import itertools

from attn_mlir.passes.intervals.box import Box, Interval
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.nodes import Node, postorder, terms_of


def classify_block(mask: Node, ranges: dict[Node, Interval], cuts: int) -> tuple[Node, Node]:
    """(any, all) of `mask` over the box; each variable's range is cut at most `cuts` times."""
    pool = mask.pool
    choices = [_parts(pool, mask, variable, interval, cuts) for variable, interval in ranges.items()]
    truths = [Box(dict(zip(ranges, part, strict=True))).truth(mask) for part in itertools.product(*choices)]
    return pool.either(t.can_be_true for t in truths), ~pool.either(t.can_be_false for t in truths)


def _parts(pool: Pool, mask: Node, variable: Node, interval: Interval, cuts: int) -> list[Interval]:
    period = _period(mask, variable) if cuts else None
    low, high = interval
    if period is None or low is None or high is None:
        return [interval]
    modulus, offset = period
    first = low + modulus - (low + offset) % modulus  # the first multiple after `low`
    head = Interval(low, pool.least(high, first - 1))
    start = pool.least(first, high)
    if cuts == 1:
        return [head, Interval(start, high)]
    last = high - (high + offset) % modulus  # the last multiple up to `high`
    return [head, Interval(start, pool.most(start, last - 1)), Interval(pool.most(last, low), high)]


def _period(mask: Node, variable: Node) -> tuple[Node, Node] | None:
    """(modulus, offset) of the largest constant modulus in (variable + offset) % modulus, else of a runtime one."""
    found: list[tuple[int, Node, Node]] = []
    for node in postorder([mask]):
        if node.op != "mod":
            continue
        inner, modulus = node.args
        terms = dict(terms_of(inner)[1])
        offset = inner - variable
        if terms.get(variable) != 1 or any(n.op in ("var", "gather") for n in postorder([offset, modulus])):
            continue
        if modulus.constant is None or modulus.constant > 1:
            found.append((modulus.constant or 0, node.pool.most(1, modulus), offset))
    if not found:
        return None
    _, modulus, offset = max(found, key=lambda entry: entry[0])
    return modulus, offset

