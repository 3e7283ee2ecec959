"""Replacing parts of an expression, and assuming that runtime divisors are positive."""

from collections.abc import Mapping

from attn_mlir.passes.intervals.nodes import Bound, postorder, terms_of


def assume_positive_divisors(node: Bound) -> tuple[Bound, Bound]:
    """(an expression that equals `node` where the guard holds, the guard).

    Captured sizes such as the m of q // m arrive as runtime values of unknown sign. Each becomes max(m, 1), with which
    analysis is exact and no division can trap; the guard says that each is at least 1.
    """
    pool = node.pool
    replaced: dict[Bound, Bound] = {}
    guard = pool.true
    for current in postorder([node]):
        if current.op not in ("floordiv", "mod") or pool.proves(current.args[1] - 1):
            continue
        divisor = current.args[1]
        if divisor.constant is not None or any(n.op in ("var", "gather", "unknown") for n in postorder([divisor])):
            continue
        safe = _without_zero_check(divisor)
        replaced[divisor] = replaced[safe] = pool.most(safe, 1)
        guard = guard & pool.at_least(safe, 1)
    return substitute(node, replaced), guard


def _without_zero_check(divisor: Bound) -> Bound:
    """The m of `m == 0 ? 1 : m`, which the frontend writes for a divisor that it cannot check."""
    if divisor.op == "select" and divisor.args[0].op == "eq0" and divisor.args[1].constant == 1:
        if divisor.args[0] is divisor.pool.equal(divisor.args[2], 0):
            return divisor.args[2]
    return divisor


def substitute(node: Bound, values: Mapping[Bound, Bound]) -> Bound:
    """`node` with parts replaced, folded again."""
    done = dict(values)
    for current in postorder([node]):
        if current not in done:
            done[current] = _rebuild(current, tuple(done[a] for a in current.args))
    return done[node]


def _rebuild(node: Bound, args: tuple[Bound, ...]) -> Bound:
    pool = node.pool
    if all(a is b for a, b in zip(args, node.args, strict=True)):
        return node
    match node.op:
        case "sum":
            constant, terms = terms_of(node)
            return pool.total([(pool.lift(constant), 1), *((a, k) for a, (_, k) in zip(args, terms, strict=True))])
        case "mul":
            return args[0] * args[1]
        case "floordiv":
            return args[0] // args[1]
        case "mod":
            return args[0] % args[1]
        case "min" | "max":
            return pool.extreme(node.op, args)
        case "abs":
            return pool.absolute(args[0])
        case "select":
            return pool.select(*args)
        case "ge0":
            return pool.at_least(args[0], 0)
        case "eq0":
            return pool.equal(args[0], 0)
        case "not":
            return ~args[0]
        case "and" | "or":
            return (pool.both if node.op == "and" else pool.either)(args)
    return pool.node(node.op, args, node.data)
