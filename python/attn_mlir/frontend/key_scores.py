"""Rows that use kv_idx: what they compute of positions and captured tensors alone becomes further scores, which the score's piece yields.

A row of the IR sees scores only. So the row's expression is cut where values that depend on kv_idx meet those that depend on the score or
on a reduction, and whatever holds for scores holds for what is cut off: masks, tiles, derivatives of captured tensors.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from attn_mlir.errors import TraceError
from attn_mlir.frontend import ops, report, where
from attn_mlir.frontend.dropout import score_piece
from attn_mlir.frontend.emit import Piece
from attn_mlir.frontend.node import Node
from attn_mlir.frontend.reach import reachable
from attn_mlir.frontend.scope import Trace

__all__ = ["substituted", "with_key_scores"]


def with_key_scores(state: Trace, pieces: Sequence[Piece], key: Node | None, subject: str, products: int = 1) -> list[Piece]:
    """The pieces, where `key` is the row's kv_idx, with further scores for what the row computes of it; None: the same pieces."""
    row = next((piece for piece in pieces if piece.name == "row"), None)
    if key is None or row is None:
        return list(pieces)
    cut = _cut(row, key)
    if not cut:
        return list(pieces)
    for node in cut:
        if node.kind == "int":
            raise _mixed(node, subject)
    score = score_piece(state, pieces, products)
    made = [piece for piece in pieces if piece.name not in ("score", "row")]
    before = sum(piece.name in ("query", "key", "value") for piece in made)
    made.insert(before, _yielding(state, score, row, cut, key))
    return [*made, _taking(state, row, cut, len(score.results))]


def _cut(row: Piece, key: Node) -> list[Node]:
    """The values that depend on kv_idx alone, beside what is the same for the whole row, and are used together with others."""
    of_key, of_scores = {key}, {argument for argument in row.arguments if argument.kind == "float"}
    used: dict[Node, None] = {}
    for node in reachable(row.results):
        if node.op == "attn.reduce" or any(operand in of_scores for operand in node.operands):
            of_scores.add(node)
            used.update(dict.fromkeys([operand for operand in node.operands if operand in of_key]))
        elif any(operand in of_key for operand in node.operands):
            of_key.add(node)
    used.update(dict.fromkeys([node for node in row.results if node in of_key]))
    return sorted(used, key=lambda node: node.order)


def _mixed(node: Node, subject: str) -> TraceError:
    problem = "computes an integer of kv_idx and of scores"
    return report.failure(subject, problem, "make floats of integers before they meet scores: kv_idx.float()", node.position)


def _yielding(state: Trace, score: Piece, row: Piece, cut: Sequence[Node], key: Node) -> Piece:
    """The score's piece with the values that were cut off: conditions are 1 and -1, so that random numbers confirm both."""
    *positions, of_key = [argument for argument in score.arguments if argument.kind == "int"]
    indices = dict(zip([argument for argument in row.arguments if argument.kind == "int"], positions, strict=True))
    moved = substituted(state, cut, {**indices, key: of_key}, score.arguments[0].scope)
    state.scope = score.arguments[0].scope  # type: ignore[assignment]
    with state:
        signs = ops.constant(1.0), ops.constant(-1.0)
        further = [ops.select(node, *signs) if node.kind == "bool" else node for node in moved]
    return dataclasses.replace(score, results=(*score.results, *further))


def _taking(state: Trace, row: Piece, cut: Sequence[Node], scores: int) -> Piece:
    """The row, which takes as many scores as there were and then those that stand for what was cut off."""
    state.scope = row.arguments[0].scope  # type: ignore[assignment]
    given, known = [], {}
    with state:
        for node in cut:
            given.append(state.argument(_name(state, node), "float", varying=True))
            known[node] = ops.compare("gt", given[-1], ops.constant(0.0)) if node.kind == "bool" else given[-1]
    arguments = (*row.arguments[:scores], *given, *row.arguments[scores:])
    return dataclasses.replace(row, arguments=arguments, results=tuple(substituted(state, row.results, known, None)))


def substituted(state: Trace, roots: Sequence[Node], known: Mapping[Node, Node], scope: object) -> list[Node]:
    """The roots with nodes replaced; new ones are of the piece `scope`, or of that of those which they replace."""
    made = dict(known)
    for node in _above(roots, known):
        operands = tuple([made.get(operand, operand) for operand in node.operands])
        if operands != node.operands:
            made[node] = dataclasses.replace(node, operands=operands, order=state.next_order(), scope=scope or node.scope)
            if node in state.labels:
                state.labels[made[node]] = state.labels[node]
    return [made.get(root, root) for root in roots]


def _above(roots: Sequence[Node], known: Mapping[Node, Node]) -> list[Node]:
    """What the roots are computed of, operands first, down to what is replaced."""
    seen: dict[Node, None] = {}
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node not in seen and node not in known:
            seen[node] = None
            stack.extend(node.operands)
    return sorted(seen, key=lambda node: node.order)


def _name(state: Trace, node: Node) -> str:
    """How the user calls the value."""
    variable = where.resolve(node.position).variable if node.position is not None else None
    return state.labels.get(node) or variable or "of_key"
