"""Dropout of a traced attention: a second score, 1 where a weight is kept and 0 where it is dropped, which multiplies the weight.

So statistics of the row do not know of it, and whatever holds for scores holds for it: masks, tiles, derivatives.
"""

import dataclasses
from collections.abc import Sequence

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import ops, sizes
from attn_mlir.frontend.emit import Piece
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.scope import Captured, Scope, Trace
from attn_mlir.frontend.scores import floats_of, numbered
from attn_mlir.frontend.tensors import CapturedTensor
from attn_mlir.frontend.values import wrap

__all__ = ["LISTED", "NAMES", "DropoutForm", "score_piece", "with_dropout"]

NAMES = ("dropout_seed", "dropout_offset", "dropout_drop", "dropout_scale")
"""What a program with dropout captures: the generator's key and counter, round(p * 2^32), and 1 / (1 - p)."""

LISTED = ("dropout_rows", "dropout_queries", "dropout_keys")
"""What one on listed keys captures besides, int32: of each sequence and head which head of all batch entries it is; the first query of each
sequence; of each sequence and listed block how far its keys are from where they would be if all were listed."""

DropoutForm = tuple[str, ...]
"""How seed and offset come: as "int" or as "tensor", of int64 and without dimensions; of listed keys also how many a block has."""

_LEAST = 2.0**-126
_POSITION = ("b", "h", "q_idx", "kv_idx")


def with_dropout(state: Trace, pieces: Sequence[Piece], form: DropoutForm | None, products: int = 1, weights: int = 1) -> list[Piece]:
    """The pieces with dropout of the weights that the row or the step yields; the same pieces where `form` is None.

    A pair that is dropped is dropped from all `weights` of a row.
    """
    if form is None:
        return list(pieces)
    score = score_piece(state, pieces, products)
    made = [_dropped(state, piece, weights) if piece.name in ("row", "step") else piece for piece in pieces if piece.name != "score"]
    online = any(piece.name == "step" for piece in pieces)
    before = sum(piece.name in ("query", "key", "value") for piece in made)
    made.insert(before, dataclasses.replace(score, results=(*score.results, _kept(state, form, score.arguments, online))))
    return made


def score_piece(state: Trace, pieces: Sequence[Piece], products: int = 1) -> Piece:
    """The score's piece; where scores are not changed, one that yields the products."""
    for piece in pieces:
        if piece.name == "score":
            return piece
    state.scope = Scope("score", "the score")
    scores = [state.argument(name, "float") for name in numbered("score", products)]
    return Piece("score", (*scores, *[state.argument(name, "int", nonnegative=True) for name in _POSITION]), tuple(scores))


def _kept(state: Trace, form: DropoutForm, arguments: Sequence[Node], scaled: bool) -> Node:
    """0 where the pair is dropped, else 1, or 1 / (1 - p) if `scaled`; `arguments` are those of the score's piece."""
    state.scope = arguments[0].scope  # type: ignore[assignment]
    with state:
        seed, offset = (_given(state, name, kind) for name, kind in zip(NAMES[:2], form[:2], strict=True))
        drop = state.capture(Captured(("dropout", NAMES[2]), NAMES[2], CaptureKind.INT))
        places = [sizes.num_heads()._node, *arguments[-len(_POSITION) :]]
        if len(form) > 2:
            places = _listed(int(form[2]), places)
        is_kept = ops.make("attn.kept", "bool", seed, offset, drop, *places)
        made = ops.select(is_kept, _scale(state) if scaled else ops.constant(1.0), ops.constant(0.0))
    state.labels[is_kept], state.labels[made] = "is_kept", "kept"
    return made


def _listed(keys: int, places: Sequence[Node]) -> list[Node]:
    """The number of heads, and the place that a pair has in the whole, where sequences are blocks of queries with lists of keys."""
    _, b, h, q_idx, kv_idx = places
    ranks = zip(LISTED, (2, 1, 2), strict=True)
    captured = [Captured(("dropout", name), name, CaptureKind.TENSOR, "i32", rank) for name, rank in ranks]
    rows, queries, blocks = (CapturedTensor(each, "int") for each in captured)
    number = (wrap(kv_idx) // keys).clamp(max=blocks.shape[1] - 1)
    query, key = queries[wrap(b)] + wrap(q_idx), blocks[wrap(b), number] + wrap(kv_idx)
    return [ops.constant(0), ops.constant(0), rows[wrap(b), wrap(h)]._node, query._node, key._node]


def _scale(state: Trace) -> Node:
    return state.capture(Captured(("dropout", NAMES[3]), NAMES[3], CaptureKind.FLOAT))


def _positive_scale(state: Trace) -> Node:
    """The same, known to be positive. So derivatives can make it a part of exponents."""
    return ops.extremum("max", _scale(state), ops.constant(_LEAST))


def _given(state: Trace, name: str, kind: str) -> Node:
    if kind == "int":
        return state.capture(Captured(("dropout", name), name, CaptureKind.INT))
    captured = Captured(("dropout", name), name, CaptureKind.TENSOR, "i64", 0)
    state.captures.setdefault(captured.source, captured)
    return ops.make("tensor.extract", "int", attribute=captured)


def _dropped(state: Trace, piece: Piece, weights: int) -> Piece:
    """The piece that makes the weights, which takes what is kept as its last score.

    A row is scaled besides, so that the derivation can do it at the end; a step yields row states, the weight and the scale of the output.
    """
    state.scope = piece.arguments[0].scope  # type: ignore[assignment]
    at = 0 if piece.name == "row" else len(piece.results) - 2
    factor = state.argument("kept", "float", varying=True)
    results = list(piece.results)
    with state:
        for number in range(at, at + weights):
            weight = ops.mul(results[number], factor)
            results[number] = ops.mul(weight, _positive_scale(state)) if piece.name == "row" else weight
            state.labels[results[number]] = "dropped"
    count = floats_of(piece.arguments)
    arguments = (*piece.arguments[:count], factor, *piece.arguments[count:])
    return dataclasses.replace(piece, arguments=arguments, results=tuple(results))
