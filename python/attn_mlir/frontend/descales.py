"""Scales of 8-bit inputs and outputs as code of the pieces: scores are multiplied by those of q and k, weights by those of v and o.

Captured numbers that are the same along a row are factors which the derivation applies at the end; no backend knows of them.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import ops
from attn_mlir.frontend.dropout import score_piece
from attn_mlir.frontend.emit import Piece
from attn_mlir.frontend.given import DESCALE, DescaleForms
from attn_mlir.frontend.key_scores import substituted
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.scope import Captured, Trace

__all__ = ["with_descales"]


def with_descales(state: Trace, pieces: Sequence[Piece], forms: DescaleForms, weights: int) -> list[Piece]:
    """The pieces with the scales of `forms`; the same pieces where there are none. The row yields so many `weights` first."""
    of_scores = [name for name in ("q_descale", "k_descale") if name in dict(forms)]
    of_weights = [name for name in ("v_descale", "o_scale") if name in dict(forms)]
    made = list(pieces)
    if of_scores:
        score = score_piece(state, made)
        made = [piece for piece in made if piece.name != "score"]
        before = sum(piece.name in ("query", "key", "value") for piece in made)
        made.insert(before, _with_score(state, score, _Read(state, dict(forms), of_scores, score)))
    if of_weights:
        made = [_with_weights(state, p, _Read(state, dict(forms), of_weights, p), weights) if p.name == "row" else p for p in made]
    return made


@dataclasses.dataclass(frozen=True)
class _Read:
    """Reads the scales of these names in a piece."""

    state: Trace
    forms: Mapping[str, str]
    names: Sequence[str]
    piece: Piece

    def factor(self) -> Node:
        """Their product."""
        b, h = [argument for argument in self.piece.arguments if argument.kind == "int"][:2]
        made = None
        for name in self.names:
            read = self._one(name, self.forms[name], b, h)
            made = read if made is None else ops.mul(made, read)
        if made is None:
            raise ValueError("no scale to read")
        return made

    def _one(self, name: str, form: str, b: Node, h: Node) -> Node:
        source = (DESCALE, name)
        if form == "number":
            return self.state.capture(Captured(source, name, CaptureKind.FLOAT))
        captured = Captured(source, name, CaptureKind.TENSOR, "f32", len(form))
        self.state.captures.setdefault(source, captured)
        at = [b if index == "b" else h if index == "h" else self._key_head(h) for index in form]
        read = ops.make("tensor.extract", "float", *at, attribute=captured)
        self.state.labels[read] = name
        return read

    def _key_head(self, h: Node) -> Node:
        heads, key_heads = (self.state.size(("size", x, 1), name) for x, name in (("q", "num_heads"), ("k", "num_key_heads")))
        return ops.floordiv(h, ops.floordiv(heads, key_heads))


def _with_score(state: Trace, score: Piece, read: _Read) -> Piece:
    """The score's piece, which begins with the product of 8-bit numbers times their scales."""
    state.scope = score.arguments[0].scope  # type: ignore[assignment]
    product = score.arguments[0]
    with state:
        scaled = ops.mul(product, read.factor())
        results = substituted(state, score.results, {product: scaled}, None)
    state.labels[scaled] = "descaled"
    return dataclasses.replace(score, results=tuple(results))


def _with_weights(state: Trace, row: Piece, read: _Read, weights: int) -> Piece:
    """The row, whose weights are multiplied by the scales of what they multiply, and of o."""
    state.scope = row.arguments[0].scope  # type: ignore[assignment]
    results = list(row.results)
    with state:
        factor = read.factor()
        for number in range(weights):
            results[number] = ops.mul(results[number], factor)
            state.labels[results[number]] = "scaled"
    return dataclasses.replace(row, results=tuple(results))
