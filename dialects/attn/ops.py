"""Ops that stand for a whole attention: `attn.attention` and `attn.online`."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import outputs_of, scores_of, term_types, terms_of, verify_pieces
from attn_mlir.dialects.elements import element_of, is_eight_bit
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, is_score_type
from attn_mlir.mlir import ext, ir


def _shaped(type_: ir.Type, rank: int) -> bool:
    return isinstance(type_, ir.RankedTensorType) and type_.rank == rank


def _verify_operands(op: Any) -> bool:
    q, k, v = op.q.type, op.k.type, op.v.type
    for name, type_ in (("q", q), ("k", k), ("v", v)):
        if not check(op, _shaped(type_, 4), f"takes {name} as a rank-4 tensor [batch, head, position, dim], got {type_}"):
            return False
        if not check(op, not type_.is_dynamic_dim(3), f"needs a static head dimension of {name}, got {type_}"):
            return False
    if not check(op, q.shape[3] == k.shape[3], f"needs equal head dimensions of q and k, got {q.shape[3]} and {k.shape[3]}"):
        return False
    one = k.element_type == v.element_type and (q.element_type == k.element_type or is_eight_bit(k.element_type))
    if not check(op, one, f"needs one element type for q, k and v, or k and v of one with 8 bits, got {q}, {k}, {v}"):
        return False
    return check(op, isinstance(q.element_type, ir.FloatType), f"takes q, k and v of floating-point numbers, got {q}")


def _is_output_type(type_: ir.Type, of_values: ir.Type) -> bool:
    """Whether o may have a type: that of v; that of scores where v has 16 bits, for sums that are not rounded yet; any where v has 8."""
    if is_eight_bit(of_values):
        return element_of(type_) is not None
    return type_ == of_values or (isinstance(type_, ir.F32Type) and isinstance(of_values, (ir.F16Type, ir.BF16Type)))


def _verify_results(op: Any) -> bool:
    results = list(op.operation.results)
    o, v = op.o.type, op.v.type
    same = _shaped(o, 4) and o.shape[3] == v.shape[3] and _is_output_type(o.element_type, v.element_type)
    if not check(op, same, f"produces o as a rank-4 tensor with v's head dimension and element type, or a wider one, got {o}"):
        return False
    names = op.operation.attributes["outputs"]
    if not check(op, all(isinstance(n, ir.StringAttr) for n in names), "takes `outputs` as an array of strings"):
        return False
    if not check(op, len(names) == len(results) - 1, f"names {len(names)} row outputs but produces {len(results) - 1}"):
        return False
    rows = all(_shaped(r.type, 3) and is_score_type(r.type.element_type) for r in results[1:])
    if not check(op, rows, "produces every row output as a rank-3 tensor [batch, head, position] of f32 or f64"):
        return False
    proved = "rows_nonempty" not in op.operation.attributes or isinstance(op.operation.attributes["rows_nonempty"], ir.BoolAttr)
    return check(op, proved, "takes `rows_nonempty` as true or false")


def _verify_terms(op: Any) -> bool:
    types = term_types(op.operation)
    given = ", ".join(str(n) for n in sorted(types))
    if not check(op, max(types, default=0) < len({0, *types}), f"numbers its outputs without gaps, got terms of outputs {given}"):
        return False
    for number, terms in types.items():
        kinds = [(t.shape[3], t.element_type) for t in ([op.v.type, *terms] if number == 0 else terms)]
        one = all(kind == kinds[0] for kind in kinds)
        if not check(op, one, f"sums one head dimension and element type into output {number}, got {', '.join(map(str, terms))}"):
            return False
    return True


_PIECES = ("query", "key", "value", "score", "mask", "bounds", "block_mask", "key_lists", "pages")
_MODS = frozenset(f"attn.{name}" for name in _PIECES)
_SEVERAL = frozenset({"attn.product", "attn.term", "attn.sequences"})
_ATTENTION = _MODS | _SEVERAL | {"attn.row"}
_ONLINE = _MODS | _SEVERAL | {"attn.init", "attn.step", "attn.merge", "attn.finalize", "attn.parts", "attn.part_list"}


@single_variadic
class AttentionOp(Attn.Operation, name="attention", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Attention: o_i = sum_j p_ij v_j, where p_i = row(score(q_i . k_j) for every unmasked j).

    `q` is [B, Hq, Sq, D], `k` is [B, Hkv, Skv, D], `v` is [B, Hkv, Skv, Dv]; query head h reads key head
    h // (Hq / Hkv). k and v may have 8-bit elements where q has others. The results are o, [B, Hq, Sq, Dv], of v's element type, of
    f32 where that has 16 bits, or of any where it has 8, and one [B, Hq, Sq] tensor for each name in `outputs`.
    The body holds *pieces*, each at most once, in any order: `attn.query`, `attn.key`, `attn.value` (elementwise on
    the inputs), `attn.score`, `attn.mask`, and the required `attn.row`. An absent piece is the identity, an absent
    mask keeps every position. `attn-resolve-masks` adds `attn.bounds` and `attn.block_mask`. Pieces may refer to
    values of the enclosing function: captured tensors and scalars are its arguments. `attn.product` pieces give the
    scores further products to be made of, `attn.term` pieces the weights further tensors to sum; `attn.sequences` pieces say that
    the tensors are packed, `attn.pages` that keys lie in pages, an `attn.key_lists` which keys a query sees. See there.

    A masked position is absent: it enters no reduction and gets no weight. A row without any position gives
    o = 0 and lse = -inf. `rows_nonempty = true` records a proof that no such row exists (for Skv >= 1).
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    outputs: ir.ArrayAttr
    o: ext.Result[Any]
    rows: Sequence[ext.Result[Any]]
    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_operands(self) and _verify_results(self)

    def verify_region_invariants(self) -> bool:
        return verify_pieces(self, _ATTENTION, frozenset({"attn.row"}), _SEVERAL) and _verify_terms(self)


@single_variadic
class OnlineOp(Attn.Operation, name="online", traits=[ir.NoTerminatorTrait, ext.Pure]):
    """Attention in online form: one or more passes over blocks of keys, carrying a row state.

    Operands, results, `outputs` and the pieces for mods and masks are those of `attn.attention`. Instead of a row it
    holds `attn.init` (initial states), one `attn.step` per pass over keys, `attn.finalize`, and, where one pass
    suffices, `attn.merge`. `accumulators` = A is the number of output accumulators: during the last pass, for every
    block of keys, acc_a <- acc_a * scale_a + sum_j weight_aj v_j, starting from 0; `attn.finalize` makes o of them.
    `sources` (absent: all 0) gives for each accumulator whose rows it sums: 0 those of v, n those of the n-th `attn.term`.
    """

    q: ext.Operand[Any]
    k: ext.Operand[Any]
    v: ext.Operand[Any]
    outputs: ir.ArrayAttr
    accumulators: ir.IntegerAttr
    o: ext.Result[Any]
    rows: Sequence[ext.Result[Any]]
    body: ext.Region

    def verify_invariants(self) -> bool:
        if not (_verify_operands(self) and _verify_results(self)):
            return False
        return check(self, self.accumulators.value >= 1, f"needs at least one accumulator, got {self.accumulators.value}")

    def _verify_sources(self) -> bool:
        if "sources" not in self.operation.attributes:
            return True
        sources, terms = self.operation.attributes["sources"], terms_of(self.operation)
        if not check(self, isinstance(sources, ir.DenseI64ArrayAttr), "takes `sources` as array<i64>"):
            return False
        count = self.accumulators.value
        if not check(self, len(sources) == count, f"has one source for each of {count} accumulators, got {len(sources)}"):
            return False
        return check(self, all(0 <= s <= terms for s in sources), f"sums v (source 0) or its terms (1 to {terms})")

    def verify_region_invariants(self) -> bool:
        required = frozenset({"attn.init", "attn.step", "attn.finalize"})
        if not (verify_pieces(self, _ONLINE, required, _SEVERAL | {"attn.step"}) and _verify_terms(self)):
            return False
        return self._verify_sources() and self._verify_states()

    def _verify_states(self) -> bool:
        pieces = list(self.body.blocks[0].operations)
        bodies = [p for p in pieces if len(p.operation.regions) == 1]
        yielded = {p.operation.name: len(p.operation.regions[0].blocks[0].operations[-1].operands) for p in bodies}
        states, a = yielded["attn.init"], self.accumulators.value
        outputs = outputs_of(self.operation) + len(self.operation.results) - 1
        scores = scores_of(self.operation)
        steps = [p for p in pieces if p.operation.name == "attn.step"]
        for position, step in enumerate(steps):
            block = step.operation.regions[0].blocks[0]
            count = len(block.arguments)
            if not check(step, count == scores + 3 + states, f"takes (s, b, h, q_idx) and {states} states, got {count} arguments"):
                return False
            wanted = states + (2 * a if position == len(steps) - 1 else 0)
            got = len(block.operations[-1].operands)
            if not check(step, got == wanted, f"yields {wanted} values ({states} states; weights and scales in the last pass), got {got}"):
                return False
        finalize = next(p for p in pieces if p.operation.name == "attn.finalize")
        count, made = len(finalize.operation.regions[0].blocks[0].arguments), yielded["attn.finalize"]
        if not check(
            finalize, count == a + 3 + states, f"takes {a} accumulators, (b, h, q_idx) and {states} states, got {count} arguments"
        ):
            return False
        if not check(finalize, made == outputs, f"yields o and {outputs - 1} row outputs, got {made} values"):
            return False
        merge = next((p for p in pieces if p.operation.name == "attn.merge"), None)
        if merge is None:
            return True
        arguments = len(merge.operation.regions[0].blocks[0].arguments)
        if not check(merge, len(steps) == 1, "merges the states of one pass; this op has several"):
            return False
        if not check(merge, arguments == 2 * states, f"takes twice {states} states, got {arguments} arguments"):
            return False
        made = yielded["attn.merge"]
        return check(merge, made == states + 2 * a, f"yields {states} states and {2 * a} scales, got {made} values")
