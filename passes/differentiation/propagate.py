"""Reverse and forward mode on expressions."""

from collections.abc import Mapping, Sequence

from attn_mlir.passes.derivation.expr import FLOAT, Graph, Node, nodes
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.partials import Partial, partials


def _rule(g: Graph, n: Node) -> list[Partial | None]:
    found = partials(g, n)
    if found is None:
        raise DifferentiationError(f"'{n.op}' has no derivative rule")
    return found


def adjoints(g: Graph, roots: Sequence[tuple[Node, Node]]) -> dict[Node, Node]:
    """For (root, adjoint) pairs, the adjoint of every leaf that they depend on: a shared intermediate is counted once."""
    total: dict[Node, Node] = {}
    for root, adjoint in roots:
        total[root] = g.add(total[root], adjoint) if root in total else adjoint
    # Arguments are made before what uses them, so descending numbers are a reverse topological order.
    order = sorted(nodes(*[root for root, _ in roots]), key=lambda n: -n.id)
    for n in order:
        if n not in total or n.is_leaf:
            continue
        for argument, partial in zip(n.args, _rule(g, n), strict=True):
            if partial is None or argument.is_const or argument.type != FLOAT:
                continue
            share = partial.times(g, total[n])
            total[argument] = g.add(total[argument], share) if argument in total else share
    return {n: adjoint for n, adjoint in total.items() if n.is_leaf and not n.is_const}


def tangent(g: Graph, root: Node, of_leaves: Mapping[Node, Node], memo: dict[Node, Node | None] | None = None) -> Node | None:
    """The tangent of `root` where those of leaves are given; None for zero."""
    memo = {} if memo is None else memo
    if root in memo:
        return memo[root]
    total = of_leaves.get(root)
    if not root.is_leaf:
        inner = [tangent(g, a, of_leaves, memo) for a in root.args]
        if any(t is not None for t in inner):
            for t, partial in zip(inner, _rule(g, root), strict=True):
                if t is None or partial is None:
                    continue
                share = partial.times(g, t)
                total = share if total is None else g.add(total, share)
    memo[root] = total
    return total
