"""The pieces of linear attention besides those for q, k and v, and what its gradients need besides."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import verify_owner, verify_signature
from attn_mlir.dialects.attn.rows import multiplies_rows
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, is_score_type, is_tensor
from attn_mlir.mlir import ext, ir

_LINEAR = ("attn.linear_attention", "attn.chunk")


class DecayOp(Attn.Operation, name="decay"):
    """Elementwise change of the log decay: (g, b, h, t, d) -> g; h is the head of o, d the channel (0 without channels).

    Without a decay operand g is 0.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, (*_LINEAR, "attn.decay_sum"))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "g, b, h, t, d", ["score"] + ["index"] * 4, ["score"])


class ResultOp(Attn.Operation, name="result"):
    """A factor of o's rows, after all sums: (x, b, h, t, d) -> x times, or divided by, what depends on neither x nor d.

    h is the head of o.
    """

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _LINEAR)

    def verify_region_invariants(self) -> bool:
        if not verify_signature(self, "x, b, h, t, d", ["score"] + ["index"] * 4, ["score"]):
            return False
        return check(self, multiplies_rows(self.operation), "multiplies each row by one number")


class SkipOp(Attn.Operation, name="skip"):
    """What every position gets of its own row of v, as it comes, after everything else: (b, h, t) -> factor. h is the head of o."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, _LINEAR)

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "b, h, t", ["index"] * 3, ["score"])


class ChunkDecayOp(Attn.Operation, name="chunk_decay"):
    """The factor of the old state in the new one: (total) -> factor."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.chunk",))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "total", ["score"], ["score"])


class InputDecayOp(Attn.Operation, name="input_decay"):
    """The factor of a position's k v^T in the new state: (prefix, total) -> factor."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.chunk",))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "prefix, total", ["score"] * 2, ["score"])


class OutputDecayOp(Attn.Operation, name="output_decay"):
    """The factor of the old state in a position's output: (prefix, total) -> factor."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.chunk",))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "prefix, total", ["score"] * 2, ["score"])


class DecayMaskOp(Attn.Operation, name="decay_mask"):
    """The factor of (q_t . k_s) v_s within a chunk: (prefix_t, prefix_s) -> factor."""

    body: ext.Region

    def verify_invariants(self) -> bool:
        return verify_owner(self, ("attn.chunk",))

    def verify_region_invariants(self) -> bool:
        return verify_signature(self, "prefix_t, prefix_s", ["score"] * 2, ["score"])


class HeadSumOp(Attn.Operation, name="head_sum", traits=[ext.Pure]):
    """[B, Hl, T, D]: the sum over each group of H / Hl heads of `x`, [B, H, T, D]; Hl is the number of heads of `like`, [B, Hl, ...].

    Summed in the dtype of scores, rounded once to x's element type. With as many heads in both it is x itself.
    """

    x: ext.Operand[Any]
    like: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        x, like, result = self.x.type, self.like.type, self.result.type
        fits = is_tensor(x, 3, 4) and is_tensor(like) and like.rank >= 2 and result == x
        return check(self, fits, f"sums heads of [B, H, T, D] or [B, H, T] to the same type, got {x}, {like} and {result}")


@single_variadic
class DecayGradientOp(Attn.Operation, name="decay_gradient", traits=[ext.Pure]):
    """The gradient of the log decays, [B, H, T] (or [B, H, T, K]), from the products of the scans for dq and dk.

    d_t = sum over r from the beginning of t's interval to before t of (b_r - a_r), plus the sum over the state's elements (of channel d:
    its row d) of s_n e_n at the boundary before the interval: `a` = "products" q . dq and `s` = "states" of the forward scan that makes
    dq, `b` = k . dk and `e` of the backward scan that makes dk, both with `interval` and states [B, H, N R, C] of `rows` = R rows. Sums
    begin again in every interval, so that the residuals of b - a do not add up over the sequence. With `offsets`, states are
    placed as in `attn.linear_attention`.

    With the unit attribute `crossing`, that of the two scans, d_t = a_t + b_t and the same sum of s_n e_n: what passes into the rest
    of t's interval from before t, from before t but within the interval to beyond its end, and from before to beyond the interval.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    s: ext.Operand[Any]
    e: ext.Operand[Any]
    offsets: Sequence[ext.Operand[Any]]
    interval: ir.IntegerAttr
    rows: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        a, s, result = self.a.type, self.s.type, self.result.type
        if not check(self, is_tensor(a, 3, 4) and self.b.type == a, f"takes products of one type, got {a} and {self.b.type}"):
            return False
        if not check(self, is_tensor(s, 4) and self.e.type == s, f"takes states of one type, got {s} and {self.e.type}"):
            return False
        if not check(self, len(self.offsets) <= 1, "takes at most one tensor of offsets"):
            return False
        if not check(self, self.interval.value > 0 and self.rows.value > 0, "has a positive `interval` and positive `rows`"):
            return False
        return check(self, result == a and is_score_type(a.element_type), f"makes decays shaped like the products, got {result} for {a}")


class DecayGradientSumOp(Attn.Operation, name="decay_gradient_sum", traits=[ext.Pure]):
    """`attn.decay_gradient` of two scans in each direction: a + a_2, b + b_2 and e + e_2 are in the places of a, b and e.

    Both scans of one direction have the same state of the other one, `s`. The sums are made where they are read, so that none of them
    is a tensor. There are no `offsets`, and gradients are not `crossing`.
    """

    a: ext.Operand[Any]
    a_2: ext.Operand[Any]
    b: ext.Operand[Any]
    b_2: ext.Operand[Any]
    s: ext.Operand[Any]
    e: ext.Operand[Any]
    e_2: ext.Operand[Any]
    interval: ir.IntegerAttr
    rows: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        a, s, result = self.a.type, self.s.type, self.result.type
        products, states = [x.type for x in (self.a_2, self.b, self.b_2)], [x.type for x in (self.e, self.e_2)]
        same = is_tensor(a, 3, 4) and all(type_ == a for type_ in products)
        if not check(self, same, f"takes products of one type, got {', '.join(map(str, [a, *products]))}"):
            return False
        same = is_tensor(s, 4) and all(type_ == s for type_ in states)
        if not check(self, same, f"takes states of one type, got {', '.join(map(str, [s, *states]))}"):
            return False
        if not check(self, self.interval.value > 0 and self.rows.value > 0, "has a positive `interval` and positive `rows`"):
            return False
        return check(self, result == a and is_score_type(a.element_type), f"makes decays shaped like the products, got {result} for {a}")
