"""Writes `attn.kept` as integer arithmetic, on indices, integers or vectors of 64 bits."""

from collections.abc import Callable, Sequence

from attn_mlir.mlir import arith, ir
from attn_mlir.philox import BITS, GROUP, LOW, MULTIPLIERS, ROUNDS, WEYL, WORD


class Words:
    """Integer arithmetic of words of 32 bits kept in 64, in the type of the values given: constants take it, too."""

    def __init__(self, type_: ir.Type) -> None:
        self.type = type_
        self._constants: dict[int, ir.Value] = {}

    def hoist(self) -> None:
        """Makes the constants here, for use in loops that follow."""
        small = (*range(5), 8, 16, 24, 32 - BITS, 32)
        for number in (*small, (1 << BITS) - 1, LOW, WORD, *MULTIPLIERS, *(1 << bit for bit in range(GROUP))):
            self.constant(number)

    def constant(self, number: int) -> ir.Value:
        """The number, in every lane of a vector."""
        if number not in self._constants:
            scalar = self.type.element_type if isinstance(self.type, ir.VectorType) else self.type
            attribute: ir.Attribute = ir.IntegerAttr.get(scalar, number)
            if isinstance(self.type, ir.VectorType):
                attribute = ir.DenseElementsAttr.get_splat(self.type, attribute)
            self._constants[number] = arith.ConstantOp(self.type, attribute).result
        return self._constants[number]

    def low(self, x: ir.Value) -> ir.Value:
        """x modulo 2^32."""
        return arith.AndIOp(x, self.constant(WORD)).result

    def shifted(self, x: ir.Value, by: int) -> ir.Value:
        """x >> by, of a number that is not negative."""
        return arith.ShRSIOp(x, self.constant(by)).result

    def high(self, x: ir.Value) -> ir.Value:
        """The upper word: shifted with its sign, which not every backend can do without."""
        return self.low(self.shifted(x, 32))

    def xor(self, *values: ir.Value) -> ir.Value:
        """The exclusive or of all values."""
        first, *rest = values
        for value in rest:
            first = arith.XOrIOp(first, value).result
        return first

    def keys(self, seed: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """The keys of all rounds."""
        k0, k1 = self.low(seed), self.high(seed)
        return [(self._bumped(k0, number * WEYL[0]), self._bumped(k1, number * WEYL[1])) for number in range(ROUNDS)]

    def _bumped(self, key: ir.Value, by: int) -> ir.Value:
        return self.low(arith.AddIOp(key, self.constant(by & WORD)).result) if by else key

    def philox(self, counter: Sequence[ir.Value], keys: Sequence[tuple[ir.Value, ir.Value]]) -> list[ir.Value]:
        """Four random words, from words."""
        c0, c1, c2, c3 = counter
        for k0, k1 in keys:
            a, b = (arith.MulIOp(c, self.constant(m)).result for c, m in zip((c0, c2), MULTIPLIERS, strict=True))
            c0, c1, c2, c3 = self.xor(self.high(b), c1, k0), self.low(b), self.xor(self.high(a), c3, k1), self.low(a)
        return [c0, c1, c2, c3]

    def limit(self, drop: ir.Value, four: Sequence[ir.Value]) -> ir.Value:
        """The least byte that is kept, of its lower bits."""
        finer = arith.AndIOp(self.xor(*four), self.constant(LOW)).result
        more = arith.CmpIOp(arith.CmpIPredicate.slt, finer, arith.AndIOp(drop, self.constant(LOW)).result).result
        return arith.AddIOp(self.shifted(drop, 32 - BITS), self.select(more, self.constant(1), self.constant(0))).result

    def select(self, condition: ir.Value, a: ir.Value, b: ir.Value) -> ir.Value:
        """a where the condition holds, else b."""
        return arith.SelectOp(condition, a, b).result


def kept(operands: Sequence[ir.Value]) -> ir.Value:
    """The result of an `attn.kept` of these operands, all of one type."""
    seed, offset, drop, heads, b, h, q_idx, kv_idx = operands
    w = Words(seed.type)
    row = arith.AddIOp(arith.MulIOp(b, heads).result, h).result
    group = w.shifted(kv_idx, GROUP.bit_length() - 1)
    four = w.philox([w.low(x) for x in (group, q_idx, row, offset)], w.keys(seed))
    odd, upper = (_bit(w, kv_idx, number) for number in (1, 2))
    word = w.select(upper, w.select(odd, four[3], four[2]), w.select(odd, four[1], four[0]))
    second = arith.MulIOp(arith.AndIOp(kv_idx, w.constant(1)).result, w.constant(8)).result
    later = arith.MulIOp(arith.AndIOp(kv_idx, w.constant(8)).result, w.constant(2)).result
    place = arith.AddIOp(second, later).result
    byte = arith.AndIOp(arith.ShRSIOp(word, place).result, w.constant((1 << BITS) - 1)).result
    return arith.CmpIOp(arith.CmpIPredicate.sge, byte, w.limit(drop, four)).result


def _bit(w: Words, x: ir.Value, number: int) -> ir.Value:
    one = arith.AndIOp(x, w.constant(1 << number)).result
    return arith.CmpIOp(arith.CmpIPredicate.ne, one, w.constant(0)).result


def expand(op: ir.Operation, make: Callable[[Sequence[ir.Value]], ir.Value] = kept) -> None:
    """Replaces an `attn.kept` by what `make` makes of its operands."""
    with op.location, ir.InsertionPoint(op):
        made = make(list(op.operands))
    op.results[0].replace_all_uses_with(made)
    op.erase()
