"""Writes expressions as IR at the current insertion point, every value once."""

from collections.abc import Iterable, Mapping

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.intervals.nodes import Bound, postorder, terms_of
from attn_mlir.passes.intervals.saturate import saturated

_UPSTREAM = {"mul": arith.muli, "floordiv": arith.floordivsi, "min": arith.minsi, "max": arith.maxsi, "and": arith.andi, "or": arith.ori}
_END = 1 << 63
"""Integers compare with what is beyond as with the last ones."""


class IntervalEmitter:
    """Emits expressions; `known` gives the values of the leaves that are variables or tensor sizes."""

    def __init__(self, known: Mapping[Bound, ir.Value]) -> None:
        self._values: dict[Bound, ir.Value] = dict(known)

    def emit(self, roots: Iterable[Bound]) -> list[ir.Value]:
        """The values of `roots`; what is added up for them, and for comparisons, does not wrap around."""
        return [self._value(root) for root in saturated(list(roots))]

    def _value(self, root: Bound) -> ir.Value:
        """Without recursion into operands: masks can be long chains."""
        stack = [root]
        while stack:
            missing = [a for a in _operands(stack[-1]) if a not in self._values] if stack[-1] not in self._values else []
            stack += reversed(missing)
            if not missing:
                node = stack.pop()
                if node not in self._values:
                    self._values[node] = self._emit(node)
        return self._values[root]

    def _emit(self, node: Bound) -> ir.Value:
        match node.op:
            case "const":
                return arith.constant(ir.IndexType.get(), max(-_END, min(node.data, _END - 1)))
            case "bool":
                return arith.constant(ir.IntegerType.get_signless(1), ir.IntegerAttr.get(ir.IntegerType.get_signless(1), node.data))
            case "value":
                return node.data
            case "sum":
                return self._sum(node)
            case "ge0" | "eq0":
                return self._compare(node)
            case "gather":
                return self._gather(node)
            case "rmin" | "rmax":
                return self._range(node)
        args = [self._values[a] for a in node.args]
        match node.op:
            case "mod":
                return arith.subi(args[0], self._value((node.args[0] // node.args[1]) * node.args[1]))
            case "abs":
                return arith.maxsi(args[0], self._value(-node.args[0]))
            case "select":
                return arith.select(*args)
            case "not":
                return arith.xori(args[0], self._value(node.pool.true))
        value = args[0]
        for other in args[1:]:
            value = _UPSTREAM[node.op](value, other)
        return value

    def _sum(self, node: Bound) -> ir.Value:
        """Added terms first, then the subtracted ones."""
        constant, terms = terms_of(node)
        pool = node.pool
        parts = [(self._scaled(atom, abs(k)), k > 0) for atom, k in sorted(terms, key=lambda term: term[1] < 0)]
        if constant > 0 or not parts[0][1]:
            parts.insert(0 if not parts[0][1] else sum(positive for _, positive in parts), (self._value(pool.lift(constant)), True))
        elif constant < 0:
            parts.append((self._value(pool.lift(-constant)), False))
        value = parts[0][0]
        for other, positive in parts[1:]:
            value = (arith.addi if positive else arith.subi)(value, other)
        return value

    def _scaled(self, atom: Bound, k: int) -> ir.Value:
        if k == 1:
            return self._value(atom)
        scaled = atom * k
        if scaled not in self._values:
            value = self._value(atom)
            self._values[scaled] = arith.muli(value, self._value(atom.pool.lift(k)))
        return self._values[scaled]

    def _compare(self, node: Bound) -> ir.Value:
        """a - b >= 0 as a >= b, a - b - 1 >= 0 as a > b."""
        constant, terms = terms_of(node.args[0])
        pool = node.pool
        strict = node.op == "ge0" and constant == -1
        constant = 0 if strict else constant
        left = pool.total([(a, k) for a, k in terms if k > 0] + [(pool.lift(max(constant, 0)), 1)])
        right = pool.total([(a, -k) for a, k in terms if k < 0] + [(pool.lift(max(-constant, 0)), 1)])
        predicate = arith.CmpIPredicate.eq if node.op == "eq0" else arith.CmpIPredicate.sgt if strict else arith.CmpIPredicate.sge
        return arith.cmpi(predicate, *self.emit([left, right]))

    def _gather(self, node: Bound) -> ir.Value:
        value = tensor.extract(node.data, [self._values[a] for a in node.args])
        if isinstance(value.type, ir.IndexType):
            return value
        if str(value.type) == "i1":
            value = arith.extui(ir.IntegerType.get_signless(64), value)
        return arith.index_cast(ir.IndexType.get(), value)

    def _range(self, node: Bound) -> ir.Value:
        pool, rank = node.pool, len(node.args) // 2
        box = [self._values[a] for a in node.args]
        low, high = build.range_(node.data, box[:rank], box[rank:])
        self._values[pool.node("rmin", node.args, node.data)] = low
        self._values[pool.node("rmax", node.args, node.data)] = high
        return self._values[node]


def sizes_in(roots: Iterable[Bound]) -> list[Bound]:
    """The tensor sizes that `roots` use."""
    return [node for node in postorder(roots) if node.op == "dim"]


def _operands(node: Bound) -> Iterable[Bound]:
    """The nodes whose values the ops of `node` take; a comparison takes the terms of its difference."""
    return [atom for atom, _ in terms_of(node.args[0])[1]] if node.op in ("ge0", "eq0") else node.args
