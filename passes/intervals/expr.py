"""Symbolic index and boolean expressions: interned, folded as they are built, with sums in normal form.

Both sides of the mask analysis use them: what the user wrote is read into expressions over `q` and `kv`, and what the
analysis derives from it are expressions over block bounds, emitted as IR at the end. One node is one value: equal
expressions are the same object. `(q - kv) + kv` is `q`, because every sum is kept as constant + coefficient * atom + ...
"""

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Sequence

from attn_mlir.passes.intervals.nodes import Bound, is_boolean, terms_of
from attn_mlir.passes.intervals.proof import nonnegative

_PAIRS = 16
"""How many arms of a min or max are compared with each other: of more, proofs take longer than they save."""


class Pool:
    """Makes expressions, and knows facts about leaves: expressions that bound them from below and above."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, tuple[Bound, ...], Hashable], Bound] = {}
        self.lower: dict[Bound, list[Bound]] = {}
        self.upper: dict[Bound, list[Bound]] = {}
        self.proofs: dict[Bound, bool] = {}
        self.signs: dict[Bound, bool] = {}
        self.saturated: dict[Bound, Bound] = {}
        self._negations: dict[Bound, Bound] = {}
        self.effort = 0  # nodes looked at by proofs
        self.true = self.node("bool", (), 1)
        self.false = self.node("bool", (), 0)

    def node(self, op: str, args: tuple[Bound, ...] = (), data: Hashable = None) -> Bound:
        """The node itself, without folding."""
        key = (op, args, data)
        found = self._nodes.get(key)
        if found is None:
            found = self._nodes[key] = Bound(self, op, args, data, len(self._nodes))
        return found

    def lift(self, value: Bound | int) -> Bound:
        return value if isinstance(value, Bound) else self.node("const", (), value)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """Forgets, at the end, every expression and fact made inside: for evaluation on ever new numbers."""
        kept = self._nodes, self.lower, self.upper, self.proofs, self.signs, self._negations, self.saturated, self.effort
        self._nodes, self.proofs, self.signs, self._negations, self.saturated = dict(self._nodes), {}, {}, {}, {}
        self.lower, self.upper, self.effort = dict(self.lower), dict(self.upper), 0
        try:
            yield
        finally:
            self._nodes, self.lower, self.upper, self.proofs, self.signs, self._negations, self.saturated, self.effort = kept

    def leaf(self, op: str, data: Hashable, lower: int | None = None) -> Bound:
        """A variable, function argument or tensor size that is at least `lower`."""
        node = self.node(op, (), data)
        if lower is not None and node not in self.lower:
            self.assume(node, lower=self.lift(lower))
        return node

    def elements(self, op: str, box: tuple[Bound, ...], tensor: Hashable, is_bool: bool) -> Bound:
        """rmin or rmax: the least or greatest element of `tensor` over a box of indices (begins, then ends)."""
        node = self.node(op, box, tensor)
        if is_bool and node not in self.lower:
            self.assume(node, lower=self.lift(0), upper=self.lift(1))
        return node

    def assume(self, node: Bound, lower: Bound | None = None, upper: Bound | None = None) -> None:
        """Records that lower <= node <= upper."""
        if lower is not None:
            self.lower.setdefault(node, []).append(lower)
        if upper is not None:
            self.upper.setdefault(node, []).append(upper)
        self.proofs.clear()
        self.signs.clear()

    def proves(self, node: Bound) -> bool:
        """Whether node >= 0 follows from the facts."""
        found = self.proofs.get(node)
        if found is None:
            found = self.proofs[node] = nonnegative(node)
        return found

    def total(self, terms: Iterable[tuple[Bound, int]]) -> Bound:
        """sum of coefficient * node."""
        constant = 0
        sums: dict[Bound, int] = {}
        for node, factor in terms:
            for atom, coefficient in terms_of(node)[1]:
                sums[atom] = sums.get(atom, 0) + factor * coefficient
            constant += factor * terms_of(node)[0]
        constant += _merge_remainders(sums)
        pairs = [(atom, coefficient) for atom, coefficient in sums.items() if coefficient]
        if not pairs:
            return self.lift(constant)
        if constant == 0 and len(pairs) == 1 and pairs[0][1] == 1:
            return pairs[0][0]
        pairs.sort(key=lambda pair: pair[0].serial)
        return self.node("sum", tuple(atom for atom, _ in pairs), (constant, tuple(coefficient for _, coefficient in pairs)))

    def product(self, a: Bound, b: Bound) -> Bound:
        if a.constant is not None:
            return self.total([(b, a.constant)])
        if b.constant is not None:
            return self.total([(a, b.constant)])
        return self.node("mul", (a, b) if a.serial <= b.serial else (b, a))

    def quotient(self, a: Bound, b: Bound) -> Bound:
        """Python's a // b."""
        c = b.constant
        if a.constant == 0:
            return a
        if c is None or c == 0:
            return self.node("floordiv", (a, b))
        if a.constant is not None:
            return self.lift(a.constant // c)
        whole, rest = _divisible(a, c)
        return whole if rest.constant == 0 else whole + (self.node("floordiv", (rest, b)) if rest.constant is None else rest.constant // c)

    def remainder(self, a: Bound, b: Bound) -> Bound:
        """Python's a % b."""
        c = b.constant
        if a.constant == 0:
            return a
        if c is None or c == 0:
            return self.node("mod", (a, b))
        if a.constant is not None:
            return self.lift(a.constant % c)
        constant, terms = terms_of(a)
        rest = self.total([(self.lift(constant % c), 1), *((atom, k % c if k % c <= abs(c) // 2 else k % c - c) for atom, k in terms)])
        return self.lift(rest.constant % c) if rest.constant is not None else self.node("mod", (rest, b))

    def extreme(self, op: str, nodes: Iterable[Bound]) -> Bound:
        """min or max of `nodes`, without those that are provably not it."""
        flat: list[Bound] = []
        for node in nodes:
            flat += [n for n in (node.args if node.op == op else (node,)) if n not in flat]
        flat = _best_constants(op, flat)
        kept = list(flat)
        for node in flat if len(flat) <= _PAIRS else ():
            others = [n for n in kept if n is not node]
            if any(self.proves(node - n if op == "min" else n - node) for n in others):
                kept.remove(node)
        return kept[0] if len(kept) == 1 else self.node(op, tuple(kept))

    def least(self, *nodes: Bound | int) -> Bound:
        return self.extreme("min", [self.lift(n) for n in nodes])

    def most(self, *nodes: Bound | int) -> Bound:
        return self.extreme("max", [self.lift(n) for n in nodes])

    def absolute(self, a: Bound) -> Bound:
        if a.constant is not None:
            return self.lift(abs(a.constant))
        if self.proves(a):
            return a
        return -a if self.proves(-a) else self.node("abs", (a,))

    def select(self, condition: Bound, a: Bound, b: Bound) -> Bound:
        """`a` where `condition`, else `b`; of booleans too."""
        if condition.constant is not None:
            return a if condition.constant else b
        if a is b:
            return a
        if is_boolean(a):
            return (condition & a) | (~condition & b)
        return self.node("select", (condition, a, b))

    def at_least(self, a: Bound, b: Bound | int) -> Bound:
        """a >= b"""
        d = a - b
        if d.constant is not None:
            return self.truth(d.constant >= 0)
        choice = _choice(d)
        if choice is not None:
            return self.select(choice[0], self.at_least(choice[1], 0), self.at_least(choice[2], 0))
        if self.proves(d):
            return self.true
        return self.false if self.proves(-d - 1) else self.node("ge0", (d,))

    def equal(self, a: Bound, b: Bound | int) -> Bound:
        d = a - b
        if d.constant is not None:
            return self.truth(d.constant == 0)
        choice = _choice(d)
        if choice is not None:
            return self.select(choice[0], self.equal(choice[1], 0), self.equal(choice[2], 0))
        if self.proves(d - 1) or self.proves(-d - 1):
            return self.false
        first = terms_of(d)[1][0]
        return self.node("eq0", (d if first[1] > 0 else -d,))

    def truth(self, value: bool) -> Bound:
        return self.true if value else self.false

    def both(self, nodes: Iterable[Bound]) -> Bound:
        return self._connect("and", nodes, self.true, self.false)

    def either(self, nodes: Iterable[Bound]) -> Bound:
        return self._connect("or", nodes, self.false, self.true)

    def negation(self, a: Bound) -> Bound:
        if a.constant is not None:
            return self.truth(not a.constant)
        if a.op == "ge0":
            return self.node("ge0", (-a.args[0] - 1,))
        if a.op == "not":
            return a.args[0]
        if a.op in ("and", "or"):
            found = self._negations.get(a)
            if found is None:
                found = (self.either if a.op == "and" else self.both)([self.negation(n) for n in a.args])
                self._negations[a], self._negations[found] = found, a
            return found
        return self.node("not", (a,))

    def _connect(self, op: str, nodes: Iterable[Bound], unit: Bound, zero: Bound) -> Bound:
        groups = [node.args if node.op == op else (node,) for node in nodes]
        flat = dict.fromkeys(n for group in groups for n in group if n is not unit)
        if zero in flat:
            return zero
        # Terms of one group do not exclude each other: the longest is looked at when the others meet it, so that chains stay short work.
        longest = max(groups, key=len, default=())
        others = [n for group in groups if group is not longest for n in group]
        if any(self.negation(n) in flat for n in others if n.op not in ("and", "or")):
            return zero
        if len(flat) < 2:
            return next(iter(flat), unit)
        return self.node(op, tuple(flat))


def _choice(node: Bound) -> tuple[Bound, Bound, Bound] | None:
    """(condition, a, b) where `node` is constant + coefficient * select(condition, a, b) with constants a and b."""
    constant, terms = terms_of(node)
    if len(terms) != 1 or terms[0][0].op != "select":
        return None
    (condition, a, b), k = terms[0][0].args, terms[0][1]
    return (condition, a * k + constant, b * k + constant) if a.constant is not None and b.constant is not None else None


def _best_constants(op: str, nodes: Sequence[Bound]) -> list[Bound]:
    """Of nodes that differ by a constant alone the least, or greatest."""
    best: dict[object, tuple[int, Bound]] = {}
    for node in nodes:
        constant, terms = terms_of(node)
        known = best.get(key := tuple(terms))
        if known is None or (constant < known[0] if op == "min" else constant > known[0]):
            best[key] = constant, node
    kept = {node for _, node in best.values()}
    return [node for node in nodes if node in kept]


def _divisible(a: Bound, c: int) -> tuple[Bound, Bound]:
    """a = c * whole + rest, moving into `whole` every term whose coefficient c divides."""
    constant, terms = terms_of(a)
    pool = a.pool
    whole = pool.total([(atom, k // c) for atom, k in terms if k % c == 0] + [(pool.lift(constant // c), 1)])
    return whole, pool.total([(atom, k) for atom, k in terms if k % c] + [(pool.lift(constant % c), 1)])


def _merge_remainders(sums: dict[Bound, int]) -> int:
    """Writes x - (x // m) * m as x % m: how Python's % arrives here. Returns what to add to the constant."""
    adjust = 0
    for atom in list(sums):
        quotient, modulus = _quotient_of(atom)
        if quotient is None or modulus is None or atom not in sums:
            continue
        count, rest = divmod(-sums[atom], modulus.data if quotient is atom else 1)
        offset, terms = terms_of(quotient.args[0])
        if rest or not count or not terms or any(sums.get(x, 0) != count * k for x, k in terms):
            continue
        for x in [atom, *(x for x, _ in terms)]:
            del sums[x]
        pool = atom.pool
        constant, parts = terms_of(pool.remainder(quotient.args[0], modulus))
        for part, k in parts:
            sums[part] = sums.get(part, 0) + count * k
        adjust += count * (constant - offset)
    return adjust


def _quotient_of(atom: Bound) -> tuple[Bound | None, Bound | None]:
    """(x // m, m) where `atom` is x // m with a constant m, or (x // m) * m."""
    if atom.op == "floordiv" and atom.args[1].constant:
        return atom, atom.args[1]
    if atom.op == "mul":
        for a, b in (atom.args, atom.args[::-1]):
            if a.op == "floordiv" and a.args[1] is b:
                return a, b
    return None, None
