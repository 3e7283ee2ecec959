"""C++ expressions of integer ops."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.backends.gpu import scalar_ops as ops
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges, fits_int
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_UNSIGNED = {1: "bool", 8: "unsigned char", 16: "unsigned short", 32: "unsigned"}


@dataclass
class IntegerContext:
    """What the ops of a kernel share: bounds of integers and the helper functions called."""

    ranges: IntegerRanges = field(default_factory=IntegerRanges)
    helpers: set[str] = field(default_factory=set)
    divisors: dict[ir.Value, str] = field(default_factory=dict)
    """Values of which a `Divisor` (see `scalar_ops.HELPERS`) is in scope, by its name."""
    unsigned: bool = False
    """Whether quotients by what may be 0 are printed without signs: a third of the instructions, and more registers in some kernels."""

    def type_of(self, value: ir.Value) -> str:
        """The C++ type that `value` is kept in."""
        if is_wide(value.type):
            return "int" if fits_int(self.ranges.of(value)) else "long long"
        return ops.c_type(value.type)


def is_wide(type_: ir.Type) -> bool:
    """Whether it is `index` or i64: integers that are kept in 32 bits where they fit."""
    return isinstance(type_, ir.IndexType) or (isinstance(type_, ir.IntegerType) and type_.width == 64)


def by_factor(op: ir.Operation, ranges: IntegerRanges) -> bool:
    """Whether it is a division that a `Divisor` can do."""
    return op.name == "arith.floordivsi" and is_wide(op.results[0].type) and max(map(abs, ranges.of(op.operands[0]))) < 1 << 26


class IntegerPrinter:
    """Prints integer ops and casts between integers; each method takes the operands' expressions."""

    def __init__(self, op: ir.Operation, args: list[str], context: IntegerContext) -> None:
        self._op, self._name, self._args, self._context = op, op.name, args, context
        self._result = op.results[0]
        self._ranges = context.ranges
        self._type_of: Callable[[ir.Value], str] = context.type_of

    def _helper(self, name: str) -> str:
        """Notes that a helper function is called; its name in C++."""
        self._context.helpers.add(name)
        return ops.CALLED.get(name, name)

    # ---- casts

    def _index_cast(self, a: str) -> str:
        sign = "-" if str(self._op.operands[0].type) == "i1" else ""
        source, target = self._type_of(self._op.operands[0]), self._type_of(self._result)
        return a if source == target and not sign else f"({target}){sign}{a}"

    _extsi = _index_cast

    def _trunci(self, a: str) -> str:
        return f"(({a} & 1) != 0)" if self._type_of(self._result) == "bool" else self._index_cast(a)

    def _extui(self, a: str) -> str:
        target = self._type_of(self._result)
        return f"({target}){self._unsigned(a, self._op.operands[0])}"

    _index_castui = _extui

    # ---- integers

    def _is_bool(self, value: ir.Value) -> bool:
        return str(value.type) == "i1"

    def _unsigned_cast(self, value: ir.Value) -> str:
        type_ = value.type
        return "(unsigned long long)" if not isinstance(type_, ir.IntegerType) or type_.width == 64 else f"({_UNSIGNED[type_.width]})"

    def _unsigned(self, text: str, value: ir.Value) -> str:
        """The bits read without sign; the text itself where there is no sign."""
        return text if self._ranges.of(value)[0] >= 0 else f"{self._unsigned_cast(value)}{text}"

    def _arithmetic(self, operator: str, a: str, b: str) -> str:
        """Wraps around in the op's type."""
        result = self._type_of(self._result)
        types = {self._type_of(v) for v in self._op.operands}
        if result == "bool":
            return f"(({a} {operator} {b}) & 1)"
        exact = isinstance(self._result.type, ir.IndexType) or ir.IntegerType(self._result.type).width == 64
        if exact and result == "int":
            return f"({a} {operator} {b})" if types == {"int"} else f"((int)({a} {operator} {b}))"
        if exact:
            return f"((long long)((unsigned long long){a} {operator} (unsigned long long){b}))"
        return f"(({result})((unsigned){a} {operator} (unsigned){b}))"

    def _addi(self, a: str, b: str) -> str:
        return self._arithmetic("+", a, b)

    def _subi(self, a: str, b: str) -> str:
        return self._arithmetic("-", a, b)

    def _muli(self, a: str, b: str) -> str:
        return self._arithmetic("*", a, b)

    def _divide(self, helper: str, operator: str, a: str, b: str) -> str:
        result, ranges = self._type_of(self._result), [self._ranges.of(v) for v in self._op.operands]
        positive = ranges[0][0] >= 0 and ranges[1][0] > 0
        rounds = helper in ("quotient", "remainder") and ranges[1][0] > 0
        wide = "long long" if "long long" in {result, *map(self._type_of, self._op.operands)} else result
        if helper == "floor_quotient" and positive:
            rounds = True
        if rounds and positive and wide == "int":
            return f"((int)((unsigned){a} {operator} (unsigned){b}))"
        if self._context.unsigned and helper in ("quotient", "remainder") and wide == "int" and ranges[0][0] >= 0 and ranges[1][0] == 0:
            return f"((int)((unsigned){a} {operator} (unsigned)({b} > 0 ? {b} : 1)))"
        text = f"({a} {operator} {b})" if rounds else f"{self._helper(helper)}<{wide}>({a}, {b})"
        return text if wide == result else f"(({result}){text})"

    def _divsi(self, a: str, b: str) -> str:
        return self._divide("quotient", "/", a, b)

    def _floordivsi(self, a: str, b: str) -> str:
        divisor = self._context.divisors.get(self._op.operands[1])
        if divisor is not None and by_factor(self._op, self._ranges):
            return f"{divisor}.floor({a})"
        return self._divide("floor_quotient", "/", a, b)

    def _ceildivsi(self, a: str, b: str) -> str:
        return self._divide("ceil_quotient", "/", a, b)

    def _remsi(self, a: str, b: str) -> str:
        return self._divide("remainder", "%", a, b)

    def _natural(self, form: str, a: str, b: str) -> str:
        """Of bits read without sign."""
        cast = self._unsigned_cast(self._op.operands[0])
        x, y = f"{cast}{a}", f"{cast}{b}"
        return f"(({self._type_of(self._result)}){form.format(a=x, b=y)})"

    def _divui(self, a: str, b: str) -> str:
        return self._natural("({a} / ({b} == 0 ? 1 : {b}))", a, b)

    def _remui(self, a: str, b: str) -> str:
        return self._natural("({a} % ({b} == 0 ? 1 : {b}))", a, b)

    def _ceildivui(self, a: str, b: str) -> str:
        return self._natural("({a} / ({b} == 0 ? 1 : {b}) + ({a} % ({b} == 0 ? 1 : {b}) != 0))", a, b)

    def _minui(self, a: str, b: str) -> str:
        return self._natural("({a} < {b} ? {a} : {b})", a, b)

    def _maxui(self, a: str, b: str) -> str:
        return self._natural("({a} < {b} ? {b} : {a})", a, b)

    def _shrui(self, a: str, b: str) -> str:
        return self._natural("({a} >> {b})", a, b)

    def _extremum(self, name: str, a: str, b: str) -> str:
        types = {self._type_of(v) for v in self._op.operands}
        result = self._type_of(self._result)
        if result == "bool":
            raise UnsupportedError(f"scalars: '{self._name}' of booleans ({source_line(self._op.location)}); use logical operations")
        if len(types) > 1:
            a, b = f"(long long){a}", f"(long long){b}"
        text = f"{name}({a}, {b})"
        return text if len(types) == 1 and (types == {result} or result in ("short", "signed char")) else f"(({result}){text})"

    def _minsi(self, a: str, b: str) -> str:
        return self._extremum("min", a, b)

    def _maxsi(self, a: str, b: str) -> str:
        return self._extremum("max", a, b)

    def _absi(self, a: str) -> str:
        result, source = (self._type_of(v) for v in (self._result, self._op.operands[0]))
        if result == "long long":
            return f"llabs({a})" if source == result else f"llabs((long long){a})"  # of -2^31, say
        return f"abs({a})" if result == "int" else f"(({result})abs({a}))"

    def _logic(self, operator: str, a: str, b: str) -> str:
        result = self._type_of(self._result)
        mixed = len({result, *map(self._type_of, self._op.operands)}) > 1
        return f"(({result})({a} {operator} {b}))" if mixed else f"({a} {operator} {b})"

    def _andi(self, a: str, b: str) -> str:
        return self._logic("&", a, b)

    def _ori(self, a: str, b: str) -> str:
        return self._logic("|", a, b)

    def _xori(self, a: str, b: str) -> str:
        if self._is_bool(self._result):
            return f"(!{a})" if b == "true" else f"({a} != {b})"
        return self._logic("^", a, b)

    def _shli(self, a: str, b: str) -> str:
        result = self._type_of(self._result)
        return f"(({result})({self._unsigned_cast(self._result)}{a} << {b}))"

    def _shrsi(self, a: str, b: str) -> str:
        result, source = (self._type_of(v) for v in (self._result, self._op.operands[0]))
        if source == "int" and is_wide(self._op.operands[0].type) and self._ranges.of(self._op.operands[1])[1] >= 32:
            return f"(({result})((long long){a} >> {b}))"  # 32 bits are not shifted that far
        return f"({a} >> {b})" if result == source or result == "long long" else f"(({result})({a} >> {b}))"

    def _cmpi(self, a: str, b: str) -> str:
        predicate = ir.IntegerAttr(self._op.attributes["predicate"]).value
        if predicate < 6:
            if self._is_bool(self._op.operands[0]) and predicate >= 2:
                a, b = b, a  # a true i1 is -1
            return f"({a} {ops.SIGNED[predicate]} {b})"
        a, b = (self._unsigned(x, v) for x, v in zip((a, b), self._op.operands, strict=True))
        return f"({a} {ops.SIGNED[predicate - 4]} {b})"

    def _select(self, condition: str, a: str, b: str) -> str:
        return f"({condition} ? {a} : {b})"
