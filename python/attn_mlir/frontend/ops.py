"""Primitive operations on nodes: result kind, promotion, folding of known values, sign of indices."""

import dataclasses
import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.float_values import folded
from attn_mlir.frontend import scope, where
from attn_mlir.frontend.node import Kind, Node

_RANK: dict[Kind, int] = {"bool": 0, "int": 1, "float": 2}
_INT64 = 2**63


def constant(value: bool | int | float) -> Node:
    """The node of a Python number."""
    if isinstance(value, bool):
        return Node("constant", "bool", attribute=value, known=value, nonnegative=True)
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise scope.fail(f"the integer {value} does not fit 64 bits", "use a float, or a smaller integer")
        return Node("constant", "int", attribute=value, known=value, nonnegative=value >= 0)
    return Node("constant", "float", attribute=value, known=value, nonnegative=value >= 0)


def make(
    op: str,
    kind: Kind,
    *operands: Node,
    attribute: Any = None,
    fold: Callable[..., Any] | None = None,
    nonnegative: bool = False,
    invariant: bool = False,
) -> Node:
    """A new node of the current piece; a constant where all operands are."""
    trace = scope.current()
    owner = None
    for operand in operands:
        if operand.scope is not None:
            if operand.scope is not trace.scope:
                raise scope.fail(
                    "uses a traced value that belongs to another function or another call",
                    "pass values through the function's parameters and results, not through globals, attributes or lists",
                )
            owner = operand.scope
    known = None
    if fold is not None and all(operand.known is not None for operand in operands):
        known = _fold(fold, operands)
    if known is not None and all(operand.is_constant for operand in operands):
        return constant(known)
    sources = frozenset().union(*(operand.sources for operand in operands)) if known is not None else frozenset()
    varying = not invariant and any(operand.varying for operand in operands)
    again = fold if known is not None else None
    node = Node(op, kind, operands, attribute, trace.next_order(), owner, varying, nonnegative, where.here(), known, sources, again)
    return node if known is not None or torch.is_grad_enabled() or not trace.grad else _without_gradient(trace, node)


def _without_gradient(trace: scope.Trace, node: Node) -> Node:
    """A number that is computed within `torch.no_grad()` inside of the function."""
    numbers = [x for x in node.operands if x.kind == "float" and x.known is None]
    constant = trace.scope is not None and trace.scope.kind == "mask"  # which has no gradients
    if constant or node.kind != "float" or node.op == "attn.detach":
        return node
    if node.op != "tensor.extract" and all(x in trace.detached or x.op == "attn.detach" for x in numbers):
        trace.detached.add(node)
        return node
    return dataclasses.replace(node, op="attn.detach", operands=(node,), attribute=None, order=trace.next_order())


def _fold(fold: Callable[..., Any], operands: tuple[Node, ...]) -> Any:
    try:
        value = fold(*(operand.known for operand in operands))
    except (ArithmeticError, ValueError):
        return None
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT64 <= value < _INT64:
        return None
    return None if isinstance(value, complex) else value


def cast(x: Node, kind: Kind) -> Node:
    """`x` as another kind; float to int truncates towards zero, anything to bool asks whether it is not 0."""
    if x.kind == kind:
        return x
    if kind == "bool":
        return compare("ne", x, constant(0.0 if x.kind == "float" else 0))
    if x.kind == "bool":
        one, zero = (constant(1.0), constant(0.0)) if kind == "float" else (constant(1), constant(0))
        return select(x, one, zero)
    return make("cast", kind, x, fold=float if kind == "float" else int, nonnegative=x.nonnegative)


def promote(*nodes: Node, least: Kind = "bool") -> tuple[Node, ...]:
    """The nodes as their common kind, at least `least`."""
    kind: Kind = max([least, *(node.kind for node in nodes)], key=lambda kind: _RANK[kind])
    return tuple(cast(node, kind) for node in nodes)


def _arithmetic(name: str, fold: Callable[..., Any], a: Node, b: Node, nonnegative: bool) -> Node:
    suffix = "f" if a.kind == "float" else "i"
    return make(f"arith.{name}{suffix}", a.kind, a, b, fold=fold, nonnegative=nonnegative)


def add(a: Node, b: Node) -> Node:
    if a.kind == b.kind == "bool":
        return logical("or", a, b)
    a, b = promote(a, b, least="int")
    return _arithmetic("add", operator.add, a, b, a.nonnegative and b.nonnegative)


def sub(a: Node, b: Node) -> Node:
    a, b = promote(a, b, least="int")
    return _arithmetic("sub", operator.sub, a, b, False)


def mul(a: Node, b: Node) -> Node:
    if a.kind == b.kind == "bool":
        return logical("and", a, b)
    a, b = promote(a, b, least="int")
    return _arithmetic("mul", operator.mul, a, b, a.nonnegative and b.nonnegative)


def truediv(a: Node, b: Node) -> Node:
    a, b = promote(a, b, least="float")
    return _arithmetic("div", operator.truediv, a, b, False)


def _divisor(b: Node) -> Node:
    """`b` so that an integer division by it cannot trap."""
    if b.known == 0:
        raise scope.fail("integer division by zero", "make the divisor at least 1")
    if b.is_constant:
        return b
    if b.op == "capture":
        scope.current().nonzero.add(b.attribute)
        return b
    return select(compare("eq", b, constant(0)), constant(1), b)


def floordiv(a: Node, b: Node) -> Node:
    a, b = promote(a, b, least="int")
    if a.kind == "float":
        return unary("math.floor", truediv(a, b))
    return _integer_floordiv(a, _divisor(b))


def _integer_floordiv(a: Node, b: Node) -> Node:
    return make("arith.floordivsi", "int", a, b, fold=operator.floordiv, nonnegative=a.nonnegative and b.nonnegative)


def mod(a: Node, b: Node) -> Node:
    """Python's and torch's %: the result has the sign of `b`."""
    a, b = promote(a, b, least="int")
    if a.kind == "int":
        b = _divisor(b)
        product = mul(_integer_floordiv(a, b), b)
    else:
        product = mul(floordiv(a, b), b)
    suffix = "f" if a.kind == "float" else "i"
    return make(f"arith.sub{suffix}", a.kind, a, product, fold=operator.sub, nonnegative=b.nonnegative)


def remainder_towards_zero(a: Node, b: Node) -> Node:
    """torch.fmod: the result has the sign of `a`."""
    a, b = promote(a, b, least="int")
    if a.kind == "int" and a.nonnegative and b.nonnegative:  # as %, whose bounds are known
        return mod(a, b)
    if a.kind == "int":
        return make("arith.remsi", "int", a, _divisor(b), fold=lambda x, y: int(math.fmod(x, y)), nonnegative=a.nonnegative)
    return sub(a, mul(truncate(truediv(a, b)), b))


def quotient_towards_zero(a: Node, b: Node) -> Node:
    """torch.div of integers with rounding_mode="trunc"."""
    a, b = promote(a, b, least="int")
    if a.nonnegative and b.nonnegative:  # as //, whose bounds are known
        return floordiv(a, b)
    return make("arith.divsi", "int", a, _divisor(b), fold=lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1))


def neg(x: Node) -> Node:
    if x.kind == "bool":
        raise scope.fail("`-` of a bool", "write ~x to negate a condition, or x.int() for 0 and 1")
    if x.kind == "int":
        return make("arith.subi", "int", constant(0), x, fold=operator.sub)
    return make("arith.negf", "float", x, fold=operator.neg)


_FLOAT_PREDICATES = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge"}
_INT_PREDICATES = {"eq": "eq", "ne": "ne", "lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge"}


def compare(name: str, a: Node, b: Node) -> Node:
    """eq, ne, lt, le, gt or ge; gives a bool."""
    if a.kind == b.kind == "bool" and name in ("eq", "ne"):
        different = logical("xor", a, b)
        return different if name == "ne" else invert(different)
    a, b = promote(a, b, least="int")
    fold = getattr(operator, name)
    if a.kind == "float":
        return make("arith.cmpf", "bool", a, b, attribute=_FLOAT_PREDICATES[name], fold=fold)
    return make("arith.cmpi", "bool", a, b, attribute=_INT_PREDICATES[name], fold=fold)


def logical(name: str, a: Node, b: Node) -> Node:
    """Bitwise and, or, xor of bools or of integers."""
    a, b = promote(a, b)
    if a.kind == "float":
        sign = {"and": "&", "or": "|", "xor": "^"}[name]
        raise scope.fail(f"`{sign}` of a float", f"compare first, with parentheses: (a > 0) {sign} (b > 0)")
    fold = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}[name]
    signs = (a.nonnegative, b.nonnegative)
    return make(f"arith.{name}i", a.kind, a, b, fold=fold, nonnegative=any(signs) if name == "and" else all(signs))


def invert(x: Node) -> Node:
    if x.kind == "float":
        raise scope.fail("`~` of a float", "compare first: ~(x > 0)")
    if x.kind == "bool":
        return make("arith.xori", "bool", x, constant(True), fold=operator.xor)
    return make("arith.xori", "int", x, constant(-1), fold=operator.xor)


def shift(name: str, a: Node, b: Node) -> Node:
    """Integer << ("shli") or >> ("shrsi")."""
    a, b = promote(a, b, least="int")
    if a.kind == "float":
        raise scope.fail("a shift of a float", "shifts need integers; multiply by a power of two instead")
    if b.is_constant and not 0 <= int(b.known or 0) < 64:
        raise scope.fail(f"a shift by {b.known}", "shift by 0 to 63 bits")
    if not b.is_constant:
        b = make("arith.andi", "int", b, constant(63), fold=operator.and_, nonnegative=True)
    fold = operator.lshift if name == "shli" else operator.rshift
    return make(f"arith.{name}", "int", a, b, fold=fold, nonnegative=a.nonnegative and name == "shrsi")


def extremum(name: str, a: Node, b: Node, tie: str | None = None) -> Node:
    """Elementwise "max" or "min"; NaN wins, as in torch. `tie`: whose the gradient is where both are equal, "first" or "second"."""
    if a.kind == b.kind == "bool":
        return logical("or" if name == "max" else "and", a, b)
    a, b = promote(a, b, least="int")
    fold = max if name == "max" else min
    signs = (a.nonnegative, b.nonnegative)
    nonnegative = any(signs) if name == "max" else all(signs)
    op = f"arith.{name}imumf" if a.kind == "float" else f"arith.{name}si"
    return make(op, a.kind, a, b, attribute=tie if a.kind == "float" else None, fold=fold, nonnegative=nonnegative)


def select(condition: Node, a: Node, b: Node) -> Node:
    """`a` where `condition`, else `b`."""
    condition = cast(condition, "bool")
    a, b = promote(a, b)
    if condition.is_constant:
        return a if condition.known else b
    fold = lambda c, x, y: x if c else y  # noqa: E731
    return make("arith.select", a.kind, condition, a, b, fold=fold, nonnegative=a.nonnegative and b.nonnegative)


def unary(op: str, x: Node, nonnegative: bool = False, attribute: str | None = None) -> Node:
    """A `math` function of a float; with the attribute "afn" it may be approximated."""
    return make(op, "float", cast(x, "float"), attribute=attribute, fold=functools.partial(folded, op), nonnegative=nonnegative)


def copysign(x: Node, y: Node) -> Node:
    """A magnitude with the sign of another float."""
    op = "math.copysign"
    return make(op, "float", cast(x, "float"), cast(y, "float"), fold=functools.partial(folded, op))


def truncate(x: Node) -> Node:
    """Rounds towards zero; stays a float."""
    x = cast(x, "float")
    return select(compare("lt", x, constant(0.0)), unary("math.ceil", x), unary("math.floor", x))


def absolute(x: Node) -> Node:
    if x.kind == "float":
        return unary("math.absf", x, nonnegative=True)
    if x.kind == "bool":
        raise scope.fail("abs(...) of a bool", "write x.int()")
    if x.nonnegative:
        return cast(x, "int")
    return make("math.absi", "int", x, fold=abs, nonnegative=True)


def power(a: Node, b: Node) -> Node:
    """`a ** b`; small constant exponents become products, powers of two shifts or exp2."""
    exponent = b.known if b.is_constant else None
    if exponent in (0, 1, 2, 3, 4) and (a.kind == "float" or b.kind != "float"):
        return _product(promote(a, least="int")[0], int(exponent))
    if a.kind != "float" and b.kind != "float":
        return _integer_power(cast(a, "int"), cast(b, "int"))
    a, b = promote(a, b, least="float")
    if exponent in (0.5, -0.5):
        return unary("math.sqrt" if exponent == 0.5 else "math.rsqrt", a)
    if a.is_constant and a.known == 2.0:
        return unary("math.exp2", b)
    return make("math.powf", "float", a, b, fold=operator.pow)


def _product(a: Node, exponent: int) -> Node:
    if exponent == 0:
        return constant(1.0 if a.kind == "float" else 1)
    result = a
    for _ in range(exponent - 1):
        result = mul(result, a)
    return result


def _integer_power(a: Node, b: Node) -> Node:
    if a.is_constant and b.nonnegative and a.known in (2, 4, 8, 16):
        bits = int(a.known).bit_length() - 1
        return shift("shli", constant(1), mul(b, constant(bits)))
    if b.is_constant and b.known is not None and b.known >= 0:
        return mul(power(a, constant(int(b.known) // 2)), power(a, constant(int(b.known) - int(b.known) // 2)))
    if a.known is not None and b.known is not None:
        scope.current().concrete(a)
        scope.current().concrete(b)
        return constant(a.known**b.known)
    raise scope.fail("an integer power with a traced exponent", "use a float base, such as 2.0 ** n, and .int() if you need an integer")


def reduce(kind: str, x: Node) -> Node:
    """A reduction over the present keys of the row: "sum", "max" or "min"."""
    piece = scope.current().scope
    if piece is None or piece.kind not in ("row", "step"):
        raise scope.fail(
            "a reduction over the row, where only one position is seen",
            "reductions belong into the row function: attention(..., row=f) with f(s), which gets a row of scores; "
            "other tensors, q, k and v among them, can be reduced before the call",
        )
    return make("attn.reduce", "float", cast(x, "float"), attribute=kind, invariant=True)


def detach(x: Node) -> Node:
    """The same value, without a gradient."""
    return make("attn.detach", "float", x) if x.kind == "float" else x


def slope(x: Node, factor: Node) -> Node:
    """0, whose derivative by `x` is `factor`."""
    return make("attn.slope", "float", x, cast(factor, "float"))
