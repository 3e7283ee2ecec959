"""The pieces inside `attn.attention` and `attn.online`: small functions on scalars."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.partners import verify_partner
from attn_mlir.dialects.verify import check, entry_block, is_score_type, terminator
from attn_mlir.mlir import ext, ir

OWNERS = ("attn.attention", "attn.online")
_STATES_OWNERS = ("attn.online", "attn.combine")
_MODS_OWNERS = (*OWNERS, "attn.linear_attention", "attn.chunk")


def _kind(type_: ir.Type) -> str:
    if is_score_type(type_):
        return "score"
    if isinstance(type_, ir.IndexType):
        return "index"
    return "i1" if str(type_) == "i1" else str(type_)


def verify_owner(op: Any, owners: tuple[str, ...] = OWNERS) -> bool:
    """Checks that a piece stands inside one of the ops named."""
    parent = op.operation.parent
    return check(op, parent is not None and parent.name in owners, f"belongs inside {' or '.join(owners)}")


def verify_signature(op: Any, names: str, kinds: list[str], results: list[str] | None, rest: str | None = None) -> bool:
    """Checks the block's argument kinds, and what its `attn.yield` returns (`results` None: any scores)."""
    block = entry_block(op)
    if not check(op, block is not None, "has exactly one block"):
        return False
    got = [_kind(argument.type) for argument in block.arguments]
    fits = got[: len(kinds)] == kinds and all(kind == rest for kind in got[len(kinds) :])
    if not check(op, fits, f"takes ({names}), got ({', '.join(got)})"):
        return False
    last = terminator(block)
    if not check(op, last is not None and last.operation.name == "attn.yield", "ends in 'attn.yield'"):
        return False
    yielded = [_kind(value.type) for value in last.operation.operands]
    if results is None:
        return check(op, all(kind == "score" for kind in yielded), f"yields scores (f32 or f64), got ({', '.join(yielded)})")
    return check(op, yielded == results, f"yields ({', '.join(results)}), got ({', '.join(yielded)})")


def verify_pieces(op: Any, allowed: frozenset[str], required: frozenset[str], repeatable: frozenset[str] = frozenset()) -> bool:
    """Checks that the op's block holds pieces only, the required ones, and none twice that is not repeatable."""
    block = entry_block(op)
    if not check(op, block is not None and not block.arguments, "has one block without arguments, holding its pieces"):
        return False
    names = [piece.operation.name for piece in block.operations]
    for name in names:
        if not check(op, name in allowed, f"holds pieces only ({', '.join(sorted(allowed))}), found '{name}'"):
            return False
        if not check(op, name in repeatable or names.count(name) == 1, f"holds more than one '{name}'"):
            return False
    missing = required - set(names)
    return check(op, not missing, f"lacks its '{min(missing, default='')}' piece")


def pieces_in(owner: ir.Operation) -> list[ir.Operation]:
    """The ops in the body of `owner`, none where it lacks the form; verifiers may see it before it is verified itself."""
    blocks = list(owner.regions[0].blocks) if len(owner.regions) == 1 else []
    return [view.operation for view in blocks[0].operations] if len(blocks) == 1 else []


def products_of(owner: ir.Operation) -> int:
    """How many products the scores of an `attn.attention` or `attn.online` are made of: q k^T and the `attn.product` pieces."""
    return 1 + sum(piece.name == "attn.product" for piece in pieces_in(owner))


def scores_of(owner: ir.Operation) -> int:
    """How many scores a row has for each key: what `attn.score` yields, else the products."""
    for piece in pieces_in(owner):
        if piece.name == "attn.score" and len(piece.regions) == 1 and len(list(piece.regions[0].blocks)) == 1:
            last = terminator(piece.regions[0].blocks[0])
            return len(last.operation.operands) if last is not None else 0
    return products_of(owner)


def _scores(count: int) -> str:
    return "s" if count == 1 else f"{count} scores"


def term_types(owner: ir.Operation) -> dict[int, list[ir.Type]]:
    """The types of the `attn.term` pieces of an attention, by the output that they belong to."""
    found: dict[int, list[ir.Type]] = {}
    for piece in pieces_in(owner):
        if piece.name == "attn.term" and len(piece.operands) == 1 and "output" in piece.attributes:
            number = piece.attributes["output"]
            if isinstance(number, ir.IntegerAttr):
                found.setdefault(number.value, []).append(piece.operands[0].type)
    return found


def outputs_of(owner: ir.Operation) -> int:
    """How many outputs an attention has: o, and those that `attn.term` pieces name."""
    return 1 + max(term_types(owner), default=0)


def terms_of(owner: ir.Operation) -> int:
    """How many `attn.term` pieces an attention has."""
    return sum(piece.name == "attn.term" for piece in pieces_in(owner))


def _verify_mod(op: Any, names: str) -> bool:
    """Checks the signature of a mod, which may take the element's partner after the element."""
    partner = "partner" in op.operation.attributes
    first = "x, partner" if partner else "x"
    return verify_signature(op, f"{first}, {names}", ["score"] * (1 + partner) + ["index"] * 4, ["score"])


class QueryOp(Attn.Operation, name="query"):
    """Elementwise change of q: (x, b, h, q_idx, d) -> x.

    With `partner` it takes one more element of the same row, (x, partner, b, h, q_idx, d) -> x: of the first `channels` channels, "half"
    pairs d with d + channels / 2, as most rotary embeddings do, and "interleaved" 2 i with 2 i + 1. After them x is its own partner.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        partner = "partner" in self.operation.attributes
        return verify_owner(self, OWNERS if partner else _MODS_OWNERS) and (not partner or verify_partner(self, 0))

    def verify_region_invariants(self) -> bool:
        return _verify_mod(self, "b, h, q_idx, d")


class KeyOp(Attn.Operation, name="key"):
    """Elementwise change of k: (x, b, kv head, kv_idx, d) -> x; with `partner`, as in `attn.query`, (x, partner, ...) -> x."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        partner = "partner" in self.operation.attributes
        return verify_owner(self, OWNERS if partner else _MODS_OWNERS) and (not partner or verify_partner(self, 1))

    def verify_region_invariants(self) -> bool:
        return _verify_mod(self, "b, h_kv, kv_idx, d")


class ValueOp(Attn.Operation, name="value"):
    """Elementwise change of v: (x, b, kv head, kv_idx, d) -> x."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _MODS_OWNERS)

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "x, b, h_kv, kv_idx, d", ["score"] + ["index"] * 4, ["score"])


class ScoreOp(Attn.Operation, name="score"):
    """Elementwise change of one score q_i . k_j: (score, b, h, q_idx, kv_idx) -> score.

    The softmax scale, where there is one, is the first operation here. With further `attn.product` pieces it is
    (products..., b, h, q_idx, kv_idx) -> (scores...), one or more.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self)

    def verify_region_invariants(self) -> bool:
        products = products_of(self.operation.parent)
        names = "score" if products == 1 else f"{products} products"
        if not verify_signature(self, f"{names}, b, h, q_idx, kv_idx", ["score"] * products + ["index"] * 4, None):
            return False
        made = len(terminator(entry_block(self)).operation.operands)
        return check(self, made >= 1, "yields one or more scores, got none")


class MaskOp(Attn.Operation, name="mask"):
    """Which positions are present: (b, h, q_idx, kv_idx) -> i1, true keeps."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, (*OWNERS, "attn.pairs"))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "b, h, q_idx, kv_idx", ["index"] * 4, ["i1"])


class RowOp(Attn.Operation, name="row"):
    """What one row of scores becomes: (s, b, h, q_idx) -> (p, row outputs...).

    `s` is one score of the row; `attn.reduce` marks reductions over the present keys. Row outputs must not vary
    along the row. With several scores it takes all of them; with `attn.term` pieces it yields their weights after p.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.attention",))

    def verify_region_invariants(self) -> bool:
        attention = self.operation.parent
        scores, terms = scores_of(attention), terms_of(attention)
        if not verify_signature(self, f"{_scores(scores)}, b, h, q_idx", ["score"] * scores + ["index"] * 3, None):
            return False
        yielded, rows = len(terminator(entry_block(self)).operation.operands), len(attention.results) - 1
        weights = "p" if not terms else f"{1 + terms} weights"
        return check(self, yielded == 1 + terms + rows, f"yields {weights} and {rows} row outputs, got {yielded} values")


class InitOp(Attn.Operation, name="init"):
    """Initial row states: (b, h, q_idx) -> (states...)."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _STATES_OWNERS)

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "b, h, q_idx", ["index"] * 3, None)


class StepOp(Attn.Operation, name="step"):
    """One block of keys: (s, b, h, q_idx, states...) -> (states..., weights..., scales...).

    `s` is one score of the block and `attn.reduce` reduces over the block's present keys. Only the last step of an
    `attn.online` yields the weights of the accumulators and the factors by which they are rescaled before.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.online",))

    def verify_region_invariants(self) -> bool:
        scores = scores_of(self.operation.parent)
        names = f"{_scores(scores)}, b, h, q_idx, states..."
        return verify_signature(self, names, ["score"] * scores + ["index"] * 3, None, rest="score")


class MergeOp(Attn.Operation, name="merge"):
    """Merges the results of two disjoint sets of keys: (states a..., states b...) -> (states..., scales a..., scales b...)."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _STATES_OWNERS)

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "states a..., states b...", [], None, rest="score")


class FinalizeOp(Attn.Operation, name="finalize"):
    """Makes the output: (accumulators..., b, h, q_idx, states...) -> (o, row outputs...)."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _STATES_OWNERS)

    def verify_region_invariants(self) -> bool:
        block = entry_block(self)
        accumulators = self.operation.parent.attributes["accumulators"].value
        # However large the attribute, one kind too many suffices to be wrong.
        kinds = ["score"] * min(accumulators, len(block.arguments) if block else 0) + ["index"] * 3
        return verify_signature(self, "accumulators..., b, h, q_idx, states...", kinds, None, rest="score")


class BoundsOp(Attn.Operation, name="bounds"):
    """Keys that a block of query rows can see: (b, h, q_begin, q_end) -> (begin, full_begin, full_end, end).

    All ranges are half open and lie within [0, Skv], begin <= full_begin <= full_end <= end. No position outside
    [begin, end) is present for any row of [q_begin, q_end); every position of [full_begin, full_end) is, for all.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "b, h, q_begin, q_end", ["index"] * 4, ["index"] * 4)


class BlockMaskOp(Attn.Operation, name="block_mask"):
    """Class of a block of positions: (b, h, q_begin, q_end, kv_begin, kv_end) -> (any, all).

    `any` false proves that no position of the block is present (skip it), `all` true proves that every one is
    (no elementwise mask). Ranges are half open and not empty.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, (*OWNERS, "attn.pairs"))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "b, h, q_begin, q_end, kv_begin, kv_end", ["index"] * 6, ["i1", "i1"])
