"""The other element of a pair of channels, for rotary embeddings: `partner` and `rotate_half`."""

import dataclasses
import operator
from typing import Any

import torch

from attn_mlir.dialects.attn.partners import Partner
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend import ops, scope
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.values import Value, lift, wrap

_CHANNEL = 4
"""The place of d among the arguments of a mod."""
_AFTER = "write query_mod=lambda x, b, h, q_idx, d: ..., and rotate other tensors before the call"


@dataclasses.dataclass(frozen=True, eq=False)
class Pair:
    """How the channels of a mod are paired, and its arguments for that."""

    kind: Partner
    partner: Node
    """The element of the other channel."""
    channel: Node
    """d."""


def partner(x: Any, interleaved: bool = False, channels: int | None = None) -> Any:
    """`x` of the other channel of its pair, inside a query_mod or key_mod: that of d + D/2 or d - D/2, or interleaved of d + 1 or d - 1.

    `channels`: only so many are paired, the others have no partner: they are their own. Of a tensor, all at once along its last dimension.
    """
    if isinstance(x, torch.Tensor):
        return _of_tensor(x, interleaved, channels, turned=False)
    return of_value(x, interleaved, channels, turned=False)


def rotate_half(x: Any, interleaved: bool = False, channels: int | None = None) -> Any:
    """The partner of `x`, with a minus sign in the first of its two channels: x * cos + rotate_half(x) * sin rotates pairs of channels.

    `interleaved` and `channels` are those of `partner`; of channels that are not paired it is 0.
    """
    if isinstance(x, torch.Tensor):
        return _of_tensor(x, interleaved, channels, turned=True)
    return of_value(x, interleaved, channels, turned=True)


def covers(x: Any, channels: int) -> bool:
    """Whether so many channels are known to be all that there are, for a mod of `x` that leaves others as they are."""
    return not isinstance(x, torch.Tensor) and scope.current().head_dim == channels


def of_value(x: Any, interleaved: bool, channels: int | None, turned: bool) -> Value:
    """`partner`, or if `turned` `rotate_half`, of a value that a mod computes of its element."""
    name = "rotate_half" if turned else "partner"
    pair = _pair(name, bool(interleaved), channels)
    other = _substitute(lift(x), pair)
    if not turned:
        return wrap(other)
    d, paired = wrap(pair.channel), pair.kind.channels
    first = d % 2 == 0 if pair.kind.kind == "interleaved" else d < paired // 2
    found = wrap(ops.select(first._node, ops.neg(other), other))
    if paired == scope.current().head_dim:
        return found
    return wrap(ops.select((d < paired)._node, found._node, ops.constant(0.0)))


def _pair(name: str, interleaved: bool, channels: int | None) -> Pair:
    """The pairing of the function being traced; its first use makes it."""
    if not scope.is_tracing():
        raise ArgumentError(f"attn_mlir.{name}(x) takes a tensor, or x of a query_mod or key_mod while attention(...) traces it")
    trace = scope.current()
    piece, dim = trace.scope, trace.head_dim
    if piece is None or piece.kind not in ("query", "key") or not piece.arguments:
        raise scope.fail(f"{name}(...) reads another channel of q or k, which only query_mod and key_mod have", _AFTER)
    if not dim:
        raise scope.fail(f"{name}(...) in linear attention, whose mods see one channel", "rotate q and k before the call")
    count = dim if channels is None else operator.index(channels)
    if count % 2:
        advice = "channels=, an even number, says how many are paired"
        raise scope.fail(f"{name}(...) pairs channels, but there are {count} of them", advice)
    if not 2 <= count <= dim:
        raise scope.fail(f"{name}(...) pairs {count} channels of a head dimension of {dim}", f"give from 2 to {dim} of them")
    kind = Partner("interleaved" if interleaved else "half", count)
    if piece.pair is None:
        d = piece.arguments[_CHANNEL] if len(piece.arguments) > _CHANNEL else trace.argument("d", "int", nonnegative=True)
        piece.pair = Pair(kind, trace.argument("partner", "float"), d)
    elif piece.pair.kind != kind:
        raise scope.fail(f"{name}(...) pairs channels in another way than before in this function", "one function pairs them in one way")
    return piece.pair


def _substitute(node: Node, pair: Pair) -> Node:
    """What `node` is in the other channel."""
    trace = scope.current()
    piece = trace.scope
    if piece is None:
        raise TypeError("no function is being traced")
    made: dict[Node, Node] = {piece.arguments[0]: pair.partner, pair.partner: piece.arguments[0]}
    stack = [node]
    while stack:
        n = stack[-1]
        missing = [operand for operand in n.operands if operand not in made]
        if n in made or missing:
            stack += missing
            if n in made:
                stack.pop()
            continue
        stack.pop()
        if n is pair.channel:
            made[n] = _partner_index(pair)._node
        elif all(made[operand] is operand for operand in n.operands):
            made[n] = n
        else:
            made[n] = dataclasses.replace(n, operands=tuple([made[operand] for operand in n.operands]), order=trace.next_order())
    return made[node]


def _partner_index(pair: Pair) -> Value:
    d, paired = wrap(pair.channel), pair.kind.channels
    half = paired // 2
    other = d + 1 - d % 2 * 2 if pair.kind.kind == "interleaved" else (d + half) % paired
    return other if paired == scope.current().head_dim else wrap(ops.select((d < paired)._node, other._node, d._node))


def _of_tensor(x: torch.Tensor, interleaved: bool, channels: int | None, turned: bool) -> torch.Tensor:
    name = "rotate_half" if turned else "partner"
    if torch.compiler.is_dynamo_compiling():
        if not x.dim():  # stands for an element; see `api.graphs`
            return torch.ops.attn_mlir.partner(x, interleaved, 0 if channels is None else channels, turned)
    elif scope.is_tracing():
        raise scope.fail(f"{name}(...) of a captured tensor", "read the tensor in the other channel, or change it before the call")
    count = x.shape[-1] if channels is None else channels
    if count % 2 or not 2 <= count <= x.shape[-1]:
        raise ArgumentError(f"{name}(x) pairs an even number of channels, up to {x.shape[-1]}, got {count}")
    paired, rest = x[..., :count], x[..., count:]
    if interleaved:
        first, second = paired[..., ::2], paired[..., 1::2]
        both = torch.stack((-second if turned else second, first), -1).flatten(-2)
    else:
        first, second = paired.chunk(2, -1)
        both = torch.cat((-second if turned else second, first), -1)
    return both if count == x.shape[-1] else torch.cat((both, torch.zeros_like(rest) if turned else rest), -1)
