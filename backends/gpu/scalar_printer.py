"""Prints one scalar op as a C++ expression of its operands' expressions."""

import re

import numpy as np

from attn_mlir.backends.gpu import scalar_ops as ops
from attn_mlir.backends.gpu.scalar_integers import IntegerPrinter
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.elements import EIGHT_BIT
from attn_mlir.dialects.fastmath import is_approximate
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def float_literal(value: float, type_: str = "f32") -> str:
    """A C++ expression that has exactly this value in "f16", "bf16", "f32" or "f64"."""
    if np.isnan(value):
        text = "NAN"
    elif np.isinf(value):
        text = "INFINITY" if value > 0 else "(-INFINITY)"
    elif type_ == "f64":
        text = repr(float(value))
        return f"({text})" if text.startswith("-") else text
    else:
        text = _shortest(float(np.float32(value)))
        text = f"({text}f)" if text.startswith("-") else f"{text}f"
    return _narrow(text, type_) if type_ in ("f16", "bf16") else text


def _shortest(value: float) -> str:
    """The shortest decimal number that f32 rounds to `value`."""
    text = str(np.float32(value))
    return text if re.search(r"[.e]", text) else f"{text}.0"


def _widen(text: str, type_: str) -> str:
    return f"__half2float({text})" if type_ == "f16" else f"__bfloat162float({text})"


def _narrow(text: str, type_: str) -> str:
    text = text[1:-1] if is_wrapped(text) else text
    return f"__float2half_rn({text})" if type_ == "f16" else f"__float2bfloat16_rn({text})"


def _call(name: str, args: list[str]) -> str:
    return f"{name}({', '.join(text[1:-1] if is_wrapped(text) else text for text in args)})"


def is_wrapped(text: str) -> bool:
    """Whether the first parenthesis closes at the very end."""
    if not text.startswith("(") or not text.endswith(")"):
        return False
    depth = 0
    for position, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


class ScalarPrinter(IntegerPrinter):
    """Prints one op."""

    def text(self) -> str:
        """The expression; an operator of it stands in parentheses.

        Raises UnsupportedError for ops without a form in C++.
        """
        name = self._name
        if name == "arith.constant":
            return self._constant()
        if name in ops.OPERATORS or name in ops.FUNCTIONS or name in ops.HELPED or name == "arith.negf":
            return self._float()
        handler = getattr(self, "_" + name.partition(".")[2], None)
        if not name.startswith(("arith.", "math.")) or handler is None:
            raise UnsupportedError(f"there is no C++ form of '{name}' ({source_line(self._op.location)}); write it with other operations")
        return handler(*self._args)

    # ---- floats

    def _constant(self) -> str:
        attribute, type_ = self._op.attributes["value"], self._result.type
        if isinstance(type_, ir.IntegerType) and type_.width == 1:
            return "true" if attribute.value else "false"
        if isinstance(attribute, ir.IntegerAttr):
            number = attribute.value
            text = str(number) if number != -(1 << 63) else f"({number + 1} - 1)"
            return text + "ll" if not -(1 << 31) <= number < 1 << 31 else f"({text})" if number < 0 else text
        return float_literal(ir.FloatAttr(attribute).value, str(type_))

    def _float(self) -> str:
        type_ = str(self._result.type)
        args = self._args
        if type_ in ("f16", "bf16"):
            args = [_widen(arg, type_) for arg in args]
        text = self._float_of(args, wide=type_ == "f64")
        return _narrow(text, type_) if type_ in ("f16", "bf16") else text

    def _float_of(self, args: list[str], wide: bool) -> str:
        if self._name == "arith.negf":
            return f"(-{args[0]})"
        if self._name == "arith.divf" and ops.EXACT in self._op.attributes and not wide:
            return _call(self._helper("exact_quotient"), args)
        if self._name in ops.OPERATORS:
            return f"({args[0]} {ops.OPERATORS[self._name]} {args[1]})"
        if self._name in ops.FUNCTIONS:
            return _call(ops.FUNCTIONS[self._name] + ("" if wide else "f"), args)
        if wide:
            name = ops.WIDE[self._name]
            return _call(self._helper(name) if name.endswith("_wide") else name, args)
        helper = "tanh_fast" if self._name == "math.tanh" and is_approximate(self._op) else ops.HELPED[self._name]
        return _call(self._helper(helper), args)

    def _fpowi(self, x: str, n: str) -> str:
        if str(self._result.type) == "f64":
            return f"pow({x}, (double){n})"
        return _call(self._helper("power"), [x, f"(float){n}"])

    def _cmpf(self, a: str, b: str) -> str:
        type_, predicate = str(self._op.operands[0].type), ir.IntegerAttr(self._op.attributes["predicate"]).value
        if type_ in ("f16", "bf16"):
            a, b = _widen(a, type_), _widen(b, type_)
        if predicate in (0, 15):
            return "false" if predicate == 0 else "true"
        if predicate in ops.ORDERED:
            return f"({a} {ops.ORDERED[predicate]} {b})"
        if predicate in ops.INVERTED:
            return f"(!({a} {ops.INVERTED[predicate]} {b}))"
        forms = {6: "({a} < {b} | {a} > {b})", 7: "({a} == {a} & {b} == {b})", 8: "(!({a} < {b} | {a} > {b}))", 13: "({a} != {b})"}
        return forms.get(predicate, "({a} != {a} | {b} != {b})").format(a=a, b=b)

    def _isnan(self, a: str) -> str:
        return f"({a} != {a})"

    def _isinf(self, a: str) -> str:
        return f"(fabs({a}) == INFINITY)"

    def _isfinite(self, a: str) -> str:
        return f"(fabs({a}) < INFINITY)"

    # ---- casts

    def _extf(self, a: str) -> str:
        source, target = str(self._op.operands[0].type), str(self._result.type)
        if source in EIGHT_BIT:
            a, source = _call(self._helper(f"widen_{source}"), [a]), "f32"
        text = _widen(a, source) if source in ("f16", "bf16") else a
        return text if target == "f32" else f"(double){text}"

    def _truncf(self, a: str) -> str:
        target = str(self._result.type)
        if target == "f32":
            return f"(float){a}"
        if target in EIGHT_BIT:
            return _call(self._helper(f"round_{target}"), [f"(float){a}" if str(self._op.operands[0].type) == "f64" else a])
        return _narrow(f"(float){a}" if str(self._op.operands[0].type) == "f64" else a, target)

    def _sitofp(self, a: str) -> str:
        sign = "-" if str(self._op.operands[0].type) == "i1" else ""
        return self._to_float(f"{sign}{self._cast()}{a}")

    def _uitofp(self, a: str) -> str:
        return self._to_float(f"{self._cast()}{self._unsigned(a, self._op.operands[0])}")

    def _cast(self) -> str:
        type_ = str(self._result.type)
        return "(double)" if type_ == "f64" else "(float)"

    def _to_float(self, text: str) -> str:
        type_ = str(self._result.type)
        return _narrow(text, type_) if type_ in ("f16", "bf16") else f"({text})"

    def _fptosi(self, a: str) -> str:
        return f"({ops.c_type(self._result.type)}){self._as_float(a)}"

    def _fptoui(self, a: str) -> str:
        return f"({ops.c_type(self._result.type)}){self._unsigned_cast(self._result)}{self._as_float(a)}"

    def _as_float(self, a: str) -> str:
        type_ = str(self._op.operands[0].type)
        return _widen(a, type_) if type_ in ("f16", "bf16") else a

    def _bitcast(self, a: str) -> str:
        names = {("f32", "i32"): "__float_as_int", ("i32", "f32"): "__int_as_float"}
        key = (str(self._op.operands[0].type), str(self._result.type))
        if key not in names:
            raise UnsupportedError(f"scalars: bits of {key[0]} cannot be read as {key[1]} ({source_line(self._op.location)})")
        return f"{names[key]}({a})"
