"""Runs blocks of ops on numpy arrays; what an op means is looked up by its name."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.philox import kept
from attn_mlir.reference.errors import EvaluationError, OutOfBoundsError
from attn_mlir.reference.scalar import Array, Rule, bound, round_to

FrameRule = Callable[["EvaluationFrame", ir.Operation, list[Any]], Sequence[Any]]

REDUCE = {"sum": np.sum, "max": np.max, "min": np.min}
TERMINATORS = frozenset({"attn.yield", "tile.yield", "tile.scatter_yield", "scf.yield", "func.return"})


@dataclasses.dataclass(frozen=True)
class BlockPlan:
    """A block as it is asked of the bindings once: loops run it many times."""

    arguments: tuple[ir.Value, ...]
    ops: tuple[tuple[ir.Operation, str, Rule | None, tuple[ir.Value, ...], tuple[ir.Value, ...]], ...]
    """Ops with their names, what scalar ones compute, their operands and results, up to a terminator."""
    constants: dict[ir.Value, Array]
    """What the others of them make, which nothing may change in place."""


@dataclasses.dataclass(frozen=True)
class EvaluationFrame:
    """The values known so far, and what the ops of a block mean where they run."""

    values: dict[ir.Value, Array]
    rules: Mapping[str, FrameRule]
    live: Array | None = None
    """Where a read must be in bounds; None is everywhere. Elsewhere indices are clamped."""
    present: Array | None = None
    """What `attn.reduce` runs over, along the last axis; None outside of row and step."""
    rounding: bool = False
    """Whether `arith.truncf` rounds."""
    outputs: dict[ir.Value, list[Array]] = dataclasses.field(default_factory=dict)
    """What an attention gives besides its results: outputs 1, 2, ... by its result o."""
    plans: dict[ir.Block, BlockPlan] = dataclasses.field(default_factory=dict)
    """Of blocks that have run, for as long as nothing changes them."""
    facts: dict[ir.Operation, Any] = dataclasses.field(default_factory=dict)
    """What rules have asked of ops that ran, for as long."""

    def run(self, block: ir.Block, arguments: Sequence[Array]) -> list[Array]:
        """Runs the ops of `block` and returns the operands of its terminator."""
        plan = self.plans.get(block)
        if plan is None:
            plan = self.plans[block] = self._plan(block)
        values = self.values
        values.update(plan.constants)
        for name, value in zip(plan.arguments, arguments, strict=True):
            values[name] = np.asarray(value)
        for op, kind, scalar, operands, results in plan.ops:
            args = [values[operand] for operand in operands]
            if scalar is not None:
                values[results[0]] = self._scalar(op, kind, scalar, args)
                continue
            if kind in TERMINATORS:
                return args
            for name, value in zip(results, self._execute(op, kind, args), strict=True):
                values[name] = value
        return []

    def execute(self, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
        """The results of one op on these operands."""
        return self._execute(op, op.name, args)

    def _execute(self, op: ir.Operation, kind: str, args: list[Array]) -> Sequence[Array]:
        """The results of one op."""
        rule = self.rules.get(kind)
        if rule is not None:
            return rule(self, op, args)
        scalar = bound(op)
        if scalar is None:
            raise EvaluationError(f"the evaluator has no rule for '{kind}': {op}", op.location)
        return [self._scalar(op, kind, scalar, args)]

    def _scalar(self, op: ir.Operation, kind: str, scalar: Rule, args: list[Array]) -> Array:
        try:
            result = scalar(*args)
        except ValueError:
            shapes = " and ".join(str(list(np.shape(a))) for a in args)
            raise EvaluationError(f"'{kind}' meets arrays of shapes {shapes}", op.location) from None
        return round_to(result, op.results[0].type) if self.rounding and kind == "arith.truncf" else result

    def _plan(self, block: ir.Block) -> BlockPlan:
        ops, constants = [], dict[ir.Value, Array]()
        for view in block.operations:
            op = view.operation
            kind = op.name
            if kind == "arith.constant":
                value = np.asarray(self._execute(op, kind, [])[0])
                value.flags.writeable = False
                constants[op.results[0]] = value
                continue
            scalar = None if kind in self.rules or kind in TERMINATORS else bound(op)
            ops.append((op, kind, scalar, tuple(op.operands), tuple(op.results)))
            if kind in TERMINATORS:
                break
        return BlockPlan(tuple(block.arguments), tuple(ops), constants)

    def with_(self, live: Array | None = None, present: Array | None = None) -> "EvaluationFrame":
        """The same values, in another place."""
        return dataclasses.replace(self, live=live, present=present)


def identity_of(kind: str, type_: ir.Type) -> float:
    """What a reduction starts from."""
    highest = float(np.finfo(np.float64 if isinstance(type_, ir.F64Type) else np.float32).max)
    return {"sum": 0.0, "max": -highest, "min": highest}[kind]


def reduce_last(kind: str, value: Array, present: Array, type_: ir.Type) -> Array:
    """Reduces `value` over the present entries of the last axis, which stays with size 1."""
    identity = identity_of(kind, type_)
    full = np.where(present, value, identity)
    return REDUCE[kind](full, axis=-1, keepdims=True, initial=identity)


def read(frame: EvaluationFrame, op: ir.Operation, source: Array, indices: Sequence[Array]) -> Array:
    """`source[indices]`, elementwise over arrays of indices."""
    clamped = []
    for axis, index in enumerate(indices):
        size = source.shape[axis]
        if _within(index, size):
            clamped.append(index)
            continue
        outside = (index < 0) | (index >= size)
        counts = outside if frame.live is None else outside & frame.live
        if counts.any():
            worst = np.broadcast_to(index, counts.shape)[counts][0]
            raise OutOfBoundsError(f"'{op.name}' reads index {worst} of dimension {axis}, which has size {size}", op.location)
        clamped.append(np.clip(index, 0, max(size - 1, 0)))
    if 0 in source.shape:  # nothing that counts is read of it
        return np.zeros(np.broadcast_shapes(*(i.shape for i in indices)), source.dtype)
    return source[tuple(clamped)] if clamped else source[()]


def _within(index: Array, size: int) -> bool:
    """Whether all numbers are in [0, size)."""
    if index.ndim == 0:
        return bool(0 <= index < size)
    return index.size == 0 or bool(index.min() >= 0 and index.max() < size)


def _extract(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    return [np.asarray(read(frame, op, args[0], args[1:]))]


def _dim(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    axis = int(args[1])
    if not 0 <= axis < args[0].ndim:
        raise OutOfBoundsError(f"'{op.name}' asks for dimension {axis} of a value of rank {args[0].ndim}", op.location)
    return [np.asarray(args[0].shape[axis])]


def _output(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    return [frame.outputs[op.operands[0]][op.attributes["index"].value - 1]]


def _residual(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    # o is never rounded here.
    return [np.zeros_like(args[0])]


def _reduce(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    if frame.present is None:
        raise EvaluationError("'attn.reduce' outside of a row", op.location)
    return [reduce_last(op.attributes["kind"].value, args[0], frame.present, op.results[0].type)]


def _range(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    source, box = args[0], args[1:]
    live = np.asarray(True) if frame.live is None else frame.live
    shape = np.broadcast_shapes(live.shape, *(a.shape for a in box))
    columns = [np.broadcast_to(a, shape).reshape(-1) for a in (live, *box)]
    boxes, inverse = np.unique(np.stack([c.astype(np.int64) for c in columns], axis=1), axis=0, return_inverse=True)
    found = np.array([_scan(op, source, row) for row in boxes], dtype=np.int64).reshape(-1, 2)
    return [found[inverse.reshape(-1), side].reshape(shape) for side in (0, 1)]


def _scan(op: ir.Operation, source: Array, row: Array) -> tuple[int, int]:
    begins, ends = row[1 : 1 + source.ndim], row[1 + source.ndim :]
    if not row[0]:
        return 0, 0
    inside = all(0 <= b < e <= size for b, e, size in zip(begins, ends, source.shape, strict=True))
    if not inside:
        box = f"[{list(map(int, begins))}, {list(map(int, ends))})"
        raise OutOfBoundsError(f"'attn.range' scans {box} of a tensor of shape {list(source.shape)}", op.location)
    part = source[tuple(slice(b, e) for b, e in zip(begins, ends, strict=True))]
    return int(part.min()), int(part.max())


def _kept(frame: EvaluationFrame, op: ir.Operation, args: list[Array]) -> Sequence[Array]:
    seed, offset, *others = (np.asarray(a).astype(np.int64) for a in args)
    return [kept((seed, offset), *others)]


SHARED_RULES: dict[str, FrameRule] = {
    "tensor.extract": _extract,
    "memref.load": _extract,
    "tensor.dim": _dim,
    "memref.dim": _dim,
    "attn.kept": _kept,
    "attn.reduce": _reduce,
    "attn.range": _range,
    "attn.output": _output,
    "attn.residual": _residual,
}
