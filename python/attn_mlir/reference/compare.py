"""Runs two modules on the same inputs and measures how far their results are apart."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, piece
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.evaluator import evaluate, find_function
from attn_mlir.reference.online import merges
from attn_mlir.reference.scalar import Array


@dataclasses.dataclass(frozen=True)
class Difference:
    """How far one output is from the reference: the largest absolute and relative error."""

    name: str
    absolute: float
    relative: float

    def within(self, tolerance: float) -> bool:
        """Whether the relative error (absolute, below 1) is small enough; NaN is not."""
        return self.relative <= tolerance

    def __str__(self) -> str:
        return f"{self.name}: abs {self.absolute:.1e} rel {self.relative:.1e}"


def difference(name: str, got: Array, wanted: Array, where: Array | None = None) -> Difference:
    """Compares `got` with `wanted`, in the rows `where`. Equal infinities and NaN against NaN are no error."""
    if got.shape != wanted.shape:
        return Difference(name, np.inf, np.inf)
    if where is not None:
        got, wanted = got[where], wanted[where]
    with np.errstate(all="ignore"):
        same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
        absolute = np.where(same, 0.0, np.abs(got - wanted))
        relative = np.where(same, 0.0, absolute / np.maximum(1.0, np.abs(wanted)))
    # NaN where only one side is NaN, and infinity over infinity
    absolute, relative = (np.where(np.isnan(x), np.inf, x) for x in (absolute, relative))
    return Difference(name, float(absolute.max(initial=0.0)), float(relative.max(initial=0.0)))


def worst(found: Sequence[Sequence[Difference]]) -> list[Difference]:
    """The largest errors of each output over several runs."""
    return [Difference(runs[0].name, max(r.absolute for r in runs), max(r.relative for r in runs)) for runs in zip(*found, strict=True)]


def ways(module: ir.Module | ir.Operation | ir.OpView, function: str = "attention") -> list[Mapping[str, Any]]:
    """Ways to run `function` that must agree: block sizes, and for a merge, parts."""
    found: list[Mapping[str, Any]] = [{}]
    ops = attention_ops(module, function)
    if any(op.name == "attn.online" or any(piece(op, name) for name in _LIMITS) for op in ops):
        found.append({"block": (5, 3), "q_block": 4})
    online = [op for op in ops if op.name == "attn.online"]
    if online and all(merges(op) for op in online):
        found.append({"block": 4, "q_block": 8, "split": 3})
    return found


_HOLDERS = ("attn.attention", "attn.online", "attn.pairs", "attn.elements", "attn.linear_attention", "attn.chunk")
_LIMITS = ("attn.bounds", "attn.query_bounds", "attn.block_mask")


def attention_ops(module: ir.Module | ir.Operation | ir.OpView, function: str = "attention") -> list[ir.Operation]:
    """The ops of `function`, and of those that it calls, that hold pieces."""
    found: list[ir.Operation] = []
    waiting, seen = [function], {function}
    while waiting:
        func = find_function(module, waiting.pop())
        found += find_all(func, *_HOLDERS)
        called = {ir.FlatSymbolRefAttr(call.attributes["callee"]).value for call in find_all(func, "func.call")}
        waiting += sorted(called - seen)
        seen |= called
    return found


def output_names(module: ir.Module | ir.Operation | ir.OpView, function: str = "attention") -> list[str]:
    """The names of the results: o and the row outputs, where it is an attention and nothing else."""
    func = find_function(module, function)
    if "tile.kernel" in func.attributes:
        stores = len({op.operands[1] for op in find_all(func, "tile.store")})
        return ["o", *(f"row output {i}" for i in range(stores - 1))]
    results = list(ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value).results)
    ops = find_all(func, *_HOLDERS, "attn.output", "func.call")
    if len(ops) == 1 and ops[0].name not in ("attn.pairs", "attn.elements", "func.call") and len(results) == len(ops[0].results):
        return ["o", *(name.value for name in ops[0].attributes["outputs"])]
    return [f"result {i}" for i in range(len(results))]


def compare(
    module: ir.Module | ir.Operation | ir.OpView,
    inputs: Sequence[Any],
    wanted: Sequence[Array],
    where: Array | None = None,
    *,
    filled: Array | None = None,
    names: Sequence[str] | None = None,
    function: str = "attention",
    **options: Any,
) -> list[Difference]:
    """Runs `module` in every way (or the one that `options` say) and compares its results with `wanted`, in the rows `where`.

    `filled` says which rows have keys: in the others, row outputs except lse need only be finite, as they depend on how
    they are computed.
    """
    called = output_names(module, function) if names is None else names
    if "tile.kernel" in find_function(module, function).attributes:
        options = {**options, "shapes": [w.shape for w in wanted]}
    found = []
    for way in [options] if options else ways(module, function):
        results = evaluate(module, inputs, function, **way)
        if len(results) != len(wanted):
            raise EvaluationError(f"@{function} has {len(results)} results, the reference {len(wanted)}", module.operation.location)
        pairs = [(n, _settled(n, got, want, filled), want) for n, got, want in zip(called, results, wanted, strict=True)]
        found.append([difference(n, got, want, where) for n, got, want in pairs])
    return worst(found)


def _settled(name: str, got: Array, wanted: Array, filled: Array | None) -> Array:
    """`got` with `wanted` in its place where any finite value is right."""
    if filled is None or name in ("o", "lse") or got.shape != filled.shape:
        return got
    return np.where(~filled & np.isfinite(got) & np.isfinite(wanted), wanted, got)
