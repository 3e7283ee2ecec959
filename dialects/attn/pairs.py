"""Ops of derivatives: weights of all (query, key) pairs and of the elements of a tensor; products and terms of an attention.

`attn.pairs` and `attn.elements` compute weights that never exist in memory; their result is of type `none` and stands for
them. The ops that consume it (`sums.py`) say what becomes of the weights. `attn-tile` makes one kernel of the op and its
consumers.
"""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import term_types, verify_owner, verify_pieces, verify_signature
from attn_mlir.dialects.verify import check, entry_block, is_tensor, terminator
from attn_mlir.mlir import ext, ir

_NAMES = ("product", "mask", "pair", "query_bounds", "block_mask", "sequences", "pages", "key_lists")
_PAIRS_PIECES = frozenset(f"attn.{name}" for name in _NAMES)


class PairsOp(Attn.Operation, name="pairs", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Weights of all present (query, key) pairs, from products of query and key tensors.

    The body holds *pieces*: one or more `attn.product`, whose number k is the k-th argument of the required `attn.pair`,
    and `attn.mask`, where absent pairs have no weight. `attn-resolve-masks` adds `attn.query_bounds` and `attn.block_mask`.
    The result stands for the weights; `attn.query_sum`, `attn.key_sum` and `attn.scatter` consume it.
    """

    weights: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        return check(self, isinstance(self.weights.type, ir.NoneType), f"returns none, got {self.weights.type}")

    def verify_region_invariants(self) -> bool:
        return verify_pieces(self, _PAIRS_PIECES, frozenset({"attn.product", "attn.pair"}), frozenset({"attn.product", "attn.sequences"}))


class ElementsOp(Attn.Operation, name="elements", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Weights of all elements of a tensor: the body's `attn.element` is evaluated at every index of `like`.

    `like` is [B, H, S, D] with a static D or, for one value a row, [B, H, S]. The result stands for the weights; `attn.collect` makes a
    tensor of them, `attn.scatter` adds them up in a captured tensor.
    """

    like: ext.Operand[Any]
    weights: ext.Result[Any]
    body: ext.Region

    def verify_invariants(self) -> bool:
        if not check(self, is_tensor(self.like.type, 3, 4), f"runs over a tensor of rank 3 or 4, got {self.like.type}"):
            return False
        fixed = self.like.type.rank == 3 or not self.like.type.is_dynamic_dim(3)
        if not check(self, fixed, f"runs over a tensor with a static number of columns, got {self.like.type}"):
            return False
        return check(self, isinstance(self.weights.type, ir.NoneType), f"returns none, got {self.weights.type}")

    def verify_region_invariants(self) -> bool:
        return verify_pieces(
            self, frozenset({"attn.element", "attn.sequences"}), frozenset({"attn.element"}), frozenset({"attn.sequences"})
        )


class ProductOp(Attn.Operation, name="product"):
    """Product number k of a query tensor, [B, Hq, Sq, D], and a key tensor, [B, Hkv, Skv, D]: one scalar for each pair.

    In `attn.attention` and `attn.online`, q k^T is product 0 and these are the further ones: arguments of `attn.score`.
    """

    query: ext.Operand[Any]
    key: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        if not verify_owner(self, ("attn.pairs", "attn.attention", "attn.online")):
            return False
        query, key = self.query.type, self.key.type
        shaped = is_tensor(query, 4) and is_tensor(key, 4)
        if not check(self, shaped, f"multiplies tensors of rank 4, got {query} and {key}"):
            return False
        fits = not query.is_dynamic_dim(3) and query.shape[3] == key.shape[3] and query.element_type == key.element_type
        return check(self, fits, f"multiplies tensors of one element type and one static head dimension, got {query} and {key}")


class TermOp(Attn.Operation, name="term"):
    """One more term of an attention's output number `output`: the sum over keys of a weight of its own times `value`.

    Weight 0 of `attn.row` belongs to v and output 0, the weights after it to these pieces, in their order. Outputs past 0
    are taken with `attn.output`. A term of v itself sums what `attn.value` makes of it.
    """

    value: ext.Operand[Any]
    output: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        if not verify_owner(self, ("attn.attention", "attn.online")):
            return False
        value = self.value.type
        if not check(self, is_tensor(value, 4) and not value.is_dynamic_dim(3), f"sums [B, Hkv, Skv, D] with a static D, got {value}"):
            return False
        return check(self, self.output.value >= 0, f"adds to an output numbered from 0, got {self.output.value}")


class OutputOp(Attn.Operation, name="output", traits=[ext.Pure]):
    """Output number `index` (1, 2, ...) of the attention whose result o is the operand; see `attn.term`."""

    o: ext.Operand[Any]
    index: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        owner = self.o.owner
        made = not isinstance(owner, ir.Block) and owner.operation.name in ("attn.attention", "attn.online")
        if not check(self, made and self.o == owner.operation.results[0], "takes the result o of an attn.attention or attn.online"):
            return False
        if not check(self, self.index.value >= 1, f"takes an output numbered from 1, got {self.index.value}"):
            return False
        types = term_types(owner.operation).get(self.index.value, [])
        if not check(self, bool(types), f"finds no attn.term for output {self.index.value}"):
            return False
        result = self.result.type
        fits = all(is_tensor(result, 4) and (t.shape[3], t.element_type) == (result.shape[3], result.element_type) for t in types)
        return check(self, fits, f"has the head dimension and element type of its terms, got {result}")


class ResidualOp(Attn.Operation, name="residual", traits=[ext.Pure]):
    """The residual of the 16-bit result o of an attention, in o's type: (exact o - o) 2^p, with p the bits of o's significand.

    With the attribute `index` it is that of output number `index` (1, 2, ...), which is of o's type, too, see `attn.output`.
    2^p is 2^11 for f16 and 2^8 for bf16 (`residual_factor`): so it is never larger than o, and as precise where f16 itself would
    be subnormal. `attn.row_dot` takes it with o.
    """

    o: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        owner = self.o.owner
        made = not isinstance(owner, ir.Block) and owner.operation.name in ("attn.attention", "attn.online")
        if not check(self, made and self.o == owner.operation.results[0], "takes the result o of an attn.attention or attn.online"):
            return False
        if "index" in self.operation.attributes:
            index = self.operation.attributes["index"]
            number = index.value if isinstance(index, ir.IntegerAttr) else 0
            types = term_types(owner.operation).get(number, []) if number >= 1 else []
            fits = bool(types) and all(_is_alike(t, self.o.type) for t in types)
            if not check(self, fits, f"is that of an output numbered from 1 whose terms have o's type, got {index}"):
                return False
        fits = self.result.type == self.o.type and residual_factor(ir.RankedTensorType(self.o.type).element_type) is not None
        return check(self, fits, f"makes a tensor of o's type, of f16 or bf16, got {self.result.type} for {self.o.type}")


def _is_alike(type_: ir.Type, o: ir.RankedTensorType) -> bool:
    """Whether sums of a tensor of this type have the head dimension and element type of o."""
    return is_tensor(type_, 4) and (type_.shape[3], type_.element_type) == (o.shape[3], o.element_type)


def residual_factor(element: ir.Type) -> float | None:
    """How many times as large as it is the residual of a number of this type is kept; None for types that have no residual."""
    return 2.0**11 if isinstance(element, ir.F16Type) else 2.0**8 if isinstance(element, ir.BF16Type) else None


def _yields_weights(op: Any) -> bool:
    made = len(terminator(entry_block(op)).operation.operands)
    return check(op, made >= 1, "yields one or more weights, got none")


class PairOp(Attn.Operation, name="pair"):
    """Weights of one pair: (products..., b, h, q_idx, kv_idx) -> (weights...).

    Values of query rows, tensors [B, Hq, Sq], are read with `tensor.extract` at [b, h, q_idx].
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.pairs",))

    def verify_region_invariants(self) -> bool:
        pieces = list(self.operation.parent.regions[0].blocks[0].operations)
        products = sum(piece.operation.name == "attn.product" for piece in pieces)
        names = f"{products} products, b, h, q_idx, kv_idx"
        return verify_signature(self, names, ["score"] * products + ["index"] * 4, None) and _yields_weights(self)


class ElementOp(Attn.Operation, name="element"):
    """Weights of one element: (b, h, i, d) or, over [B, H, S], (b, h, i) -> (weights...). Tensors are read with `tensor.extract`."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.elements",))

    def verify_region_invariants(self) -> bool:
        rank = ir.RankedTensorType(self.operation.parent.operands[0].type).rank
        return verify_signature(self, ", ".join(("b", "h", "i", "d")[:rank]), ["index"] * rank, None) and _yields_weights(self)


class QueryBoundsOp(Attn.Operation, name="query_bounds"):
    """Query rows that see some of the keys [kv_begin, kv_end): (b, h, kv_begin, kv_end) -> (begin, full_begin, full_end, end).

    Rows outside [begin, end) see none of these keys; rows in [full_begin, full_end) see all of them.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.pairs",))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "b, h, kv_begin, kv_end", ["index"] * 4, ["index"] * 4)
