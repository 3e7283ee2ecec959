"""Keeps weights, and outputs, within the range of the 8-bit floats that they are rounded to."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.dialects.elements import Element, element_of, is_eight_bit
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation.errors import DerivationError
from attn_mlir.passes.derivation.evaluate import Evaluator
from attn_mlir.passes.derivation.expr import Graph
from attn_mlir.passes.derivation.row import RowReader
from attn_mlir.passes.float_ranges import ANY, FloatRanges, Range
from attn_mlir.passes.online_rewrite import OnlineRewrite
from attn_mlir.passes.regions import block_of, find_all, piece, pieces, scores_in

_ROWS, _KEYS = 64, 24
_SIZES = (0.1, 1.0, 10.0, 100.0)


@dataclass(frozen=True)
class FitRange(Pass):
    """Multiplies weights that are rounded to 8 bits by powers of two, accumulators in `attn.finalize` by their inverses; clamps 8-bit o.

    The powers are the largest that keep weights finite, by the bounds that the step's formulas have whatever scores and states are; numbers
    confirm these bounds. A weight without bounds is an error. Weights are rounded where q, k and v all have 8-bit elements.
    An output of 8 bits is clamped to the finite numbers of its type; NaN stays.
    """

    name = "attn-fit-range"

    def run(self, module: ir.Operation) -> bool:
        return all([self._fit(online) for online in find_all(module, "attn.online")])

    def _fit(self, online: ir.Operation) -> bool:
        element, outputs = rounds_weights(online), outputs_of(online)
        narrow = is_eight_bit(ir.RankedTensorType(online.results[0].type).element_type)
        if element is not None:
            shifts = self._shifts(online, element)
            if shifts is None:
                return False
            _scale(online, shifts)
        if narrow:
            of_o = element_of(ir.RankedTensorType(online.results[0].type).element_type)
            _clamp(online, outputs, of_o.largest if of_o is not None else math.inf)
        return True

    def _shifts(self, online: ir.Operation, element: Element) -> list[int] | None:
        """The power of two of each accumulator's weight; None after an error."""
        *_, step = pieces(online, "attn.step")
        found = []
        for weight, bounds in zip(weights_of(online), weight_ranges(online), strict=True):
            largest = max(abs(end) for end in bounds)
            if math.isinf(largest):
                place = step.location if isinstance(weight.owner, ir.Block) else weight.owner.operation.location
                place.emit_error(_unbounded(element, bounds))
                return None
            found.append(_shift(largest, element))
        exceeded = _exceeded(online, step, weight_ranges(online))
        if exceeded:
            step.location.emit_error(f"{self.name}: {exceeded}")
            return None
        return found


def rounding_of(attention: ir.Operation) -> list[str]:
    """How the weights of an `attn.attention` are rounded, in words."""
    element = rounds_weights(attention)
    copy = ir.Module.parse(attention.parent.get_asm(print_generic_op_form=True) if attention.parent is not None else "")
    if element is None or not OnlineRewrite().run(copy.operation):
        return []
    online = find_all(copy.operation, "attn.online")[0]
    found = []
    for number, (low, high) in enumerate(weight_ranges(online)):
        name, largest = f"weight {number}" if number else "the weight", max(abs(low), abs(high))
        if math.isinf(largest):
            found.append(f"{name} lies between {low:g} and {high:g}, so that it cannot be rounded to {element.name}")
        else:
            shift = _shift(largest, element)
            found.append(f"{name} lies between {low:g} and {high:g}: times 2^{shift} it is rounded to {element.name}")
    return found


def rounds_weights(online: ir.Operation) -> Element | None:
    """The element that the weights of an attention are rounded to, where it has 8 bits."""
    q, _, v = (ir.RankedTensorType(operand.type).element_type for operand in online.operands)
    return element_of(v) if is_eight_bit(q) and is_eight_bit(v) else None


def weights_of(online: ir.Operation) -> list[ir.Value]:
    """The weight of each accumulator, as the last step yields them."""
    *_, step = pieces(online, "attn.step")
    count = ir.IntegerAttr(online.attributes["accumulators"]).value
    return list(block_of(step).operations[-1].operation.operands)[-2 * count : -count]


def weight_ranges(online: ir.Operation) -> list[Range]:
    """Between which numbers the weight of each accumulator lies."""
    *_, step = pieces(online, "attn.step")
    region = block_of(step)
    known = _ranges_of_scores(online, list(region.arguments)[: scores_in(region)])
    ranges = FloatRanges(known)
    return [ranges.of(weight) for weight in weights_of(online)]


def _shift(largest: float, element: Element) -> int:
    """The largest power of two by which numbers up to `largest` stay finite."""
    return math.floor(math.log2(element.largest / largest)) if largest else 0


def _unbounded(element: Element, bounds: Range) -> str:
    low, high = (f"{end:g}" for end in bounds)
    return (
        f"weights of this row are rounded to {element.name}, whose largest number is {element.largest:g}, but nothing bounds them: "
        f"they lie between {low} and {high}. Bound them before v is multiplied, as exp(s - s.max()) or a clamp does, or pass q in "
        "16 bits: then weights keep 16 bits, and k and v may stay as they are"
    )


def _scale(online: ir.Operation, shifts: Sequence[int]) -> None:
    count = len(shifts)
    *_, step = pieces(online, "attn.step")
    last = block_of(step).operations[-1].operation
    values = list(last.operands)
    made: dict[tuple[ir.Value, int], ir.Value] = {}
    with last.location, ir.InsertionPoint(last):
        for number, shift in enumerate(shifts, len(values) - 2 * count):
            weight = values[number]
            if shift and (weight, shift) not in made:
                factor = arith.constant(weight.type, 2.0**shift)
                with ir.Location.name("weight_scaled", last.location):
                    made[weight, shift] = arith.mulf(weight, factor)
            values[number] = made.get((weight, shift), weight)
        build.yield_(values)
    last.erase()
    finalize = block_of(pieces(online, "attn.finalize")[0])
    for accumulator, shift in zip(list(finalize.arguments)[:count], shifts, strict=True):
        uses = [(use.owner.operation, use.operand_number) for use in accumulator.uses]
        if not shift or not uses:
            continue
        with finalize.owner.location as here, ir.InsertionPoint.at_block_begin(finalize):
            factor = arith.constant(accumulator.type, 2.0**-shift)
            with ir.Location.name("o_scaled", here):
                scaled = arith.mulf(accumulator, factor)
        for op, operand in uses:
            op.operands[operand] = scaled


def _clamp(online: ir.Operation, outputs: int, largest: float) -> None:
    last = block_of(pieces(online, "attn.finalize")[0]).operations[-1].operation
    values = list(last.operands)
    with last.location as here, ir.InsertionPoint(last):
        for number in range(outputs):
            least, most = (arith.constant(values[number].type, end) for end in (-largest, largest))
            with ir.Location.name("o_saturated", here):
                values[number] = arith.maximumf(arith.minimumf(values[number], most), least)
        build.yield_(values)
    last.erase()


def _exceeded(online: ir.Operation, step: ir.Operation, bounds: Sequence[Range]) -> str:
    """What is wrong with bounds of weights on random scores and states in float64; empty where they hold, or a step cannot be evaluated."""
    region, graph, rng = block_of(step), Graph(), np.random.default_rng(5)
    arguments, scores = list(region.arguments), scores_in(region)
    leaves = {a: graph.leaf("s", i) for i, a in enumerate(arguments[:scores])}
    leaves |= {a: graph.leaf("old", i) for i, a in enumerate(arguments[scores + 3 :])}
    of_scores: Mapping[ir.Value, Range] = _ranges_of_scores(online, arguments[:scores])
    reader = RowReader(graph, region, dict(leaves))
    try:
        results = reader.results()
        sizes = np.repeat(_SIZES, _ROWS // len(_SIZES))[:, None]
        env = {}
        for value, leaf in leaves.items():
            low, high = of_scores.get(value, ANY)
            shape = (_ROWS, _KEYS) if value in of_scores else (_ROWS, 1)
            env[leaf] = np.clip(rng.normal(size=shape) * sizes, low, high)
        env |= {
            leaf: rng.normal(size=(_ROWS, 1)) > 0 if leaf.type == "i1" else rng.normal(size=(_ROWS, 1)) for leaf in reader.params.leaves
        }
        evaluator = Evaluator(env, np.ones((_ROWS, _KEYS), bool))
        values = [evaluator(node) for node in results[-2 * len(bounds) : -len(bounds)]]
    except DerivationError:
        return ""
    for got, (low, high) in zip(values, bounds, strict=True):
        slack = 1e-9 * max(abs(low), abs(high))
        if (got < low - slack).any() or (got > high + slack).any():
            return f"a weight is {np.nanmin(got):g} to {np.nanmax(got):g} on random scores, but was found between {low:g} and {high:g}"
    return ""


def _ranges_of_scores(online: ir.Operation, scores: Sequence[ir.Value]) -> dict[ir.Value, Range]:
    score = piece(online, "attn.score")
    if score is None:
        return dict.fromkeys(scores, ANY)
    ranges = FloatRanges({})
    yielded = list(block_of(score).operations[-1].operation.operands)
    return {s: ranges.of(value) for s, value in zip(scores, yielded, strict=True)}
