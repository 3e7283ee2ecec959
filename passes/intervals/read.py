"""Reads scalar IR (arith on index, i1 and integers, tensor.extract, tensor.dim) into expressions."""

from collections.abc import Callable, Collection, Hashable, Mapping

from attn_mlir.mlir import ir
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.nodes import Bound, terms_of

_WRAPPING = 1 << 31
"""Positions, which are below 2^31, times this may be beyond 64 bits; expressions are numbers without an end."""


class MaskReader:
    """Turns values into expressions; what it does not understand becomes an unknown, which is sound everywhere.

    Values in `known` (a piece's block arguments, mostly) have expressions already. `identify` gives what stands for a
    tensor, a captured scalar or an unknown in expressions; by default that is the value itself. `sized` are the tensors
    whose sizes are at least 1 wherever a piece runs: q, k and v.
    """

    def __init__(
        self,
        pool: Pool,
        known: Mapping[ir.Value, Bound],
        identify: Callable[[ir.Value], Hashable] = lambda value: value,
        sized: Collection[ir.Value] = (),
    ) -> None:
        self.pool = pool
        self.identify = identify
        self._sized = sized
        self._known = dict(known)

    def read(self, value: ir.Value) -> Bound:
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = self._read(value)
        return found

    def read_all(self, block: ir.Block) -> None:
        """Reads what a block computes in its own order, so that long chains need no deep recursion."""
        for op in block.operations:
            for result in op.operation.results:
                if _is_integer(result.type):
                    self.read(result)

    def _read(self, value: ir.Value) -> Bound:
        if isinstance(value.owner, ir.Block):
            return self.pool.leaf("value", self.identify(value)) if isinstance(value.type, ir.IndexType) else self._unknown(value)
        op = value.owner.operation
        rule = _RULES.get(op.name)
        found = rule(self, op) if rule is not None and _is_integer(value.type) else None
        return self._unknown(value) if found is None else found

    def _unknown(self, value: ir.Value) -> Bound:
        return self.pool.node("unknown_bool" if str(value.type) == "i1" else "unknown", (), self.identify(value))

    def operands(self, op: ir.Operation) -> list[Bound]:
        return [self.read(operand) for operand in op.operands]

    def size(self, tensor: ir.Value, dimension: int) -> Bound:
        """The size of a tensor."""
        if not tensor.type.is_dynamic_dim(dimension):
            return self.pool.lift(tensor.type.get_dim_size(dimension))
        return self.pool.leaf("dim", (self.identify(tensor), dimension), 1 if tensor in self._sized else 0)


def _is_integer(type_: ir.Type) -> bool:
    return isinstance(type_, (ir.IndexType, ir.IntegerType))


def _is_bool(op: ir.Operation) -> bool:
    return str(op.results[0].type) == "i1"


def _constant(reader: MaskReader, op: ir.Operation) -> Bound:
    attribute = op.attributes["value"]
    if _is_bool(op):
        return reader.pool.truth(bool(ir.IntegerAttr(attribute).value))
    return reader.pool.lift(int(ir.IntegerAttr(attribute).value))


def _arithmetic(rule: Callable[[Bound, Bound], Bound | None]) -> Callable[[MaskReader, ir.Operation], Bound | None]:
    """A rule for a binary op on integers; on booleans it is not understood."""
    return lambda reader, op: None if _is_bool(op) else rule(*reader.operands(op))


def _product(a: Bound, b: Bound) -> Bound | None:
    """a * b; unknown where a position that it multiplies by so large a constant would wrap around, as in a hash."""
    product = a * b
    return None if any(abs(k) >= _WRAPPING for _, k in terms_of(product)[1]) else product


def _truncating(a: Bound, b: Bound) -> Bound | None:
    """C's a / b, for a positive constant b."""
    if (b.constant or 0) <= 0:
        return None
    return a.pool.select(a.pool.at_least(a, 0), a // b, -((-a) // b))


def _c_remainder(a: Bound, b: Bound) -> Bound | None:
    quotient = _truncating(a, b)
    if quotient is None:
        return None
    return a.pool.select(a.pool.at_least(a, 0), a % b, -((-a) % b))


def _unsigned(rule: Callable[[Bound, Bound], Bound | None]) -> Callable[[Bound, Bound], Bound | None]:
    """`rule` where both operands are provably not negative."""
    return lambda a, b: rule(a, b) if a.pool.proves(a) and a.pool.proves(b) else None


def _shift(a: Bound, b: Bound, left: bool) -> Bound | None:
    bits = b.constant
    if bits is None or not 0 <= bits < 63:
        return None
    return _product(a, a.pool.lift(1 << bits)) if left else a // (1 << bits)


def _bit_and(a: Bound, b: Bound) -> Bound | None:
    """a & (2^n - 1) is a % 2^n, for negative a too."""
    for x, mask in ((a, b.constant), (b, a.constant)):
        if mask is not None and mask >= 0 and mask & (mask + 1) == 0:
            return x % (mask + 1)
    return None


def _logic(name: str) -> Callable[[MaskReader, ir.Operation], Bound | None]:
    def rule(reader: MaskReader, op: ir.Operation) -> Bound | None:
        a, b = reader.operands(op)
        if not _is_bool(op):
            return _bit_and(a, b) if name == "and" else None
        if name == "xor":
            return (a & ~b) | (~a & b)
        return a & b if name == "and" else a | b

    return rule


_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")


def _compare(reader: MaskReader, op: ir.Operation) -> Bound | None:
    if not _is_integer(op.operands[0].type):
        return None
    predicate = _PREDICATES[ir.IntegerAttr(op.attributes["predicate"]).value]
    pool, (a, b) = reader.pool, reader.operands(op)
    if str(op.operands[0].type) == "i1":
        same = (a & b) | (~a & ~b)
        return {"eq": same, "ne": ~same}.get(predicate)
    if predicate[0] == "u" and not (pool.proves(a) and pool.proves(b)):
        return None
    match predicate[-2:]:
        case "eq":
            return pool.equal(a, b)
        case "ne":
            return ~pool.equal(a, b)
        case "lt":
            return pool.at_least(b, a + 1)
        case "le":
            return pool.at_least(b, a)
        case "gt":
            return pool.at_least(a, b + 1)
    return pool.at_least(a, b)


def _select(reader: MaskReader, op: ir.Operation) -> Bound:
    return reader.pool.select(*reader.operands(op))


def _cast(reader: MaskReader, op: ir.Operation) -> Bound | None:
    """Widening casts and index casts; a narrowing one may wrap."""
    source, target = op.operands[0].type, op.results[0].type
    if not _is_integer(source):
        return None
    value = reader.read(op.operands[0])
    if str(source) == "i1":
        one = 1 if op.name in ("arith.extui", "arith.index_castui") else -1
        return reader.pool.select(value, reader.pool.lift(one), reader.pool.lift(0))
    if _width(target) < _width(source) or (op.name in ("arith.extui", "arith.index_castui") and not reader.pool.proves(value)):
        return None
    return value


def _width(type_: ir.Type) -> int:
    return 64 if isinstance(type_, ir.IndexType) else type_.width


def _extract(reader: MaskReader, op: ir.Operation) -> Bound:
    tensor, *indices = op.operands
    pool = reader.pool
    value = pool.node("gather", tuple(reader.read(index) for index in indices), reader.identify(tensor))
    if _is_bool(op):
        return ~pool.equal(value, 0)
    return value


def _dim(reader: MaskReader, op: ir.Operation) -> Bound | None:
    dimension = reader.read(op.operands[1]).constant
    return None if dimension is None else reader.size(op.operands[0], dimension)


_RULES: dict[str, Callable[[MaskReader, ir.Operation], Bound | None]] = {
    "arith.constant": _constant,
    "arith.addi": _arithmetic(lambda a, b: a + b),
    "arith.subi": _arithmetic(lambda a, b: a - b),
    "arith.muli": _arithmetic(_product),
    "arith.floordivsi": _arithmetic(lambda a, b: a // b),
    "arith.ceildivsi": _arithmetic(lambda a, b: -((-a) // b)),
    "arith.divsi": _arithmetic(_truncating),
    "arith.remsi": _arithmetic(_c_remainder),
    "arith.divui": _arithmetic(_unsigned(_truncating)),
    "arith.remui": _arithmetic(_unsigned(_c_remainder)),
    "arith.shli": _arithmetic(lambda a, b: _shift(a, b, left=True)),
    "arith.shrsi": _arithmetic(lambda a, b: _shift(a, b, left=False)),
    "arith.minsi": _arithmetic(lambda a, b: a.pool.least(a, b)),
    "arith.maxsi": _arithmetic(lambda a, b: a.pool.most(a, b)),
    "arith.andi": _logic("and"),
    "arith.ori": _logic("or"),
    "arith.xori": _logic("xor"),
    "arith.cmpi": _compare,
    "arith.select": _select,
    "arith.index_cast": _cast,
    "arith.index_castui": _cast,
    "arith.extsi": _cast,
    "arith.extui": _cast,
    "math.absi": lambda reader, op: reader.pool.absolute(reader.read(op.operands[0])),
    "tensor.extract": _extract,
    "tensor.dim": _dim,
}
