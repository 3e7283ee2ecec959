"""Proving that an expression is never negative, from the facts known about its leaves."""

from collections.abc import Callable

from attn_mlir.passes.intervals.nodes import Node, terms_of

_Test = Callable[[Node], bool]


_BUDGET = 80  # nodes looked at for one proof; real ones need a dozen
_SMALL = 4  # the same once a mask has taken `_EFFORT` in all, as one of hundreds of conditions does
_EFFORT = 20_000


def nonnegative(node: Node, depth: int = 7) -> bool:
    """Whether node >= 0 follows: replaces atoms by bounds of theirs until a constant is left."""
    budget = [_BUDGET if node.pool.effort < _EFFORT else _SMALL]
    start = budget[0]
    found = _search(node, depth, set(), budget)
    node.pool.effort += start - budget[0]
    return found


def _search(node: Node, depth: int, failed: set[Node], budget: list[int]) -> bool:
    constant, terms = terms_of(node)
    if not terms:
        return constant >= 0
    budget[0] -= 1
    if depth == 0 or budget[0] < 0 or node in failed:
        return False
    pool = node.pool

    def against(atom: Node, k: int) -> _Test:
        return lambda bound: _search(pool.total([(node, 1), (atom, -k), (bound, k)]), depth - 1, failed, budget)

    for atom, k in terms:
        arms = _arms(atom, k)
        if arms is not None:  # an equivalence: nothing else needs trying
            return all(map(against(atom, k), arms))
    if any(against(atom, k)(bound) for atom, k in terms for bound in _bounds(atom, k)):
        return True
    failed.add(node)
    return False


def _arms(atom: Node, k: int) -> tuple[Node, ...] | None:
    """Values that `atom` takes one of, where k * atom is least at the least of them."""
    match atom.op, k > 0:
        case ("min", True) | ("max", False):
            return atom.args
        case ("select", _):
            return atom.args[1:]
        case ("abs", False):
            return atom.args[0], -atom.args[0]
    return None


def _bounds(atom: Node, k: int) -> list[Node]:
    """Lower bounds of `atom` for k > 0, upper bounds otherwise."""
    pool = atom.pool
    facts = list((pool.lower if k > 0 else pool.upper).get(atom, ()))
    zero = pool.lift(0)
    match atom.op:
        case "max" | "min":
            return facts + list(atom.args)
        case "abs":
            return [*facts, zero, atom.args[0], -atom.args[0]]
        case "mod" if (atom.args[1].constant or 0) > 0:
            if k > 0:
                return [*facts, zero]
            return [*facts, atom.args[1] - 1, *([atom.args[0]] if nonnegative(atom.args[0], 3) else [])]
        case "floordiv" if (atom.args[1].constant or 0) > 0 and nonnegative(atom.args[0], 3):
            return [*facts, zero if k > 0 else atom.args[0]]
        case "mul" if k > 0 and all(nonnegative(a, 3) for a in atom.args):
            return [*facts, zero]
    return facts
