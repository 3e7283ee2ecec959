"""Row programs for tests, written as Python expressions that print themselves as MLIR."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from contexts import loaded_context

DIM = 4


@dataclass(eq=False)
class Text:
    """The lines of a row region; `type` is the score type."""

    type: str = "f32"
    lines: list[str] = field(default_factory=list)

    def op(self, text: str, result: str | None = None, name: str | None = None) -> "V":
        value = V(self, f"%v{len(self.lines)}")
        location = f' loc("{name}")' if name else ""
        self.lines.append(f"{value.name} = {text} : {result or self.type}{location}")
        return value

    def const(self, value: "float | V") -> "V":
        return value if isinstance(value, V) else self.op(f"arith.constant {float(value):.9e}")

    def param(self, tensor: str) -> "V":
        """One number per head from the captured tensor."""
        value = V(self, f"%v{len(self.lines)}")
        self.lines.append(f'{value.name} = tensor.extract {tensor}[%h] : tensor<?x{self.type}> loc("{tensor[1:]}")')
        return value


@dataclass(eq=False)
class V:
    """A value of the row."""

    text: Text
    name: str

    def _binary(self, op: str, other: "float | V", swap: bool = False) -> "V":
        x, y = self, self.text.const(other)
        x, y = (y, x) if swap else (x, y)
        return self.text.op(f"arith.{op} {x.name}, {y.name}")

    def __add__(self, other: "float | V") -> "V":
        return self._binary("addf", other)

    def __radd__(self, other: float) -> "V":
        return self._binary("addf", other, True)

    def __sub__(self, other: "float | V") -> "V":
        return self._binary("subf", other)

    def __rsub__(self, other: float) -> "V":
        return self._binary("subf", other, True)

    def __mul__(self, other: "float | V") -> "V":
        return self._binary("mulf", other)

    def __rmul__(self, other: float) -> "V":
        return self._binary("mulf", other, True)

    def __truediv__(self, other: "float | V") -> "V":
        return self._binary("divf", other)

    def __rtruediv__(self, other: float) -> "V":
        return self._binary("divf", other, True)

    def __neg__(self) -> "V":
        return self.text.op(f"arith.negf {self.name}")

    def most(self, other: "float | V") -> "V":
        return self._binary("maximumf", other)

    def least(self, other: "float | V") -> "V":
        return self._binary("minimumf", other)

    def power(self, exponent: "float | V") -> "V":
        return self.text.op(f"math.powf {self.name}, {self.text.const(exponent).name}")

    def math(self, op: str) -> "V":
        return self.text.op(f"math.{op} {self.name}")

    def exp(self) -> "V":
        return self.math("exp")

    def log(self) -> "V":
        return self.math("log")

    def sqrt(self) -> "V":
        return self.math("sqrt")

    def abs(self) -> "V":
        return self.math("absf")

    def compare(self, predicate: str, other: "float | V") -> "V":
        x = self.text.const(other)
        return self.text.op(f"arith.cmpf {predicate}, {self.name}, {x.name}")

    def where(self, x: "float | V", y: "float | V") -> "V":
        a, b = self.text.const(x), self.text.const(y)
        return self.text.op(f"arith.select {self.name}, {a.name}, {b.name}")

    def detach(self) -> "V":
        t = self.text.type
        return self.text.op(f'"attn.detach"({self.name})', f"({t}) -> {t}")

    def _reduce(self, kind: str, name: str | None) -> "V":
        t = self.text.type
        return self.text.op(f'"attn.reduce"({self.name}) {{kind = "{kind}"}}', f"({t}) -> {t}", name)

    def sum(self, name: str | None = None) -> "V":
        return self._reduce("sum", name)

    def max(self, name: str | None = None) -> "V":
        return self._reduce("max", name)

    def min(self, name: str | None = None) -> "V":
        return self._reduce("min", name)

    def count(self, name: str | None = None) -> "V":
        return self.text.const(1.0).sum(name)

    def mean(self) -> "V":
        return self.sum("a") / self.count("n")


Rule = Callable[[V], "V | tuple[V, ...]"]


def module_text(rule: Rule, outputs: tuple[str, ...] = (), type_: str = "f32", mask: bool = True, attributes: str = "") -> str:
    """A stage-0 module whose row is `rule`; it captures one tensor %t of a number per head."""
    text = Text(type_)
    got = rule(V(text, "%s"))
    values = got if isinstance(got, tuple) else (got,)
    tensor, row = f"tensor<?x?x?x{DIM}x{type_}>", f"tensor<?x?x?x{type_}>"
    results = ", ".join([tensor, *[row] * len(outputs)])
    names = ", ".join(f'"{n}"' for n in outputs)
    masked = """    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
"""
    body = "\n      ".join(text.lines)
    yielded = f'"attn.yield"({", ".join(v.name for v in values)}) : ({", ".join([type_] * len(values))}) -> ()'
    return f"""func.func @attention(%q: {tensor}, %k: {tensor}, %v: {tensor}, %t: tensor<?x{type_}>) -> ({results}) {{
  %r:{1 + len(outputs)} = "attn.attention"(%q, %k, %v) ({{
{masked if mask else ""}    "attn.row"() ({{
    ^bb0(%s: {type_}, %b: index, %h: index, %q_idx: index):
      {body}
      {yielded}
    }}) : () -> ()
  }}) {{outputs = [{names}]{attributes}}} : ({tensor}, {tensor}, {tensor}) -> ({results})
  return {", ".join(f"%r#{i}" for i in range(1 + len(outputs)))} : {results}
}}
"""


def parse(text: str, fails: bool = False) -> ir.Module:
    """The module; in a context of its own where something `fails` in it."""
    if not fails:
        return ir.Module.parse(text, loaded_context())
    context = ir.Context()
    load_all(context)
    return ir.Module.parse(text, context)
