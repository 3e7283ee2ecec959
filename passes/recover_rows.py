"""Turns online programs back into rows: `attn.online` becomes the `attn.attention` that it computes."""

from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation import DerivationError
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.recovery.confirm import confirm
from attn_mlir.passes.recovery.fold import fold
from attn_mlir.passes.recovery.linear import Linearity
from attn_mlir.passes.regions import block_of, clone_op, find_all, inline, piece, pieces, scores_in

_ONLINE = ("attn.init", "attn.step", "attn.merge", "attn.finalize")


@dataclass(frozen=True)
class RecoverRows(Pass):
    """Replaces each `attn.online` by the `attn.attention` whose row takes all keys as one block.

    The initial values fold into the step, and its scales meet an accumulator that is still 0. The end must be linear in
    the accumulators: it is then applied to each key's weight. The row is confirmed on numbers: in float64, on hostile
    scores, the online program over several uneven blocks gives what the row gives. Where it does not, the pass stops,
    for then the program depends on how its keys are cut into blocks.
    """

    name = "attn-recover-rows"

    def run(self, module: ir.Operation) -> bool:
        return all([_rewrite(online) for online in find_all(module, "attn.online")])


def _rewrite(online: ir.Operation) -> bool:
    init, step, finalize = (piece(online, name) for name in ("attn.init", "attn.step", "attn.finalize"))
    if init is None or step is None or finalize is None:
        online.location.emit_error("'attn.online' lacks a piece of its program")
        return False
    if pieces(online, "attn.product") or pieces(online, "attn.term"):
        online.location.emit_error("'attn.online' with further products or terms is not turned into a row")
        return False
    if not _is_linear(online, finalize):
        return False
    attention = _attention(online)
    row_piece = pieces(attention, "attn.row")[0]
    names = [ir.StringAttr(name).value for name in online.attributes["outputs"]]
    try:
        problem = confirm(online, row_piece, names)
        if problem:
            problem = f"the online function is not independent of how keys are cut into blocks: {problem}"
    except DerivationError as error:
        problem = f"the online function is not understood as a row: {error}"
    if problem:
        step.location.emit_error(problem)
        attention.erase()
        return False
    for old, new in zip(list(online.results), list(attention.results), strict=True):
        old.replace_all_uses_with(new)
    online.erase()
    return True


def _is_linear(online: ir.Operation, finalize: ir.Operation) -> bool:
    block, count = block_of(finalize), ir.IntegerAttr(online.attributes["accumulators"]).value
    linearity = Linearity(list(block.arguments)[:count])
    o, *rows = block.operations[-1].operation.operands
    problem = ""
    if not linearity.linear(o):
        problem = "the output is not linear in the sum of weighted values, so that it is no sum of weighted values itself"
    elif not all(linearity.free(row) for row in rows):
        problem = "a row output depends on the sum of weighted values"
    if problem:
        (linearity.culprit or finalize).location.emit_error(problem)
    return not problem


def _attention(online: ir.Operation) -> ir.Operation:
    """The `attn.attention`, before the online program, with its row written out and folded."""
    names = [ir.StringAttr(name).value for name in online.attributes["outputs"]]
    kept = {name: online.attributes[name] for name in online.attributes if name not in ("outputs", "accumulators", "sources")}
    with online.location, ir.InsertionPoint(online):
        q, k, v = online.operands
        attention, body = build.attention(q, k, v, [result.type for result in online.results], names)
        for name, attribute in kept.items():
            attention.attributes[name] = attribute
    with ir.InsertionPoint(body):
        for kept_piece in [op.operation for op in block_of(online).operations if op.operation.name not in _ONLINE]:
            clone_op(kept_piece, {})
        with pieces(online, "attn.step")[0].location:
            row = _row(online)
    fold(block_of(row))
    return attention


def _name(state: ir.Value, name: str | None) -> None:
    """Names a final state as its author does, unless it is a constant or an argument."""
    if name and not isinstance(state.owner, ir.Block):
        op = state.owner.operation
        op.location = ir.Location.name(name, op.location)


def _row(online: ir.Operation) -> ir.Operation:
    init, finalize = (pieces(online, name)[0] for name in ("attn.init", "attn.finalize"))
    steps = pieces(online, "attn.step")
    scores = list(block_of(steps[0]).arguments)[: scores_in(block_of(steps[0]))]
    count = ir.IntegerAttr(online.attributes["accumulators"]).value

    def body(*arguments: ir.Value) -> list[ir.Value]:
        s, indices = arguments[: len(scores)], arguments[len(scores) :]
        states = inline(block_of(init), indices)
        width, weights = len(states), []
        for step in steps:
            results = inline(block_of(step), [*s, *indices, *states])
            states, weights = results[:width], results[width : width + count]
        for argument, state in zip(list(block_of(finalize).arguments)[count + 3 :], states, strict=True):
            _name(state, location_name(argument.location))
        return inline(block_of(finalize), [*weights, *indices, *states])

    named = [(location_name(score.location) if k else "s", score.type) for k, score in enumerate(scores)]
    indices = [(name, ir.IndexType.get()) for name in ("b", "h", "q_idx")]
    return build.piece("row", [*((name or "s", type_) for name, type_ in named), *indices], body)
