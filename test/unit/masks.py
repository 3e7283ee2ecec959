"""Known masks, written once as Python functions: run on numpy arrays they are dense, run on `Value` they become IR."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.intervals.classify import FULL, SKIP
from attn_mlir.passes.resolve_masks import ResolveMasks
from contexts import loaded_context


@dataclasses.dataclass(eq=False)
class Value:
    """A traced index or bool that writes one line of IR per operation."""

    lines: list[str]
    text: str
    type: str = "index"

    def _emit(self, op: str, *operands: "Value | int", type_: str = "index", spelled: str | None = None) -> "Value":
        texts = [self._lift(o).text for o in operands]
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = {op} {spelled + ', ' if spelled else ''}{', '.join(texts)} : {self.type}")
        return Value(self.lines, name, type_)

    def _lift(self, value: "Value | int") -> "Value":
        if isinstance(value, Value):
            return value
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = arith.constant {int(value)} : index")
        return Value(self.lines, name)

    def __add__(self, o: Any) -> "Value":
        return self._emit("arith.addi", self, o)

    def __sub__(self, o: Any) -> "Value":
        return self._emit("arith.subi", self, o)

    def __rsub__(self, o: Any) -> "Value":
        return self._lift(o) - self

    def __mul__(self, o: Any) -> "Value":
        return self._emit("arith.muli", self, o)

    def __floordiv__(self, o: Any) -> "Value":
        return self._emit("arith.floordivsi", self, o)

    def __mod__(self, o: Any) -> "Value":
        return self - (self // o) * o

    def __abs__(self) -> "Value":
        return self._emit("math.absi", self)

    def clip(self, low: int, high: int) -> "Value":
        return self._emit("arith.maxsi", self, low)._emit("arith.minsi", Value(self.lines, f"%t{len(self.lines) - 1}"), high)

    def _compare(self, predicate: str, o: Any) -> "Value":
        return self._emit("arith.cmpi", self, o, type_="i1", spelled=predicate)

    def __ge__(self, o: Any) -> "Value":
        return self._compare("sge", o)

    def __gt__(self, o: Any) -> "Value":
        return self._compare("sgt", o)

    def __le__(self, o: Any) -> "Value":
        return self._compare("sle", o)

    def __lt__(self, o: Any) -> "Value":
        return self._compare("slt", o)

    def __eq__(self, o: Any) -> "Value":  # type: ignore[override]
        return self._compare("eq", o)

    def __ne__(self, o: Any) -> "Value":  # type: ignore[override]
        return self._compare("ne", o)

    def __and__(self, o: Any) -> "Value":
        return self._emit("arith.andi", self, o, type_=self.type)

    def __or__(self, o: Any) -> "Value":
        return self._emit("arith.ori", self, o, type_="i1")

    def __xor__(self, o: Any) -> "Value":
        return self._emit("arith.xori", self, o, type_="i1")

    def __invert__(self) -> "Value":
        name = f"%t{len(self.lines)}"
        self.lines.append(f"{name} = arith.constant true")
        return self ^ Value(self.lines, name, "i1")


@dataclasses.dataclass(eq=False)
class Tensor:
    """A captured tensor, indexed by traced values."""

    lines: list[str]
    text: str
    type: str

    def __getitem__(self, indices: Any) -> Value:
        indices = indices if isinstance(indices, tuple) else (indices,)
        element = self.type[len("tensor<") : -1].split("x")[-1]
        first = Value(self.lines, "").lines
        name = f"%t{len(first)}"
        first.append(f"{name} = tensor.extract {self.text}[{', '.join(i.text for i in indices)}] : {self.type}")
        if element == "i1":
            return Value(first, name, "i1")
        first.append(f"{name}_i = arith.index_cast {name} : {element} to index")
        return Value(first, f"{name}_i")


_ELEMENTS = {"int64": "i64", "int32": "i32", "bool": "i1"}
MaskFn = Callable[..., Any]


def module_text(mask: MaskFn, captures: Sequence[Any] = (), pairs: bool = False) -> str:
    """A stage 0 module of the mask `mask(b, h, q, k, *captures)`, of an attention or of pairs."""
    lines: list[str] = []
    types = ["index" if isinstance(c, int) else f"tensor<{'?x' * c.ndim}{_ELEMENTS[c.dtype.name]}>" for c in captures]
    names = [f"%c{i}" for i in range(len(captures))]
    traced = [Value(lines, n) if t == "index" else Tensor(lines, n, t) for n, t in zip(names, types, strict=True)]
    result = mask(*(Value(lines, f"%{n}") for n in ("b", "h", "q_idx", "kv_idx")), *traced)
    body = "\n      ".join(lines)
    io = "tensor<?x?x?x8xf32>"
    arguments = "".join(f", {n}: {t}" for n, t in zip(names, types, strict=True))
    if pairs:
        return f"""func.func @pairs(%q: {io}, %k: {io}, %v: {io}{arguments}) -> {io} {{
  %w = "attn.pairs"() ({{
    "attn.product"(%q, %k) : ({io}, {io}) -> ()
    "attn.mask"() ({{
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      {body}
      "attn.yield"({result.text}) : (i1) -> ()
    }}) : () -> ()
    "attn.pair"() ({{
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }}) : () -> ()
  }}) : () -> none
  %o = "attn.query_sum"(%w, %k) {{weights = array<i64: 0>}} : (none, {io}) -> {io}
  return %o : {io}
}}"""
    return f"""func.func @attention(%q: {io}, %k: {io}, %v: {io}{arguments}) -> {io} {{
  %o = "attn.attention"(%q, %k, %v) ({{
    "attn.mask"() ({{
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      {body}
      "attn.yield"({result.text}) : (i1) -> ()
    }}) : () -> ()
    "attn.row"() ({{
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }}) : () -> ()
  }}) {{outputs = []}} : ({io}, {io}, {io}) -> {io}
  return %o : {io}
}}"""


def resolved(mask: MaskFn, captures: Sequence[Any] = (), cuts: int = 1, pairs: bool = False) -> ir.Module:
    """The module of `mask` after attn-resolve-masks."""
    context = loaded_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(module_text(mask, captures, pairs))
        if not ResolveMasks(cuts=cuts).run(module.operation):
            raise ValueError("attn-resolve-masks failed")
        module.operation.verify()
    return module


def dense_classes(mask: MaskFn, captures: Sequence[Any], sq: int, skv: int, block_q: int, block_kv: int) -> Any:
    """The class of every block of head (0, 0), by evaluating every position."""
    q, k = np.arange(sq)[:, None], np.arange(skv)[None, :]
    present = np.broadcast_to(mask(0, 0, q, k, *captures), (sq, skv))
    starts = np.arange(0, sq, block_q), np.arange(0, skv, block_kv)
    some = np.logical_or.reduceat(np.logical_or.reduceat(present, starts[0], 0), starts[1], 1)
    every = np.logical_and.reduceat(np.logical_and.reduceat(present, starts[0], 0), starts[1], 1)
    return some.astype(int) + every


def share_exact(exact: Any, found: Any, extent: int) -> float:
    """Asserts that the classes and bounds that were `found` are sound; the share of blocks whose class is `exact`."""
    grid, bounds = found.grid[0, 0], found.bounds[0, 0]
    assert not ((grid == SKIP) & (exact > 0)).any(), "skips a present position"
    assert not ((grid == FULL) & (exact < FULL)).any(), "keeps an absent position"
    ordered = np.concatenate([np.zeros((len(bounds), 1)), bounds, np.full((len(bounds), 1), extent)], axis=1)
    assert (np.diff(ordered, axis=1) >= 0).all(), f"bounds out of order or outside [0, {extent}]"
    return float((grid == exact).mean())
