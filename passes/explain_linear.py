"""Explains linear attention: the recurrence, how its chunked form follows, and what a chunk costs."""

from collections.abc import Iterator

from attn_mlir.dialects.attn.linear_erase import is_delta
from attn_mlir.dialects.attn.linear_recurrence import state_shape
from attn_mlir.dialects.attn.linear_segments import identity_of, segment_of
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.chunk import PIECES, derive_chunks
from attn_mlir.passes.derivation.delta import derive_delta
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.expr import Expr, Graph, text
from attn_mlir.passes.derivation.segments import derive_delta_segments, derive_segments
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.linear_check import certified
from attn_mlir.passes.differentiation.model import ROW, Param, RowModel
from attn_mlir.passes.differentiation.read import PieceReader
from attn_mlir.passes.explain_delta import delta_backward, delta_recurrence, delta_system
from attn_mlir.passes.linear_scale import SCALED, scale_of
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.regions import block_of, piece, scores_in
from attn_mlir.passes.tiling.chunk_tiles import row_mod

_MODS = {"attn.query": "q", "attn.key": "k", "attn.value": "v", "attn.decay": "g", "attn.erase": "e", "attn.result": "o"}
_INDICES = ("b", "h", "t", "d")
"""What mods get besides the element."""
_WAYS = {
    "chunk_decay": "from one end of the chunk to the other",
    "input_decay": "from a position to where the chunk ends in its direction",
    "output_decay": "from where the chunk begins in its direction to a position",
    "decay_mask": "from position s to position t",
}


def explain_recurrence(op: ir.Operation) -> Iterator[str]:
    """An `attn.linear_attention`: its recurrence, and the chunked form that is derived of it."""
    forward = _choice(op, "direction") == "forward"
    yield f"recurrence, towards {'later' if forward else 'earlier'} positions"
    yield from _segments(op)
    yield from _inputs(op)
    factor = {"none": "exp(g_t) S", "key": "diag(exp(g_t)) S", "value": "S diag(exp(g_t))"}[_choice(op, "channels")]
    if is_delta(op):
        yield from delta_recurrence(op, factor, forward)
    elif forward:
        yield f"  S = {factor} + k_t v_t^T; o_t = q_t S"
    else:
        yield f"  S = S + k_t v_t^T; o_t = q_t S; then S = {factor}"
    try:
        form, report = (derive_delta if is_delta(op) else derive_chunks)(forward)
    except DerivationError as error:
        yield f"no chunked form: {error}"
        return
    yield ""
    yield "derivation"
    yield "  log decays add up: between two places the factor is exp of the difference of their sums from the chunk's first position on"
    for name, way in _WAYS.items():
        yield f"  {name}: {way}"
    yield ""
    yield from _chunks(op, {name: text(node, form.places.names) for name, node in form.factors.items()})
    yield ""
    yield "log decays at or below 0 give no factor above 1; those so low that exp is 0 are bounded, so that -inf is a decay like any other"
    yield f"confirmed in float64, chunk by chunk against the recurrence: {report.points} values, largest relative error {report.error:.1e}"
    yield _cost(op, 64)
    if segment_of(op) is not None:
        return
    if is_delta(op):
        yield from delta_backward(op)
        return
    if not set(_outputs(op)) - {"final_state"}:
        yield ""
        yield from _backward(forward, _choice(op, "channels"), scale_of(op, "attn.query") is not None)


def _backward(forward: bool, channels: str, scaled: bool) -> Iterator[str]:
    other = "earlier" if forward else "later"
    yield "backward"
    yield f"  dq: the same chunk scan with do, v, k in place of q, k, v; towards {other} positions dk: with v, do, q; dv: with k, q, do"
    if scaled:
        yield "  the scale of q is a factor of all three: of the pairs, and of what enters the state or, for dq, leaves it"
    change = "q_r . dq_r - k_r . dk_r" if forward else "k_r . dk_r - q_r . dq_r"
    yield f"  d(g_j): sum over r >= j of {change}, and what passes j with states"
    yield "  saved by the forward pass: nothing"
    if channels != "value":
        made = certified(forward, channels)
        yield f"  confirmed in float64 by differences of the recurrence: {made.points} gradients, largest relative error {made.error:.1e}"


def explain_chunks(op: ir.Operation) -> Iterator[str]:
    """An `attn.chunk`: what its pieces compute."""
    yield from _segments(op)
    yield from _inputs(op)
    program = RowModel(Graph(), [], [], [], [])
    formulas = {}
    for name in PIECES:
        found = piece(op, f"attn.{name}")
        if found is None:
            continue
        block = block_of(found)
        leaves = [program.graph.node("argument", attr=argument) for argument in PIECES[name]]
        known, names = dict(zip(block.arguments, leaves, strict=True)), dict(zip(leaves, PIECES[name], strict=True))
        formulas[name] = _formula(program, found, known, names)
    yield from _chunks(op, formulas)
    yield _cost(op, ir.IntegerAttr(op.attributes["chunk"]).value)


def explain_decay_sum(op: ir.Operation) -> Iterator[str]:
    """An `attn.decay_sum`: which log decays are summed."""
    yield f"G: the sums of the log decays g over segments of {ir.IntegerAttr(op.attributes['segment']).value} positions"
    yield from _mods_of(op)
    if len(op.operands) == 1 and piece(op, "attn.decay") is None:
        yield "  g = 0"


def explain_scan(op: ir.Operation) -> Iterator[str]:
    """An `attn.state_scan` or `attn.transition_scan`: how the state passes from segment to segment."""
    forward, erases = _choice(op, "direction") == "forward", op.name == "attn.transition_scan"
    segment, order = ir.IntegerAttr(op.attributes["segment"]).value, "first to last" if forward else "last to first"
    yield f"states between segments of {segment} positions, {order}"
    form, report = (derive_delta_segments if erases else derive_segments)(forward)
    decay = text(form.factors["chunk_decay"], {**form.places.names, form.places.end: "G"})
    given = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    passed = "M S" if erases else f"{decay} S" if given[2] else "S"
    yield f"  S = {passed} + F, where F is what a segment adds, its final state from a zero state"
    if erases:
        yield "  M is the matrix by which a segment multiplies the state: its final state from the identity, without values"
    yield f"confirmed in float64 against the recurrence: {report.points} values, largest relative error {report.error:.1e}"


def _segments(op: ir.Operation) -> Iterator[str]:
    segment = segment_of(op)
    if segment is not None:
        start = "its own initial state" if identity_of(op) is None else "columns of the identity"
        yield f"  in segments of {segment} positions at the same time, each from {start}"
    if not any(True for _ in op.results[0].uses):
        yield "  for the final state only"


def _chunks(op: ir.Operation, formulas: dict[str, str]) -> Iterator[str]:
    forward = _choice(op, "direction") == "forward"
    yield f"chunked form, chunks {'first to last' if forward else 'last to first'}"
    yield f"  o_t = output_decay q_t S + sum over s {'<=' if forward else '>='} t of decay_mask (q_t . k_s) v_s"
    yield "  S = chunk_decay S + sum over s of input_decay k_s v_s^T"
    yield from delta_system(op, forward)
    for name, formula in formulas.items():
        yield f"  {name} = {formula}"
    channels = _choice(op, "channels")
    if channels != "none":
        yield f"  every channel of the {channels}s has factors of its own"
    for mod, factors in SCALED.items():
        if row_mod(op, mod) is not None and scale_of(op, mod) is None:
            yield f"  what multiplies rows of {_MODS[mod]} is a part of {' and '.join(factors)}"


def _inputs(op: ir.Operation) -> Iterator[str]:
    """The mods as formulas, and a decay that is not there."""
    yield from _mods_of(op)
    given = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    if not given[3] and piece(op, "attn.decay") is None:
        yield "  g = 0"


def _mods_of(op: ir.Operation) -> Iterator[str]:
    program = RowModel(Graph(), [], [], [], [])
    for name, role in _MODS.items():
        mod = piece(op, name)
        if mod is not None:
            x = program.graph.node("element", attr=role)
            yield f"  {role} = {_formula(program, mod, {block_of(mod).arguments[0]: x}, {x: role})}"
    skip = piece(op, "attn.skip")
    if skip is not None:
        yield f"  o_t = o_t + {_formula(program, skip, {}, {})} v_t, with v as it comes"


def _formula(program: RowModel, piece_: ir.Operation, known: dict[ir.Value, Expr], names: dict[Expr, str]) -> str:
    try:
        (result,) = PieceReader(program, block_of(piece_), dict(known), ROW).results()
    except DifferentiationError as error:
        return f"not understood: {error}"
    params = {program.graph.leaf("param", i): _captured(param) for i, param in enumerate(program.params)}
    return text(result, {**params, **names})


def _captured(param: Param) -> str:
    """What a mod captures: an element as it is written, like A[h], with "..." for indices that are computed; other values by their name."""
    arguments = list(param.block.arguments)[scores_in(param.block) :]
    if param.read is None or len(arguments) < 3:
        return param.name
    known = dict(zip(arguments, _INDICES, strict=False))
    indices = ", ".join(known.get(index, "...") for index in param.read.indices)
    tensor = ir.BlockArgument(param.read.tensor)
    return f"{location_name(tensor.location) or f'arg{tensor.arg_number}'}[{indices}]"


def _cost(op: ir.Operation, size: int) -> str:
    k, v = (ir.RankedTensorType(op.operands[i].type).shape[3] for i in (1, 2))
    rows, columns = state_shape(op)
    pairs, states = 2 * size * (k + v), 4 * k * v
    return f"cost: {rows} x {columns} numbers of state per head; in chunks of {size}, {pairs} + {states} flops per position and head"


def _outputs(op: ir.Operation) -> list[str]:
    return [ir.StringAttr(name).value for name in ir.ArrayAttr(op.attributes["outputs"])]


def _choice(op: ir.Operation, name: str) -> str:
    return ir.StringAttr(op.attributes[name]).value
