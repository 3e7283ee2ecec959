"""What a user's function is called with: numbers that differ from position to position, recorded as they are computed.

A value behaves like a PyTorch tensor of rank 0: operators both ways round, torch functions, and torch's method names
(see `methods`). In a row function it stands for the whole row, and reductions such as `.max()` are over the row.
"""

from collections.abc import Callable
from typing import Any

from attn_mlir.errors import TraceError
from attn_mlir.frontend import ops, report, scope, unknown, where
from attn_mlir.frontend.classes import seen_class
from attn_mlir.frontend.links import LINKS
from attn_mlir.frontend.node import Node


class Value:
    """A traced number. Its node is the expression that computes it."""

    __slots__ = ("_node",)
    __array_priority__ = 1000

    stands_for_tensor = True
    __class__ = property(lambda self: seen_class(self, Value))  # type: ignore[assignment]

    def __init__(self, node: Node) -> None:
        self._node = node

    # Arithmetic, both ways round.
    def __add__(self, other: Any) -> "Value":
        return _binary(ops.add, self, other)

    def __radd__(self, other: Any) -> "Value":
        return _binary(ops.add, other, self)

    def __sub__(self, other: Any) -> "Value":
        return _binary(ops.sub, self, other)

    def __rsub__(self, other: Any) -> "Value":
        return _binary(ops.sub, other, self)

    def __mul__(self, other: Any) -> "Value":
        return _binary(ops.mul, self, other)

    def __rmul__(self, other: Any) -> "Value":
        return _binary(ops.mul, other, self)

    def __truediv__(self, other: Any) -> "Value":
        return _binary(ops.truediv, self, other)

    def __rtruediv__(self, other: Any) -> "Value":
        return _binary(ops.truediv, other, self)

    def __floordiv__(self, other: Any) -> "Value":
        return _binary(ops.floordiv, self, other)

    def __rfloordiv__(self, other: Any) -> "Value":
        return _binary(ops.floordiv, other, self)

    def __mod__(self, other: Any) -> "Value":
        return _binary(ops.mod, self, other)

    def __rmod__(self, other: Any) -> "Value":
        return _binary(ops.mod, other, self)

    def __divmod__(self, other: Any) -> "tuple[Value, Value]":
        return self // other, self % other

    def __pow__(self, other: Any) -> "Value":
        return _binary(ops.power, self, other)

    def __rpow__(self, other: Any) -> "Value":
        return _binary(ops.power, other, self)

    def __neg__(self) -> "Value":
        return wrap(ops.neg(self._node))

    def __pos__(self) -> "Value":
        return self

    def __abs__(self) -> "Value":
        return wrap(ops.absolute(self._node))

    # Bits and conditions.
    def __and__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.logical("and", a, b), self, other)

    def __rand__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.logical("and", a, b), other, self)

    def __or__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.logical("or", a, b), self, other)

    def __ror__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.logical("or", a, b), other, self)

    def __xor__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.logical("xor", a, b), self, other)

    def __rxor__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.logical("xor", a, b), other, self)

    def __invert__(self) -> "Value":
        return wrap(ops.invert(self._node))

    def __lshift__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.shift("shli", a, b), self, other)

    def __rlshift__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.shift("shli", a, b), other, self)

    def __rshift__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.shift("shrsi", a, b), self, other)

    def __rrshift__(self, other: Any) -> "Value":
        return _binary(lambda a, b: ops.shift("shrsi", a, b), other, self)

    # Comparisons.
    def __eq__(self, other: Any) -> "Value":  # type: ignore[override]
        return _comparison("eq", self, other)

    def __ne__(self, other: Any) -> "Value":  # type: ignore[override]
        return _comparison("ne", self, other)

    def __lt__(self, other: Any) -> "Value":
        return _comparison("lt", self, other)

    def __le__(self, other: Any) -> "Value":
        return _comparison("le", self, other)

    def __gt__(self, other: Any) -> "Value":
        return _comparison("gt", self, other)

    def __ge__(self, other: Any) -> "Value":
        return _comparison("ge", self, other)

    # What needs a concrete value: allowed for captured scalars, which specialises the trace; an error otherwise.
    def __bool__(self) -> bool:
        if self._node.known is not None:
            return scope.current().decide(self._node)
        construct, advice = report.branch_advice(where.here())
        raise scope.refuse(f"{construct} needs one concrete value, but {self._describe()} differs from position to position", advice)

    def __int__(self) -> int:
        return int(self._concrete("int(...)", "write x.int() for a cast"))

    def __float__(self) -> float:
        return float(
            self._concrete(
                "float(...) or a function of `math`", "use torch's functions (torch.exp, torch.sqrt, ...), or x.float() for a cast"
            )
        )

    def __index__(self) -> int:
        value = self._concrete(
            "a Python index, range or shape", "index a torch tensor instead of a list, and unroll loops over fixed numbers only"
        )
        if not isinstance(value, (int, bool)):
            raise scope.refuse(f"a float ({value}) where Python needs an integer", "write int(x)")
        return int(value)

    def __hash__(self) -> int:
        advice = "use a torch tensor as the table and index it; functions cached with functools.lru_cache cannot be traced"
        return hash(self._concrete("a dictionary key or set element", advice))

    def __round__(self, digits: int | None = None) -> Any:
        if self._node.known is not None:
            return round(scope.current().concrete(self._node), digits)  # type: ignore[call-overload]
        if digits is not None:
            raise scope.refuse("round(...) of a traced value to a number of digits", "write (x * 100).round() / 100")
        return self.round().int()

    def __floor__(self) -> "Value":
        return self.floor().int()

    def __ceil__(self) -> "Value":
        return self.ceil().int()

    def __trunc__(self) -> "Value":
        return self.int()

    def _concrete(self, use: str, advice: str) -> Any:
        if self._node.known is None:
            raise scope.refuse(f"{use} needs one concrete value, but {self._describe()} differs from position to position", advice)
        return scope.current().concrete(self._node)

    # In place, as tensors do: whoever else has this value sees the new one. Captured Python numbers stay.
    def __iadd__(self, other: Any) -> "Value":
        return self._changed(self + other)

    def __isub__(self, other: Any) -> "Value":
        return self._changed(self - other)

    def __imul__(self, other: Any) -> "Value":
        return self._changed(self * other)

    def __itruediv__(self, other: Any) -> "Value":
        return self._changed(self / other)

    def __ifloordiv__(self, other: Any) -> "Value":
        return self._changed(self // other)

    def __imod__(self, other: Any) -> "Value":
        return self._changed(self % other)

    def __ipow__(self, other: Any) -> "Value":
        return self._changed(self**other)

    def __iand__(self, other: Any) -> "Value":
        return self._changed(self & other)

    def __ior__(self, other: Any) -> "Value":
        return self._changed(self | other)

    def __ixor__(self, other: Any) -> "Value":
        return self._changed(self ^ other)

    def _changed(self, new: "Value") -> "Value":
        if type(self) is not Value or self._node.known is not None:
            return new
        self._node = new._node
        return self

    # What a rank-0 value does not have.
    def __iter__(self) -> Any:
        if self._is_row():
            raise scope.fail(f"iterates over {self._describe()}, which is a whole row of keys", unknown.ROW)
        raise scope.fail(f"iterates over {self._describe()}, which is one number", "the function sees one position at a time")

    def __len__(self) -> int:
        kind = "as long as there are keys: Python needs a number" if self._is_row() else "one number"
        raise scope.fail(f"len(...) of {self._describe()}, which is {kind}", unknown.LENGTHS)

    def __getitem__(self, index: Any) -> Any:
        items = index if isinstance(index, tuple) else (index,)
        if self._is_row():
            raise scope.fail(f"indexes {self._describe()}, which is a whole row of keys", unknown.ROW)
        if all(item is None or item is Ellipsis for item in items):  # a reduced row with a dimension for the keys, as in m[..., None]
            return self
        advice = "the function sees one position at a time; index captured tensors only"
        raise scope.fail(f"indexes {self._describe()}, which is one number", advice)

    def _is_row(self) -> bool:
        """Whether it differs from key to key of a row function."""
        piece = scope.current().scope
        return self._node.varying and piece is not None and piece.kind in ("row", "step")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise scope.fail("changes a traced value in place", "make a new value: score = torch.where(cond, a, score)")

    def __contains__(self, item: Any) -> bool:
        raise scope.fail(f"`in` on {self._describe()}, which is one number", "compare with each: (x == 1) | (x == 2)")

    def __array__(self, *arguments: Any, **options: Any) -> Any:
        raise scope.fail(
            f"numpy needs one concrete value, but {self._describe()} differs from position to position", "use torch's functions"
        )

    def __format__(self, spec: str) -> str:
        return format(scope.current().concrete(self._node), spec) if self._node.known is not None else repr(self)

    def __repr__(self) -> str:
        return self._described() if self._node.known is None else repr(scope.current().concrete(self._node))

    def _described(self) -> str:
        return f"<traced {self._node.kind} {self._describe()}>"

    def _describe(self) -> str:
        node = self._node
        if node.op == "argument":
            return f"`{node.attribute}`"
        if scope.is_tracing() and node in scope.current().labels:
            return f"`{scope.current().labels[node]}`"
        if node.position is not None:
            variable = where.resolve(node.position).variable
            if variable is not None:
                return f"`{variable}`"
        return "the condition" if node.kind == "bool" else "the value"

    def __getattr__(self, name: str) -> Any:
        return LINKS.attribute(self, name)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return LINKS.torch(func, args, kwargs or {})

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            raise scope.fail(f"numpy's {ufunc.__name__}.{method} of a traced value", "use torch's functions")
        return LINKS.call(ufunc.__name__, "numpy", *inputs)


def wrap(node: Node) -> Value:
    """The value of a node."""
    return Value(node)


def lift(x: Any) -> Node:
    """The node of a value, a Python or numpy number, or a captured tensor of rank 0."""
    if isinstance(x, Value):
        return x._node
    if isinstance(x, (bool, int, float)):
        known = scope.captured_number(x) if type(x) is float else None
        return ops.constant(x) if known is None else known
    return LINKS.lift(x)


def value(x: Any) -> Value:
    """`x` as a value."""
    return x if isinstance(x, Value) else wrap(lift(x))


def _binary(operation: Callable[[Node, Node], Node], a: Any, b: Any) -> Any:
    if _has_dimensions(a) or _has_dimensions(b):
        for x in (a, b):
            if not isinstance(x, Value) and not hasattr(x, "stands_for_tensor"):
                LINKS.vector(x)  # raises where it is too large: torch would take that for an operand it does not know
        return NotImplemented  # its own operator writes it out
    return Value(operation(lift(a), lift(b)))


def _has_dimensions(x: Any) -> bool:
    if isinstance(x, (Value, bool, int, float)):
        return False
    return LINKS.is_array(x)


def _comparison(name: str, a: Value, b: Any) -> Value:
    if b is None:
        raise TraceError(str(scope.fail("compares a traced value with None", "`x is None` asks whether a value is there")))
    return _binary(lambda x, y: ops.compare(name, x, y), a, b)
