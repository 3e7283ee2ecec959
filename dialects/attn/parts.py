"""Attention in parts: `attn.parts` of the keys give partial results, and `attn.combine` merges these and ends them."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import pieces_in, verify_owner, verify_pieces
from attn_mlir.dialects.attn.sequences import sides_of
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir


class PartsOp(Attn.Operation, name="parts"):
    """Keys in `count` parts of `length` keys each, at most: results have `count` entries for each batch entry.

    Entry b count + i is that of the keys [i length, (i + 1) length), as far as there are any, for the queries of batch entry b. What
    pieces see is as without: b, and positions in the whole sequence. Parts without keys give initial states, and accumulators of 0.
    """

    count: ext.Operand[ir.IndexType]
    length: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.online",))


class PartListOp(Attn.Operation, name="part_list"):
    """Parts of the keys of packed sequences, which a list names: results have an entry for each part.

    In an `attn.online` the entry of a part holds partial results of the rows of its sequence, from row 0 on, by the keys of the part. In an
    `attn.combine` it says that the parts of each row are consecutive entries. Which entries and keys these are is in the kernel's list of
    work: [items, 6], after sequence, first row, end and first entry the keys [first, end), or the number of parts.
    """

    def verify_invariants(self) -> bool:
        if not verify_owner(self, ("attn.online", "attn.combine")):
            return False
        return check(self, "query" in sides_of(self.operation.parent), "comes beside the 'attn.sequences' of queries")


class CarriedOp(Attn.Operation, name="carried"):
    """One row state of all parts, [B count, Hq, Sq], in the order of `attn.init`."""

    state: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        if not verify_owner(self, ("attn.combine",)):
            return False
        type_ = self.state.type
        return check(self, is_tensor(type_, 3) and is_score_type(type_.element_type), f"takes [B, H, S] of f32 or f64, got {type_}")


_LISTED = frozenset({"attn.sequences", "attn.part_list"})
_SEVERAL = frozenset({"attn.carried", "attn.sequences"})
_PIECES = frozenset({"attn.carried", "attn.init", "attn.merge", "attn.finalize"})


@single_variadic
class CombineOp(Attn.Operation, name="combine", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Merges the partial results that `attn.parts` give, one after the other, and ends them (split-KV decoding).

    `accumulator` is [B count, Hq, Sq, Dv], of the type of scores; `attn.carried` pieces have the row states. The pieces `attn.init`,
    `attn.merge` and `attn.finalize` are those of the `attn.online` whose keys are in parts. The results are o, [B, Hq, Sq, Dv], and the
    row outputs that `outputs` names. On packed tensors (`attn.sequences`) an `attn.part_list` says where parts are; `count` is unused.
    """

    accumulator: ext.Operand[Any]
    count: ext.Operand[ir.IndexType]
    outputs: ir.ArrayAttr
    accumulators: ir.IntegerAttr
    o: ext.Result[Any]
    rows: Sequence[ext.Result[Any]]
    body: ext.Region

    def verify_invariants(self) -> bool:
        accumulator, o = self.accumulator.type, self.o.type
        fits = is_tensor(accumulator, 4) and is_score_type(accumulator.element_type)
        if not check(self, fits, f"takes the accumulators as [B, H, S, D] of f32 or f64, got {accumulator}"):
            return False
        fits = is_tensor(o, 4) and isinstance(o.element_type, ir.FloatType) and o.shape[3] == accumulator.shape[3]
        if not check(self, fits, f"produces o as [B, H, S, D] of floats with the columns of the accumulators, got {o}"):
            return False
        if not check(self, self.accumulators.value == 1, f"merges one accumulator, got {self.accumulators.value}"):
            return False
        made = len(self.operation.results) - 1
        named = len(self.operation.attributes["outputs"])
        return check(self, named == made, f"names {named} row outputs but produces {made}")

    def verify_region_invariants(self) -> bool:
        if not verify_pieces(self, _PIECES | _LISTED, _PIECES - {"attn.carried"}, _SEVERAL):
            return False
        found = pieces_in(self.operation)
        bodies = {piece.name: piece.regions[0].blocks[0] for piece in found if len(piece.regions) == 1}
        yielded = {name: len(block.operations[-1].operation.operands) for name, block in bodies.items()}
        states = sum(piece.name == "attn.carried" for piece in found)
        if not check(self, yielded["attn.init"] == states, f"carries the {yielded['attn.init']} states of 'attn.init', got {states}"):
            return False
        taken = len(bodies["attn.merge"].arguments)
        fits = taken == 2 * states and yielded["attn.merge"] == states + 2
        if not check(self, fits, f"merges twice {states} states into {states} and 2 scales, got {taken} and {yielded['attn.merge']}"):
            return False
        made, arguments = yielded["attn.finalize"], len(bodies["attn.finalize"].arguments)
        fits = arguments == 4 + states and made == len(self.operation.results)
        return check(self, fits, f"ends in {len(self.operation.results)} values of 4 and {states}, got {made} of {arguments}")
