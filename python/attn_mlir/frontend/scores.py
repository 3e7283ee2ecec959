"""Traces what scores are made of: the products of queries and keys, the scale of each, and the user's score_mod."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend import functions
from attn_mlir.frontend.emit import Piece
from attn_mlir.frontend.functions import Parameter, choose_arity, trace_call
from attn_mlir.frontend.node import Node, Source
from attn_mlir.frontend.rebind import Rebinder
from attn_mlir.frontend.report import failure
from attn_mlir.frontend.scope import Captured, Scope, Trace
from attn_mlir.frontend.values import Value, wrap

SCALE: Source = ("scale",)
_POSITION = tuple(Parameter(name, "int", nonnegative=True) for name in ("b", "h", "q_idx", "kv_idx"))
_MOST = 8


def numbered(name: str, count: int) -> list[str]:
    """Names of so many values: score, score2, score3..."""
    return [name, *[f"{name}{number}" for number in range(2, count + 1)]]


def score_pieces(state: Trace, score_mod: Callable[..., Any] | None, scales: Sequence[str | float], rebind: Rebinder) -> list[Piece]:
    """The score's piece; none where the scores are the products themselves.

    `scales` are those of the products, numbers or "runtime". A `score_mod` of one score changes each of them; one that takes as many as
    there are products makes one score of them, or a tuple of several.
    """
    products = [Parameter(name, "float") for name in numbered("score", len(scales))]
    if score_mod is None:
        if all(scale == 1.0 for scale in scales):
            return []

        def scaled(*given: Value) -> tuple[Value, ...]:
            return tuple(_scale(state, scale, x, p.name) for scale, x, p in zip(scales, given, products, strict=False))

        arguments, result = trace_call(state, "score", "scale", scaled, (*products, *_POSITION))
        return [Piece("score", arguments, tuple(functions.as_float(state, x, None, "scale", "a score") for x in result))]
    choices = [(products[0], *_POSITION), (*products, *_POSITION)]
    parameters = choose_arity("score_mod", score_mod, choices[: len(products)])
    each = len(products) > 1 and len(parameters) == len(choices[0])
    if each:
        parameters = (*[dataclasses.replace(p, name=f"{parameters[0].name}{p.name[5:]}") for p in products], *parameters[1:])
    rebound = rebind(score_mod)
    arguments = [state.argument(p.name, p.kind, nonnegative=p.nonnegative) for p in parameters]
    state.scope = Scope("score", functions.subject("score_mod", score_mod))
    arguments = [dataclasses.replace(argument, scope=state.scope) for argument in arguments]
    count, values = len(products), [wrap(argument) for argument in arguments]
    with state:
        given = [
            x if scale == 1.0 else _scale(state, scale, x, p.name) for scale, x, p in zip(scales, values, parameters[:count], strict=False)
        ]
        if each:
            made: Any = tuple(functions.run(rebound, [x, *values[count:]]) for x in given)
        else:
            made = functions.run(rebound, [*given, *values[count:]])
    results = _results(score_mod, made, count)
    nodes = [functions.as_float(state, x, score_mod, "score_mod", "the changed score") for x in results]
    return [Piece("score", tuple(arguments), tuple(nodes), functions.position_of(score_mod))]


def _results(score_mod: Callable[..., Any], made: Any, products: int) -> Sequence[Any]:
    """The scores that a score_mod returned."""
    if not isinstance(made, tuple) or products == 1:
        return [made]
    if 1 <= len(made) <= _MOST:
        return made
    problem = f"returned {len(made)} scores"
    advice = f"return one score, or a tuple of 1 to {_MOST}, of which the row takes each"
    raise failure(functions.subject("score_mod", score_mod), problem, advice, functions.definition(score_mod))


def _scale(state: Trace, scale: str | float, score: Value, name: str) -> Value:
    factor: Any = wrap(state.capture(Captured(SCALE, "scale", CaptureKind.FLOAT))) if scale == "runtime" else scale
    if factor is scale and scale == 1.0:
        return score
    scaled = score * factor
    state.labels[scaled._node] = name
    return scaled


def scores_of(pieces: Sequence[Piece], products: int) -> int:
    """How many scores the row takes."""
    return next((len(piece.results) for piece in pieces if piece.name == "score"), products)


def floats_of(arguments: Sequence[Node]) -> int:
    """How many numbers the arguments of a piece begin with, before b, h and the positions."""
    return next((i for i, argument in enumerate(arguments) if argument.kind == "int"), len(arguments))
