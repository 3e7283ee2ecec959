"""Prints scalar ops, those of the regions of `tile.map` and their like, as C++ statements.

Positions and sizes are `int`, other `index` and i64 values too where their bounds show that they fit (`scalar_bounds`), else
`long long`; i1 is `bool`, f32 `float`, f64 `double`, f16 `__half`, bf16 `__nv_bfloat16`.

Accuracy in f32 with `-use_fast_math`: exp2 2 ulp; exp 2 ulp and 1.2 |x| ulp more; log and log2 2^-22 absolute around 1, relative elsewhere;
divisions, sqrt and rsqrt 2 ulp (a divisor above 2^126 gives 0); sin and cos 4e-7 absolute up to |x| = 1e5; tanh 5e-7 relative; power loses
|y log2 x| ulp; the others are the CUDA library's. Numbers below 2^-126 count as 0, so log gives -inf for them. NaN and infinities keep
their meaning: comparisons, select, maximumf and minimumf (NaN if one operand is), exp(-inf) = 0, log(0) = -inf, log(-1) = NaN, 1 / 0 = inf.
Integer division is total, as in torch on a CPU: a divisor 0 counts as 1.
"""

import re
from collections.abc import Callable, Iterable

from attn_mlir.backends.gpu import origins, scalar_ops
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges
from attn_mlir.backends.gpu.scalar_integers import IntegerContext
from attn_mlir.backends.gpu.scalar_printer import ScalarPrinter, float_literal, is_wrapped
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.regions import is_constant

__all__ = ["Names", "Scalars", "dependence", "float_literal", "frontier"]

Print = Callable[[ir.Operation, list[str]], str]
_INLINE = 48
"""Longer expressions get a name of their own even when they are used once."""
_WORDS = (
    "auto bool break case char class const constexpr continue default delete do double else enum explicit extern false float for "
    "friend goto if inline int long namespace new operator private protected public register return short signed sizeof static "
    "struct switch template this throw true try typedef typename union unsigned using virtual void volatile while exp log sin cos "
    "tan max min abs pow fma half asm"
).split()
_FUNCTIONS = {name for base in scalar_ops.FUNCTIONS.values() for name in (base, f"{base}f")}
_RESERVED = frozenset({*_WORDS, *_FUNCTIONS, *scalar_ops.HELPERS, *scalar_ops.CALLED.values()})


class Names:
    """Makes identifiers of C++, each once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {*_RESERVED, *taken}
        self._counts: dict[str, int] = {}

    def fresh(self, hint: str) -> str:
        """`hint`, or `hint_2`... if that is taken."""
        stem = re.sub(r"\W", "_", hint) or "x"
        stem = f"x{stem}" if stem[0].isdigit() or stem.startswith("_") else stem
        # Numbers below the last one of a stem are taken.
        count = self._counts.get(stem, 1)
        name = stem if count == 1 else f"{stem}_{count}"
        while name in self._taken:
            count += 1
            name = f"{stem}_{count}"
        self._counts[stem] = count
        self._taken.add(name)
        return name


class Scalars:
    """Prints scalar ops as C++ statements, each value once."""

    def __init__(
        self,
        lines: list[str],
        names: Names,
        load: Print,
        extract: Print,
        indent: str = "",
        *,
        other: Print | None = None,
    ) -> None:
        """`load` and `extract` return the expressions that `memref.load` and `tensor.extract` become, given the op and its indices.

        `other` does so for ops that are unknown here (`memref.dim`, `tile.program_id`).
        """
        self.lines, self.names, self.indent = lines, names, indent
        self._load, self._extract, self._other = load, extract, other
        self._context = IntegerContext()
        self._known: dict[ir.Value, str] = {}
        self._outer: Scalars | None = None

    def nested(self, lines: list[str], indent: str) -> "Scalars":
        """A printer for an inner scope of C++: it sees what was printed outside, and keeps its own values to itself."""
        inner = Scalars(lines, self.names, self._load, self._extract, indent, other=self._other)
        inner._outer, inner._context = self, self._context
        return inner

    def helper(self, name: str) -> str:
        """The name in C++ of a function of `scalar_ops.HELPERS` ("max_nan", "min_nan", ...), whose definition is asked for."""
        self._context.helpers.add(name)
        return scalar_ops.CALLED.get(name, name)

    def helper_source(self, cuda: bool = True) -> str:
        """The definitions of the functions that the code printed so far calls, of nested scopes, too. See `scalar_ops.helper_source`."""
        return scalar_ops.helper_source(self._context.helpers, cuda)

    def bind(self, value: ir.Value, expression: str) -> None:
        """Makes `expression`, a name, literal or call, stand for `value`."""
        self._known[value] = expression

    @property
    def ranges(self) -> IntegerRanges:
        """Bounds of integer values."""
        return self._context.ranges

    @property
    def divisors(self) -> dict[ir.Value, str]:
        """See `scalar_integers.IntegerContext`."""
        return self._context.divisors

    def divide_unsigned(self) -> None:
        """See `scalar_integers.IntegerContext`."""
        self._context.unsigned = True

    def type_of(self, value: ir.Value) -> str:
        """The C++ type that `value` is kept in."""
        return self._context.type_of(value)

    def emit(self, value: ir.Value) -> str:
        """The name (or literal) of a value, printing what it needs.

        Raises UnsupportedError for ops that cannot be printed.
        """
        text = self._operand(value)
        if re.fullmatch(r"\w+", text) or is_constant(value):
            return text
        return self._declare(value, text)

    def _find(self, value: ir.Value) -> str | None:
        scope: Scalars | None = self
        while scope is not None:
            if value in scope._known:
                return scope._known[value]
            scope = scope._outer
        return None

    def _operand(self, value: ir.Value) -> str:
        """An expression without operators outside of parentheses."""
        found = self._find(value)
        if found is not None:
            return found
        for v in deepest_first(value, self, self._read):
            self._known[v] = self._text(v)
        return self._find(value) or ""

    def __contains__(self, value: ir.Value) -> bool:
        """Whether an expression stands for `value` here or outside."""
        return self._find(value) is not None

    def _read(self, value: ir.Value) -> list[ir.Value]:
        """The operands that become expressions before `value` does."""
        if isinstance(value.owner, ir.Block):
            return []
        op = value.owner.operation
        operands = list(op.operands)
        if op.name in ("tensor.extract", "memref.load"):
            return operands[1:]
        if op.name.startswith(("arith.", "math.")) or op.name == "attn.kept":
            return operands
        return [operand for operand in operands if not isinstance(operand.type, ir.ShapedType)] if self._other is not None else []

    def _text(self, value: ir.Value) -> str:
        if isinstance(value.owner, ir.Block):
            raise UnsupportedError(f"scalars: no expression stands for {value}; this is a bug of the code generator")
        op = value.owner.operation
        text = self._print(op)
        is_read = op.name in ("memref.load", "tensor.extract")
        named = re.fullmatch(r"[A-Za-z_]\w*", text) is not None and not is_read
        small = len(text) <= _INLINE and _used_once(value) and _own_name(op) is None and op.name != "memref.load"
        return text if named or small or is_constant(value) else self._declare(value, text)

    def _print(self, op: ir.Operation) -> str:
        operands = list(op.operands)
        if op.name != "arith.constant":
            origins.used(op)
        if op.name in ("tensor.extract", "memref.load"):
            print_ = self._extract if op.name == "tensor.extract" else self._load
            return print_(op, [self._operand(index) for index in operands[1:]])
        if op.name.startswith(("arith.", "math.")):
            return ScalarPrinter(op, [self._operand(operand) for operand in operands], self._context).text()
        if op.name == "attn.kept":
            return f"{self.helper('philox_kept')}({', '.join(self._operand(operand) for operand in operands)})"
        if self._other is None:
            raise UnsupportedError(f"scalars: '{op.name}' cannot stand in scalar code ({source_line(op.location)})")
        scalars = [operand for operand in operands if not isinstance(operand.type, ir.ShapedType)]
        return self._other(op, [self._operand(operand) for operand in scalars])

    def _declare(self, value: ir.Value, text: str) -> str:
        name = self.names.fresh(_own_name(value.owner.operation) or _hint(value))
        text = text[1:-1] if is_wrapped(text) else text
        self.lines.append(origins.marked(f"{self.indent}const {self.type_of(value)} {name} = {text};"))
        self._known[value] = name
        return name


def dependence(block: ir.Block) -> dict[ir.Value, frozenset[int]]:
    """For each value of a map's region, the block's arguments (0 = i, 1 = j) that it depends on."""
    known = {argument: frozenset({number}) for number, argument in enumerate(block.arguments)}
    for view in block.operations:
        op = view.operation
        depends = frozenset[int]()
        for operand in op.operands:
            depends |= known.get(operand, depends)
        for result in op.results:
            known[result] = depends
    return known


def frontier(block: ir.Block, depends: dict[ir.Value, frozenset[int]], arguments: frozenset[int]) -> list[ir.Value]:
    """What to compute before the loops over other arguments: the values that depend on exactly `arguments`, and that ops depending on
    more, or the terminator, use. Constants and arguments are left out."""
    found: list[ir.Value] = []
    for view in block.operations:
        op = view.operation
        inside = bool(op.results) and all(depends[result] <= arguments for result in op.results)
        if not inside:
            found += [v for v in op.operands if depends.get(v) == arguments and not isinstance(v.owner, ir.Block) and not is_constant(v)]
    return list(dict.fromkeys(found))


def _used_once(value: ir.Value) -> bool:
    return sum(1 for _ in value.uses) == 1


def _own_name(op: ir.Operation) -> str | None:
    """The user's name of a value."""
    return op.location.name_str if isinstance(op.location, ir.NameLoc) else None


def _hint(value: ir.Value) -> str:
    """A short name that tells the type."""
    type_ = str(value.type)
    return {"i1": "is", "index": "n", "f32": "x", "f64": "x"}.get(type_, "h" if type_ in ("f16", "bf16") else "n")
