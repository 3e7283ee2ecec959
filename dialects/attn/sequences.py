"""`attn.sequences`: packed tensors, in which sequences of different lengths follow each other."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import pieces_in, verify_owner
from attn_mlir.dialects.verify import check, is_tensor
from attn_mlir.mlir import ext, ir

SIDES = ("query", "key")
_OWNERS = ("attn.attention", "attn.online", "attn.combine", "attn.pairs", "attn.elements")


class SequencesOp(Attn.Operation, name="sequences"):
    """Where sequences lie in packed tensors: number b is the `lengths`[b] rows from `begins`[b] on.

    Without this piece a batch entry b is an entry of the tensors' first dimension. With it the tensors of the side `of` ("query": q, the
    query tensors of products, o and row values; "key": k, v, the key tensors of products) have a first dimension of 1, and their third
    one holds all sequences. Every other piece gets b, the number of a sequence, and positions that count from its beginning; tensors read
    there with `tensor.extract` are read as they lie in memory. `begins` and `lengths` are tensors of integers, [sequences]; rows of
    one side do not overlap, and those of no sequence are neither read nor written.

    With the attribute `by_heads` (`attn-pack-heads`) sequences have one query each: q comes as [queries, Hkv, Hq / Hkv, D], o and row
    values likewise, and the heads of entry `begins`[b] are the rows of sequence b.

    `attn.attention`, `attn.online`, `attn.combine` and `attn.pairs` have none or one for each side, with as many sequences;
    `attn.elements` one, for the side of its tensor, or none, where indices are those of the tensor.
    """

    begins: ext.Operand[Any]
    lengths: ext.Operand[Any]
    of: ir.StringAttr

    def verify_invariants(self) -> bool:
        if not verify_owner(self, _OWNERS):
            return False
        for name, type_ in (("begins", self.begins.type), ("lengths", self.lengths.type)):
            fits = is_tensor(type_, 1) and isinstance(type_.element_type, ir.IntegerType) and type_.element_type.width in (32, 64)
            if not check(self, fits, f"takes `{name}` as a tensor of i32 or i64, [sequences], got {type_}"):
                return False
        if not check(self, self.of.value in SIDES, f"takes `of` as query or key, got {self.of.value}"):
            return False
        packed = "by_heads" not in self.operation.attributes or (self.of.value == "query" and self.operation.parent.name in _OWNERS[:3])
        if not check(self, packed, "has `by_heads` for the queries of an attention"):
            return False
        sides, several = sides_of(self.operation.parent), self.operation.parent.name != "attn.elements"
        count = sides.count(self.of.value)
        if not check(self, count == 1, f"is there once for each side, got {count} of {self.of.value}"):
            return False
        return check(self, len(sides) == 1 + several, "comes for queries and for keys" if several else "comes for one side of elements")


def sides_of(owner: ir.Operation) -> list[str]:
    """The sides of the `attn.sequences` pieces of an op."""
    found = [piece.attributes["of"] for piece in pieces_in(owner) if piece.name == "attn.sequences" and "of" in piece.attributes]
    return [side.value for side in found if isinstance(side, ir.StringAttr)]
