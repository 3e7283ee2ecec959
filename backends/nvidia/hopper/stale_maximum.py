"""What of a step over a block of keys is needed when the reference of its weights, a running maximum, stays as it is.

`gpu-lazy-rescale` marks the maxima (`gpu.free`) in whose place any other number could stand: weights, sums and accumulators then have
another common factor, and nothing that is stored has. So a block whose weights do not get too large with the old maximum needs no search
for the new one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.lazy_rescale import FREE
from attn_mlir.backends.gpu.structure import body, constant, is_row, maker, operations, widened, yielded
from attn_mlir.backends.nvidia.hopper.steps import KvStep
from attn_mlir.dialects.regions import element_of
from attn_mlir.mlir import ir

_LARGEST = {"f16": 0x7400, "bf16": 0x5380}
"""The bits of the smallest weight that is too large: 2^14 in f16 (65504 is the largest number), 2^40 in bf16."""


@dataclass(frozen=True)
class Needed:
    """What to print of the maps of a step.

    `results` of maps that something reads. `fixed`: scalars in them that are known numbers, or elements of row tiles. `same`: row tiles
    that are another one.
    """

    results: frozenset[ir.Value]
    fixed: dict[ir.Value, float | ir.Value]
    same: dict[ir.Value, ir.Value]


def carried_by(step: KvStep) -> list[ir.Value]:
    """The values that the step's loop carries."""
    return list(body(step.loop).arguments)[1:]


def weights_of(step: KvStep) -> ir.Value:
    """The 16-bit weights that the values are multiplied with."""
    return list(step.sums.operands)[-2]


def limit_of(step: KvStep) -> int:
    """The bits of the smallest 16-bit weight that makes a step look for a new reference.

    Weights in f16 below it are far from overflow. Those in bf16 have the range of f32: 2^24 of them below 2^40 make sums below 2^64 in
    f32, and sums of values times weights that are finite for values below 2^64.
    """
    return _LARGEST[str(ir.RankedTensorType(weights_of(step).type).element_type)]


def keeps_reference(step: KvStep) -> Needed | None:
    """What is needed when the carried maximum stays; None where that is not known to be right.

    It is where a maximum is marked by `gpu-lazy-rescale`, weights are exponentials (never negative), accumulators keep their factor, and
    every sum is one of these weights, so that the weights that are packed tell whether anything overflows. With dropout they do not.
    """
    folded = _Folded(step)
    if not folded.references or step.sums.name != "tile.dot_rescale" or folded.of_tile(step.sums.operands[1]) != 1.0:
        return None
    weights = weights_of(step)
    made = maker(weights)
    weight = widened(element_of(weights)) if made is not None else None
    source = maker(weight) if weight is not None else None
    if source is None or source.name not in ("math.exp", "math.exp2"):
        return None
    rows = [(argument, value) for argument, value in zip(carried_by(step), yielded(step.block), strict=True) if is_row(argument.type)]
    kept = [value for argument, value in rows if folded.of_tile(value) != argument]
    needed = _needed(step, [weights, *kept], folded)
    for op in step.rest:
        for value, kind in _reductions(op):
            if value in needed and (kind != "sum" or widened(element_of(value)) != weight):
                return None
    same = {value: tile for value, tile in folded.tiles.items() if isinstance(tile, ir.Value)}
    return Needed(needed, folded.scalars, same)


def is_lean(step: KvStep, needed: Needed) -> bool:
    """Whether one map makes the weights of the scores, without positions and captured tensors."""
    maps = [op for op in step.rest if op.name == "tile.map" and len(list(op.operands)) > 1]
    maps = [op for op in maps if any(result in needed.results for result in op.results)]
    inner = [scalar for op in maps for scalar in operations(body(op))]
    places = {argument for op in maps for argument in body(op).arguments}
    used = any(operand in places for scalar in inner if scalar.name != "tensor.extract" for operand in scalar.operands)
    return len(maps) == 1 and not used and all(scalar.name != "memref.load" for scalar in inner)


def everything_but(step: KvStep, left_out: ir.Value | None) -> Needed:
    """What is needed of the whole step if the carried value `left_out`, an argument of its loop, is computed elsewhere."""
    values = [
        value for argument, value in zip(carried_by(step), yielded(step.block), strict=True) if left_out is None or argument != left_out
    ]
    factor = [step.sums.operands[1]] if step.sums.name == "tile.dot_rescale" else []
    return Needed(_needed(step, [weights_of(step), *factor, *(value for value in values if is_row(value.type))], None), {}, {})


def without(needed: Needed, step: KvStep, left_out: ir.Value | None) -> Needed:
    """`needed`, but for what only that carried value is made of."""
    if left_out is None:
        return needed
    return Needed(needed.results & everything_but(step, left_out).results, needed.fixed, needed.same)


def sum_by_product(steps: list[KvStep]) -> int | None:
    """Which carried value is, in all loops of a chain, the sum of the very weights that the values are multiplied with.

    A column of ones beside values of 64 columns can make it, if it starts at 0. It is then the sum of the rounded weights, as are the
    accumulators that it divides.
    """
    found = {_sum_of_weights(step) for step in steps}
    number = found.pop() if len(found) == 1 else None
    if number is None or ir.RankedTensorType(steps[0].sums.results[0].type).shape[1] != 64:
        return None
    start = list(steps[0].loop.operands)[3 + number]
    made = maker(start)
    zero = made.operands[0] if made is not None and made.name == "tile.fill" else None
    zero = element_of(start) if made is not None and made.name == "tile.map" else zero
    return number if zero is not None and constant(zero) == 0.0 else None


def _sum_of_weights(step: KvStep) -> int | None:
    """The number of the carried value that is the sum of the weights."""
    factor = _origin(element_of(step.sums.operands[1]), step) if step.sums.name == "tile.dot_rescale" else None
    for number, (argument, value) in enumerate(zip(carried_by(step), yielded(step.block), strict=True)):
        if is_row(argument.type) and _is_sum(step, argument, value, factor):
            return number
    return None


def _is_sum(step: KvStep, argument: ir.Value, value: ir.Value, factor: ir.Value | None) -> bool:
    add = maker(element_of(value)) if maker(value) is not None else None
    if add is None or add.name != "arith.addf":
        return False
    before, added = (_origin(operand, step) for operand in add.operands)
    if _reduced(before, step) is not None:
        before, added = added, before
    source = _reduced(added, step)
    if source is None or source != widened(element_of(weights_of(step))):
        return False
    if factor is not None:
        scaled = maker(before)
        if scaled is None or scaled.name != "arith.mulf":
            return False
        sides = [_origin(operand, step) for operand in scaled.operands]
        if factor not in sides:
            return False
        before = sides[1 - sides.index(factor)]
    read = maker(before)
    reads = [use.owner.operation for use in argument.uses]
    return read is not None and read.name == "tensor.extract" and read.operands[0] == argument and reads == [read]


def _origin(value: ir.Value, step: KvStep) -> ir.Value:
    """The value in the row map where it was made, if it is one that was handed on by row maps of the step."""
    op = maker(value)
    if op is None or op.name != "tensor.extract" or not is_row(op.operands[0].type):
        return value
    source = maker(op.operands[0])
    if source is None or source not in step.rest or source.name != "tile.map" or _reductions(source):
        return value
    return _origin(element_of(op.operands[0]), step)


def _reduced(value: ir.Value, step: KvStep) -> ir.Value | None:
    """The scalar whose sum along the row, a result of a map of the step, is read here."""
    op = maker(value)
    source = maker(op.operands[0]) if op is not None and op.name == "tensor.extract" else None
    if op is None or source is None or source not in step.rest or (op.operands[0], "sum") not in _reductions(source):
        return None
    return widened(element_of(op.operands[0]))


def _reductions(op: ir.Operation) -> list[tuple[ir.Value, str]]:
    """The results of a map that are reductions, with their kinds."""
    if op.name != "tile.map":
        return []
    kinds = op.opview.kinds()
    results = list(op.results)
    return list(zip(results[len(results) - len(kinds) :], kinds, strict=True))


def _keeps(op: ir.Operation) -> bool:
    """Whether it takes the old one of two maxima in whose place any number does, where that is near enough."""
    new = maker(op.operands[2]) if op.name == "arith.select" else None
    return new is not None and new.name == "arith.maximumf" and FREE in new.attributes and new.operands[0] == op.operands[1]


class _Folded:
    """Values of a step that are known when its reference stays: numbers, or values that were carried into it."""

    def __init__(self, step: KvStep) -> None:
        self.scalars: dict[ir.Value, float | ir.Value] = {}
        self.tiles: dict[ir.Value, float | ir.Value] = {}
        self.references = 0
        for op in step.rest:
            if op.name == "tile.map":
                self._map(op)

    def of_tile(self, tile: ir.Value) -> float | ir.Value:
        """A number, the tile that it is the same as, or itself."""
        return self.tiles.get(tile, tile)

    def _map(self, op: ir.Operation) -> None:
        *inner, last = operations(body(op))
        for scalar in inner:
            if scalar.results:
                known = self._known(scalar)
                if known is not None:
                    self.scalars[scalar.results[0]] = known
        if len(list(op.operands)) == 1:
            self.tiles.update(
                {tile: self.scalars[value] for tile, value in zip(op.results, last.operands, strict=True) if value in self.scalars}
            )

    def _known(self, op: ir.Operation) -> float | ir.Value | None:
        """A number, or the row tile that the result is read from."""
        if op.name == "tensor.extract":
            tile = self.of_tile(op.operands[0])
            return tile if isinstance(tile, float) or is_row(tile.type) else None
        if _keeps(op):
            self.references += 1
            return self._of(op.operands[1])
        values = [self._of(operand) for operand in op.operands]
        match op.name:
            case "arith.subf" if values[0] == values[1]:
                return 0.0
            case "arith.mulf" if 0.0 in values and all(isinstance(value, float) for value in values):
                return 0.0
            case "arith.mulf" if 1.0 in values:
                return values[1 - values.index(1.0)]
            case "math.exp" | "math.exp2" if values[0] == 0.0:
                return 1.0
        return None

    def _of(self, value: ir.Value) -> float | ir.Value:
        number = constant(value)
        return float(number) if isinstance(number, float) else self.scalars.get(value, value)


def _needed(step: KvStep, wanted: Iterable[ir.Value], folded: _Folded | None) -> frozenset[ir.Value]:
    """The results of maps of the step that these values are made of."""
    found = set(wanted)
    for op in reversed(step.rest):
        for result in op.results if op.name == "tile.map" else []:
            if result in found:
                found |= _sources(element_of(result), folded, set())
    return frozenset(found)


def _sources(value: ir.Value, folded: _Folded | None, seen: set[ir.Value]) -> set[ir.Value]:
    """The tiles that a scalar in a map is made of."""
    op = maker(value)
    if op is None or value in seen:
        return set()
    seen.add(value)
    known = folded.scalars.get(value) if folded is not None else None
    if known is not None:
        return {known} if isinstance(known, ir.Value) else set()
    if op.name == "tensor.extract":
        return {op.operands[0]}
    return set().union(*(_sources(operand, folded, seen) for operand in op.operands))
