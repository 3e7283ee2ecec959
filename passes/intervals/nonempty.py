"""Proving that every row of a mask keeps at least one key, by naming the key."""

from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.nodes import Node, postorder, terms_of


def rows_nonempty(mask: Node, q: Node, kv: Node, skv: Node) -> bool:
    """Whether key 0, the last key or key min(q, last) is provably present in every row, for skv >= 1."""
    pool = mask.pool
    last = skv - 1
    return any(_holds(substitute(mask, {kv: witness})) for witness in (pool.lift(0), last, pool.least(q, last)))


def _holds(node: Node) -> bool:
    match node.op:
        case "and":
            return all(map(_holds, node.args))
        case "or":
            return any(map(_holds, node.args))
    return node.constant == 1


def substitute(node: Node, values: dict[Node, Node]) -> Node:
    """`node` with leaves replaced, folded again."""
    done = dict(values)
    for current in postorder([node]):
        if current not in done:
            done[current] = _rebuild(current.pool, current, tuple(done[a] for a in current.args))
    return done[node]


def _rebuild(pool: Pool, node: Node, args: tuple[Node, ...]) -> Node:
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
