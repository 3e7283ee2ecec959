"""What attn-run executes: functions, inputs for them, and what their results are compared with."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.errors import ArgumentError
from attn_mlir.mlir import ir
from attn_mlir.reference import Difference, InputMaker, Sizes, compare, evaluate, rows_with_keys
from attn_mlir.reference.compare import attention_ops, output_names
from attn_mlir.reference.derivatives import DerivativePoint, inputs_with_gradient, kind_of
from attn_mlir.reference.evaluator import find_function, functions_of

LENGTHS = ((1, 1), (17, 23), (23, 17), (40, 40))
_CHECKED = (17, 23)
"""Differences are costly, so that derivatives are checked by them at one size."""


@dataclass(frozen=True)
class EvaluatedRun:
    """One set of inputs of a function, and what comes of it."""

    function: str
    sizes: Sizes
    inputs: list[np.ndarray]
    names: list[str]
    wanted: list[np.ndarray]
    filled: np.ndarray | None
    """Which rows have keys; None where the reference is a kernel, which does not tell."""
    by_differences: list[Difference] | None = None
    """How far `wanted`, of a derivative, is from differences of @attention; None where that was not asked."""
    wrt: tuple[str, ...] = ()


@dataclass
class Runs:
    """The functions met so far. What a function gives when it is first met is what its later stages are compared with."""

    original: ir.Module
    """Where @attention is, which derivatives are of."""
    args: argparse.Namespace
    known: dict[str, list[EvaluatedRun]] = field(default_factory=dict)

    def meet(self, module: ir.Module | ir.Operation) -> list[EvaluatedRun]:
        """Runs the functions of `module` that are new."""
        new: list[EvaluatedRun] = []
        for function in self._functions(module):
            if function not in self.known:
                self.known[function] = [self._run(module, function, sizes) for sizes in _sizes(self.args)]
                new += self.known[function]
        return new

    def of(self, module: ir.Module | ir.Operation) -> list[EvaluatedRun]:
        """The runs of the functions that `module` holds; all of those that it was to have."""
        if self.args.function is not None:
            find_function(module, self.args.function)
        present = functions_of(module)
        return [run for function, runs in self.known.items() if function in present for run in runs]

    def check_any(self) -> None:
        """Raises DiagnosticError where nothing was run."""
        if not self.known:
            found = ", ".join(f"@{name}" for name in functions_of(self.original)) or "none"
            wanted = "@attention, a derivative such as @attention_bwd, or another function that holds an attention or is a kernel"
            raise DiagnosticError([at(self.original.operation.location, "error", f"nothing to run: expected {wanted}; found {found}")])

    def _functions(self, module: ir.Module | ir.Operation) -> list[str]:
        present = functions_of(module)
        if self.args.function is not None:
            return [self.args.function] if self.args.function in present else []
        return [name for name in present if _is_public(module, name) and _computes(module, name)]

    def _run(self, module: ir.Module | ir.Operation, function: str, sizes: Sizes) -> EvaluatedRun:
        args, derivative = self.args, kind_of(function)
        maker = InputMaker(sizes, args.seed, _integers(args.ints), args.index, args.capture_size)
        if derivative is None:
            inputs = maker.make(module, function)
            filled = self._filled(module, inputs, function)
            return EvaluatedRun(function, sizes, inputs, output_names(module, function), evaluate(module, inputs, function), filled)
        primal, kind = derivative
        original = module if primal in functions_of(module) else self.original
        if primal not in functions_of(original):
            message = f"@{function} is a derivative of @{primal}, which is not in the file: give its program with --primal"
            raise DiagnosticError([at(find_function(module, function).location, "error", message)])
        wrt = inputs_with_gradient(module, original, function, args.wrt.split("+") if args.wrt else [])
        point = DerivativePoint(module, original, primal, maker.make(original, primal), wrt, args.seed)
        inputs = point.arguments(kind)
        wanted = evaluate(module, inputs, function)
        checked = point.check(kind, wanted) if _is_checked(args, sizes) else None
        filled = self._filled(original, point.inputs, primal)
        names = tuple(point.names[i] for i in wrt)
        return EvaluatedRun(function, sizes, inputs, point.results(kind), wanted, filled, checked, names)

    def _filled(self, module: ir.Module | ir.Operation, inputs: Sequence[np.ndarray], function: str) -> np.ndarray | None:
        ops = attention_ops(module, function)
        one = len(ops) == 1 and ops[0].name in ("attn.attention", "attn.online")
        return rows_with_keys(module, inputs, function) if one else None


def compared(
    module: ir.Module | ir.Operation, run: EvaluatedRun, guarded: bool, options: dict[str, object]
) -> tuple[list[Difference], int]:
    """How far the results of a function of `module` are from those wanted, and how many rows were left out.

    An online program says what fully masked rows give only when it is `guarded`; until then they are left out, and so are
    gradients, to which all rows contribute.
    """
    kind = (kind_of(run.function) or ("", ""))[1]
    online = any(op.name == "attn.online" for op in attention_ops(module, run.function))
    kernel = "tile.kernel" in find_function(module, run.function).attributes
    unguarded = (online or kernel) and not guarded and run.filled is not None and not run.filled.all()
    left_out = int((~run.filled).sum()) if unguarded and run.filled is not None else 0
    gradients = kind.startswith("bwd")
    if unguarded and gradients:
        return [], left_out
    where, filled = run.filled if unguarded else None, None if gradients else run.filled
    found = compare(module, run.inputs, run.wanted, where, filled=filled, names=run.names, function=run.function, **options)
    return found, left_out


def _is_public(module: ir.Module | ir.Operation, function: str) -> bool:
    attributes = find_function(module, function).attributes
    return "sym_visibility" not in attributes or ir.StringAttr(attributes["sym_visibility"]).value == "public"


def _computes(module: ir.Module | ir.Operation, function: str) -> bool:
    """Whether a function is an attention or a derivative; @attention always counts, so that it says what it lacks."""
    kernel = "tile.kernel" in find_function(module, function).attributes
    return function == "attention" or kernel or bool(attention_ops(module, function))


def _is_checked(args: argparse.Namespace, sizes: Sizes) -> bool:
    return (sizes.q_len, sizes.kv_len) == _CHECKED or args.q_len is not None or args.kv_len is not None


def _sizes(args: argparse.Namespace) -> list[Sizes]:
    lengths: Sequence[tuple[int, int]] = LENGTHS
    if args.q_len is not None or args.kv_len is not None:
        queries, keys = args.q_len or [17], args.kv_len or [23]
        if len(queries) != len(keys) and min(len(queries), len(keys)) > 1:
            raise ArgumentError(f"--q-len has {len(queries)} lengths and --kv-len {len(keys)}: give as many, or one")
        count = max(len(queries), len(keys))
        lengths = [(queries[i % len(queries)], keys[i % len(keys)]) for i in range(count)]
    usual = Sizes(args.batch, args.heads, args.kv_heads)
    found = [replace(usual, q_len=q_len, kv_len=kv_len) for q_len, kv_len in lengths]
    for sizes in found:
        smallest = min(sizes.batch, sizes.heads, sizes.kv_heads, sizes.q_len)
        if smallest < 1 or sizes.kv_len < 0 or sizes.heads % sizes.kv_heads:
            raise ArgumentError(f"sizes must be positive, and heads a multiple of kv-heads, got {sizes}")
    return found


def _integers(text: str) -> tuple[int, int]:
    low, colon, high = text.partition(":")
    try:
        limits = int(low), int(high)
    except ValueError:
        limits = (0, 0)
    if not colon or limits[0] >= limits[1]:
        raise ArgumentError(f"--ints takes LOW:HIGH with LOW < HIGH, got '{text}'")
    return limits
