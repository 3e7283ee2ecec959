"""Scalar ops used inside pieces."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, is_score_type
from attn_mlir.mlir import ext, ir

REDUCTION_KINDS = ("sum", "max", "min")


@single_variadic
class YieldOp(Attn.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Ends a piece and returns its values."""

    values: Sequence[ext.Operand[Any]]


class ReduceOp(Attn.Operation, name="reduce", traits=[ext.Pure]):
    """Reduces a value over the present keys of the row (in `attn.row`) or of the block (in `attn.step`).

    `kind` is sum, max or min. Over no keys the result is 0, the lowest finite or the highest finite number.
    """

    value: ext.Operand[Any]
    kind: ir.StringAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not check(self, self.kind.value in REDUCTION_KINDS, f"reduces by {', '.join(REDUCTION_KINDS)}, got '{self.kind.value}'"):
            return False
        if not check(self, is_score_type(self.value.type), f"reduces f32 or f64, got {self.value.type}"):
            return False
        if not check(self, self.result.type == self.value.type, f"returns its operand's type {self.value.type}, got {self.result.type}"):
            return False
        return check(self, _inside(self.operation, ("attn.row", "attn.step")), "belongs inside attn.row or attn.step")


class DetachOp(Attn.Operation, name="detach", traits=[ext.Pure]):
    """The same value, without a gradient."""

    value: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return check(self, self.result.type == self.value.type, f"returns its operand's type {self.value.type}, got {self.result.type}")


class SlopeOp(Attn.Operation, name="slope", traits=[ext.Pure]):
    """0, whose derivative by `value` is `factor`; it has none by `factor`.

    Added to a detached value it gives that a derivative of the user's own, as a `torch.autograd.Function` has.
    """

    value: ext.Operand[Any]
    factor: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not check(self, is_score_type(self.value.type), f"takes f32 or f64, got {self.value.type}"):
            return False
        same = self.factor.type == self.result.type == self.value.type
        return check(self, same, f"takes and returns {self.value.type}, got {self.factor.type} and {self.result.type}")


class KeptOp(Attn.Operation, name="kept", traits=[ext.Pure]):
    """Whether dropout keeps the weight of one pair: 16 neighbouring keys share one call of Philox 4x32-10.

    The words w0..w3 = philox4x32_10(counter, key) with counter = (kv_idx // 16, q_idx, b * heads + h, offset) and key = (seed, seed >> 32),
    each modulo 2^32. `drop` is round(p * 2^32), 0 <= drop < 2^32. With x = w0 ^ w1 ^ w2 ^ w3 and
    limit = (drop >> 25) + (1 if x % 2^25 < drop % 2^25 else 0), the weight is kept where byte kv_idx % 2 + 2 ((kv_idx // 8) % 2) (0 the
    lowest) of word (kv_idx // 2) % 4, modulo 2^7, is at least `limit`.
    `attn-expand-dropout` writes it as integer arithmetic.
    """

    seed: ext.Operand[Any]
    offset: ext.Operand[Any]
    drop: ext.Operand[Any]
    heads: ext.Operand[Any]
    b: ext.Operand[Any]
    h: ext.Operand[Any]
    q_idx: ext.Operand[Any]
    kv_idx: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        others = [str(value.type) for value in self.operation.operands if not isinstance(value.type, ir.IndexType)]
        if not check(self, not others, f"takes index values, got {', '.join(others)}"):
            return False
        return check(self, str(self.result.type) == "i1", f"returns i1, got {self.result.type}")


@single_variadic
class RangeOp(Attn.Operation, name="range", traits=[ext.Pure]):
    """Smallest and largest element of an integer tensor over a box of indices: (begin..., end...) -> (min, max).

    `begin` and `end` (exclusive) come one per dimension of `source`; the box is not empty. This is what interval
    analysis of a mask needs of a captured tensor that is read at a position.
    """

    source: ext.Operand[Any]
    box: Sequence[ext.Operand[Any]]
    min: ext.Result[Any]
    max: ext.Result[Any]

    def verify_invariants(self) -> bool:
        source = self.source.type
        shaped = isinstance(source, ir.RankedTensorType | ir.MemRefType) and isinstance(source.element_type, ir.IntegerType | ir.IndexType)
        if not check(self, shaped, f"reads a ranked tensor or memref of integers, got {source}"):
            return False
        rank, count = source.rank, len(self.box)
        if not check(self, count == 2 * rank, f"takes {rank} begins and {rank} ends, got {count} indices"):
            return False
        if not check(self, all(isinstance(v.type, ir.IndexType) for v in self.box), "takes its box as index values"):
            return False
        indices = isinstance(self.min.type, ir.IndexType) and isinstance(self.max.type, ir.IndexType)
        return check(self, indices, f"returns two index values, got {self.min.type} and {self.max.type}")


def _inside(op: ir.Operation, names: tuple[str, ...]) -> bool:
    parent = op.parent
    while parent is not None:
        if parent.name in names:
            return True
        parent = parent.parent
    return False
