"""Proving that an expression is never negative, from the facts known about its leaves."""

from collections.abc import Callable

from attn_mlir.passes.intervals.nodes import Bound, is_boolean, terms_of
from attn_mlir.passes.order import deepest_first

_Test = Callable[[Bound], bool]


_BUDGET = 80  # nodes looked at for one proof; real ones need a dozen
_SMALL = 4  # the same once a mask has taken `_EFFORT` in all, as one of hundreds of conditions does
_EFFORT = 20_000
_FEW = 16  # terms of a sum that count as one node


def nonnegative(node: Bound, depth: int = 7) -> bool:
    """Whether node >= 0 follows: replaces atoms by bounds of theirs until a constant is left."""
    budget = [_BUDGET if node.pool.effort < _EFFORT else _SMALL]
    start = budget[0]
    found = _search(node, depth, set(), budget)
    node.pool.effort += start - budget[0]
    return found


def _is_nonnegative(node: Bound) -> bool:
    """Whether node >= 0 follows without much effort: what divisions and products ask of their operands, again and again."""
    signs = node.pool.signs
    for inner in deepest_first(node, signs, lambda n: [a for a in n.args if not is_boolean(a)]):
        signs[inner] = nonnegative(inner, 3)
    return signs[node]


def _search(node: Bound, depth: int, failed: set[Bound], budget: list[int]) -> bool:
    constant, terms = terms_of(node)
    if not terms:
        return constant >= 0
    budget[0] -= 1 + len(terms) // _FEW
    if depth == 0 or budget[0] < 0 or node in failed:
        return False
    pool = node.pool

    def against(atom: Bound, k: int) -> _Test:
        if budget[0] < 0 and len(terms) > _FEW:
            return lambda bound: False
        return lambda bound: _search(pool.total([(node, 1), (atom, -k), (bound, k)]), depth - 1, failed, budget)

    for atom, k in terms:
        arms = _arms(atom, k)
        if arms is not None:  # an equivalence: nothing else needs trying
            return all(map(against(atom, k), arms))
    if any(against(atom, k)(bound) for atom, k in terms for bound in _bounds(atom, k)):
        return True
    failed.add(node)
    return False


def _arms(atom: Bound, k: int) -> tuple[Bound, ...] | None:
    """Values that `atom` takes one of, where k * atom is least at the least of them."""
    match atom.op, k > 0:
        case ("min", True) | ("max", False):
            return atom.args
        case ("select", _):
            return atom.args[1:]
        case ("abs", False):
            return atom.args[0], -atom.args[0]
    return None


def _bounds(atom: Bound, k: int) -> list[Bound]:
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
            return [*facts, atom.args[1] - 1, *([atom.args[0]] if _is_nonnegative(atom.args[0]) else [])]
        case "floordiv" if (atom.args[1].constant or 0) > 0 and _is_nonnegative(atom.args[0]):
            return [*facts, zero if k > 0 else atom.args[0]]
        case "mul" if k > 0 and all(map(_is_nonnegative, atom.args)):
            return [*facts, zero]
    return facts
