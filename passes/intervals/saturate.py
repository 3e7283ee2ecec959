"""Ends of key ranges that do not wrap around where a mask compares with the largest integers, which stand for no limit.

`kv <= w` holds for all keys with w = 2^63 - 1, but w + 1, the end of its range, would be negative.
"""

from collections.abc import Sequence

from attn_mlir.mlir import ir
from attn_mlir.passes.intervals.nodes import Bound, postorder, terms_of

_FAR = 1 << 62
"""Beyond every position; a few of them, added up with positions, are exact."""


def saturated(roots: Sequence[Bound]) -> list[Bound]:
    """The same ends, with what they add up kept within `_FAR`; what is divided, or read at, stays as it is.

    The pool keeps what nodes became: ends of long masks share most of them, and are asked for one after the other.
    """
    made = roots[0].pool.saturated if roots else {}
    for node in postorder(roots, made):
        args = tuple(made[a] for a in node.args)
        match node.op:
            case "min" | "max":
                made[node] = node.pool.node(node.op, args, node.data)
            case "select":
                made[node] = node.pool.node(node.op, (node.args[0], *args[1:]))
            case "sum":
                made[node] = _sum(node, args)
            case _:
                made[node] = node
    return [made[root] for root in roots]


def _sum(node: Bound, args: Sequence[Bound]) -> Bound:
    constant, terms = terms_of(node)
    kept = tuple(_near(a) if abs(k) == 1 else a for a, (_, k) in zip(args, terms, strict=True))
    return node.pool.node("sum", kept, (max(-_FAR, min(constant, _FAR)), tuple(k for _, k in terms)))


def _near(atom: Bound) -> Bound:
    """Numbers that the caller gives, or that lie in tensors of 64 bits, may be any; sizes and positions are far from the limit."""
    if atom.op == "value" or (atom.op in ("gather", "rmin", "rmax") and _is_wide(atom.data.type.element_type)):
        pool = atom.pool
        return pool.node("max", (pool.node("min", (atom, pool.lift(_FAR))), pool.lift(-_FAR)))
    return atom


def _is_wide(type_: ir.Type) -> bool:
    return isinstance(type_, ir.IndexType) or ir.IntegerType(type_).width >= 64
