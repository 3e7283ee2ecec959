"""The pieces inside `attn.attention` and `attn.online`: small functions on scalars."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.verify import check, entry_block, is_score_type, terminator
from attn_mlir.mlir import ext, ir

_OWNERS = ("attn.attention", "attn.online")


def _kind(type_: ir.Type) -> str:
    if is_score_type(type_):
        return "score"
    if isinstance(type_, ir.IndexType):
        return "index"
    return "i1" if str(type_) == "i1" else str(type_)


def _verify_owner(op: Any, owners: tuple[str, ...] = _OWNERS) -> bool:
    parent = op.operation.parent
    return check(op, parent is not None and parent.name in owners, f"belongs inside {' or '.join(owners)}")


def _verify_signature(op: Any, names: str, kinds: list[str], results: list[str] | None, rest: str | None = None) -> bool:
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


class QueryOp(Attn.Operation, name="query"):
    """Elementwise change of q: (x, b, h, q_idx, d) -> x."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "x, b, h, q_idx, d", ["score"] + ["index"] * 4, ["score"])


class KeyOp(Attn.Operation, name="key"):
    """Elementwise change of k: (x, b, kv head, kv_idx, d) -> x."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "x, b, h_kv, kv_idx, d", ["score"] + ["index"] * 4, ["score"])


class ValueOp(Attn.Operation, name="value"):
    """Elementwise change of v: (x, b, kv head, kv_idx, d) -> x."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "x, b, h_kv, kv_idx, d", ["score"] + ["index"] * 4, ["score"])


class ScoreOp(Attn.Operation, name="score"):
    """Elementwise change of one score q_i . k_j: (score, b, h, q_idx, kv_idx) -> score.

    The softmax scale, where there is one, is the first operation here.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "score, b, h, q_idx, kv_idx", ["score"] + ["index"] * 4, ["score"])


class MaskOp(Attn.Operation, name="mask"):
    """Which positions are present: (b, h, q_idx, kv_idx) -> i1, true keeps."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "b, h, q_idx, kv_idx", ["index"] * 4, ["i1"])


class RowOp(Attn.Operation, name="row"):
    """What one row of scores becomes: (s, b, h, q_idx) -> (p, row outputs...).

    `s` is one score of the row; `attn.reduce` marks reductions over the present keys. Row outputs must not vary
    along the row.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self, ("attn.attention",))

    def verify_region_invariants(self) -> bool:
        if not _verify_signature(self, "s, b, h, q_idx", ["score"] + ["index"] * 3, None):
            return False
        yielded, wanted = len(terminator(entry_block(self)).operation.operands), len(self.operation.parent.results)
        return check(self, yielded == wanted, f"yields p and {wanted - 1} row outputs, got {yielded} values")


class InitOp(Attn.Operation, name="init"):
    """Initial row states: (b, h, q_idx) -> (states...)."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self, ("attn.online",))

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "b, h, q_idx", ["index"] * 3, None)


class StepOp(Attn.Operation, name="step"):
    """One block of keys: (s, b, h, q_idx, states...) -> (states..., weights..., scales...).

    `s` is one score of the block and `attn.reduce` reduces over the block's present keys. Only the last step of an
    `attn.online` yields the weights of the accumulators and the factors by which they are rescaled before.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self, ("attn.online",))

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "s, b, h, q_idx, states...", ["score"] + ["index"] * 3, None, rest="score")


class MergeOp(Attn.Operation, name="merge"):
    """Merges the results of two disjoint sets of keys: (states a..., states b...) -> (states..., scales a..., scales b...)."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self, ("attn.online",))

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "states a..., states b...", [], None, rest="score")


class FinalizeOp(Attn.Operation, name="finalize"):
    """Makes the output: (accumulators..., b, h, q_idx, states...) -> (o, row outputs...)."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self, ("attn.online",))

    def verify_region_invariants(self) -> bool:
        block = entry_block(self)
        accumulators = self.operation.parent.attributes["accumulators"].value
        # However large the attribute, one kind too many suffices to be wrong.
        kinds = ["score"] * min(accumulators, len(block.arguments) if block else 0) + ["index"] * 3
        return _verify_signature(self, "accumulators..., b, h, q_idx, states...", kinds, None, rest="score")


class BoundsOp(Attn.Operation, name="bounds"):
    """Keys that a block of query rows can see: (b, h, q_begin, q_end) -> (begin, full_begin, full_end, end).

    All ranges are half open and lie within [0, Skv], begin <= full_begin <= full_end <= end. No position outside
    [begin, end) is present for any row of [q_begin, q_end); every position of [full_begin, full_end) is, for all.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "b, h, q_begin, q_end", ["index"] * 4, ["index"] * 4)


class BlockMaskOp(Attn.Operation, name="block_mask"):
    """Class of a block of positions: (b, h, q_begin, q_end, kv_begin, kv_end) -> (any, all).

    `any` false proves that no position of the block is present (skip it), `all` true proves that every one is
    (no elementwise mask). Ranges are half open and not empty.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return _verify_owner(self)

    def verify_region_invariants(self) -> bool:
        return _verify_signature(self, "b, h, q_begin, q_end, kv_begin, kv_end", ["index"] * 6, ["i1", "i1"])
