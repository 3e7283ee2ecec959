"""What becomes of the weights of `attn.pairs` and `attn.elements`: sums of rows, sums at an index, a tensor; and products of rows."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pairs import residual_factor
from attn_mlir.dialects.attn.pieces import pieces_in
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, entry_block, is_score_type, is_tensor, terminator
from attn_mlir.mlir import ext, ir


def _weights(value: ir.Value, owners: tuple[str, ...]) -> ir.Operation | None:
    """The op that makes the weights, or None where the value is something else."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name not in owners:
        return None
    return owner.operation


def _weight_count(maker: ir.Operation) -> int:
    for piece in pieces_in(maker):
        if piece.name in ("attn.pair", "attn.element"):
            block = entry_block(piece) if len(piece.regions) == 1 else None
            last = terminator(block) if block is not None else None
            return len(last.operation.operands) if last is not None else 0
    return 0


def _rank(maker: ir.Operation) -> int:
    """How many positions a weight has."""
    like = maker.operands[0].type if maker.name == "attn.elements" and len(maker.operands) == 1 else None
    return like.rank if like is not None and is_tensor(like) else 4


def _verify_weight(op: Any, value: ir.Value, owners: tuple[str, ...], *indices: int) -> bool:
    maker = _weights(value, owners)
    if not check(op, maker is not None, f"takes the weights of {' or '.join(owners)}"):
        return False
    count = _weight_count(maker)  # type: ignore[arg-type]
    return check(op, all(0 <= i < count for i in indices), f"takes weights numbered below {count}, got {', '.join(map(str, indices))}")


def _verify_sum(op: Any) -> bool:
    weights = op.operation.attributes["weights"]
    if not check(op, isinstance(weights, ir.DenseI64ArrayAttr), "takes `weights` as array<i64>"):
        return False
    terms = list(op.terms)
    if not check(op, len(terms) >= 1 and len(terms) == len(weights), f"has one weight a term, got {len(weights)} for {len(terms)} terms"):
        return False
    if not _verify_weight(op, op.of, ("attn.pairs",), *weights):
        return False
    source, result = terms[0].type, op.result.type
    shaped = is_tensor(source, 4) and is_tensor(result, 4) and not source.is_dynamic_dim(3)
    if not check(op, shaped, f"sums tensors of rank 4 with a static head dimension, got {source}"):
        return False
    fits = source.shape[3] == result.shape[3] and is_score_type(result.element_type)
    return check(op, fits, f"makes a tensor of f32 or f64 with its terms' head dimension, got {result}")


@single_variadic
class QuerySumOp(Attn.Operation, name="query_sum", traits=[ext.Pure]):
    """[B, Hq, Sq, D]: for every query i, the sum over terms t and keys j of weight_t(i, j) term_t[j]; terms are key tensors."""

    of: ext.Operand[Any]
    terms: Sequence[ext.Operand[Any]]
    weights: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _verify_sum(self)


@single_variadic
class KeySumOp(Attn.Operation, name="key_sum", traits=[ext.Pure]):
    """[B, Hkv, Skv, D]: for every key j, the sum over terms t, queries i and the heads of a group of weight_t(i, j) term_t[i].

    Terms are query tensors.
    """

    of: ext.Operand[Any]
    terms: Sequence[ext.Operand[Any]]
    weights: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _verify_sum(self)


class ScatterOp(Attn.Operation, name="scatter", traits=[ext.Pure]):
    """A tensor shaped like `like`, 0 but for the weights: weight number `weight` of every pair (or element) is added at an index.

    The region computes the index: (b, h, q_idx, kv_idx), or the indices of the element, -> (one index per dimension). With `diagonals`,
    `like` is the tensor of keys of the pairs, and what is made [B, Hq, Sq + Skv]: a place for each difference of positions.
    """

    of: ext.Operand[Any]
    like: ext.Operand[Any]
    weight: ir.IntegerAttr
    result: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        if not _verify_weight(self, self.of, ("attn.pairs", "attn.elements"), self.weight.value):
            return False
        like, result = self.like.type, self.result.type
        if "diagonals" in self.operation.attributes:
            fits = is_tensor(like, 4) and is_tensor(result, 3) and _weights(self.of, ("attn.pairs",)) is not None
            fits = fits and all(map(result.is_dynamic_dim, range(3))) and is_score_type(result.element_type)
            return check(self, fits, f"along diagonals of pairs takes a tensor of keys and makes tensor<?x?x?xf32> or f64, got {result}")
        fits = is_tensor(like) and is_tensor(result) and list(like.shape) == list(result.shape) and is_score_type(result.element_type)
        return check(self, fits, f"makes a tensor of f32 or f64 shaped like {like}, got {result}")

    def verify_region_invariants(self) -> bool:
        maker = _weights(self.of, ("attn.pairs", "attn.elements"))
        count = _rank(maker) if maker is not None else 4
        block = entry_block(self)
        takes = block is not None and len(block.arguments) == count and all(isinstance(a.type, ir.IndexType) for a in block.arguments)
        if not check(self, takes, f"index takes {count} positions of type index"):
            return False
        last = terminator(block)
        rank = ir.RankedTensorType(self.result.type).rank
        yielded = list(last.operation.operands) if last is not None and last.operation.name == "attn.yield" else None
        fits = yielded is not None and len(yielded) == rank and all(isinstance(v.type, ir.IndexType) for v in yielded)
        return check(self, fits, f"index yields {rank} values of type index")


class CollectOp(Attn.Operation, name="collect", traits=[ext.Pure]):
    """Weight number `weight` of every element, as a tensor shaped like that of the `attn.elements`."""

    of: ext.Operand[Any]
    weight: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not _verify_weight(self, self.of, ("attn.elements",), self.weight.value):
            return False
        operands = self.of.owner.operation.operands
        like, result = operands[0].type if len(operands) == 1 else None, self.result.type
        fits = (
            is_tensor(like)
            and is_tensor(result)
            and list(like.shape) == list(result.shape)
            and isinstance(result.element_type, ir.FloatType)
        )
        return check(self, fits, f"makes a tensor of floats shaped like that of attn.elements, got {result}")


@single_variadic
class RowDotOp(Attn.Operation, name="row_dot", traits=[ext.Pure]):
    """[B, H, S]: the sum over d of a[b, h, i, d] b[b, h, i, d], in the result's element type (f32 or f64).

    With a third operand, the `attn.residual` of b, the products are those with b before it was rounded.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    residual: Sequence[ext.Operand[Any]]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        a, b, result = self.a.type, self.b.type, self.result.type
        fits = is_tensor(a, 4) and is_tensor(b, 4) and a.shape[3] == b.shape[3] and not a.is_dynamic_dim(3)
        fits = fits and isinstance(a.element_type, ir.FloatType) and isinstance(b.element_type, ir.FloatType)
        if not check(self, fits, f"multiplies tensors of floats of rank 4 with one static head dimension, got {a} and {b}"):
            return False
        rest = [value.type for value in self.residual]
        fits = not rest or (rest == [b] and residual_factor(b.element_type) is not None)
        given = ", ".join(map(str, rest))
        if not check(self, fits, f"takes one residual at most, of a 16-bit tensor {b}, got {given}"):
            return False
        return check(self, is_tensor(result, 3) and is_score_type(result.element_type), f"makes [B, H, S] of f32 or f64, got {result}")
