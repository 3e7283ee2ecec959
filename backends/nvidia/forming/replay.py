"""Maps of a loop's iteration once more, elsewhere: with other fragments, one branch of each condition, and row values that are known."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from attn_mlir.dialects.regions import element_of, yielded
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import clone_op

_FLOAT = {"arith.addf", "arith.subf", "arith.mulf", "math.exp", "math.exp2"}


@dataclass(frozen=True)
class Scalar:
    """A number of a map: "const" (its value), "read" (a fragment's element there), "place" (which index), "value", or "op" of others."""

    kind: str
    key: Any
    operands: tuple["Scalar", ...] = ()
    op: ir.Operation | None = field(default=None, compare=False)
    type: ir.Type | None = field(default=None, compare=False)

    def sources(self) -> Iterator[ir.Value]:
        """The fragments, and the numbers from outside of the map, that it is made of."""
        if self.kind in ("read", "value"):
            yield self.key
        for operand in self.operands:
            yield from operand.sources()


@dataclass
class Replay:
    """Makes values of an iteration at the insertion point, from ops `inside` of it.

    `taken`: by the condition of each `scf.if`, which branch. `known`: what stands for a value. `kept`: row values that stay what another
    value is; numbers that follow from it are not computed, as the exponential of a difference of 0. `wide`: results of maps that are to
    be made as f32, before they are rounded.
    """

    inside: set[ir.Operation]
    taken: Mapping[ir.Value, bool]
    known: dict[ir.Value, ir.Value] = field(default_factory=dict)
    kept: Mapping[ir.Value, ir.Value] = field(default_factory=dict)
    wide: frozenset[ir.Value] = frozenset()

    def value(self, value: ir.Value) -> ir.Value:
        """What stands for a value; makes what it needs."""
        made = self._made(value)
        if value in self.known or made is None:
            return self.known.get(value, value)
        if made.name == "scf.if":
            self.known[value] = self.value(self.branch(value))
        elif made.name == "warp.map":
            self._map(value, made)
        else:
            for operand in made.operands:
                self.value(operand)
            clone_op(made, self.known)
        return self.known[value]

    def branch(self, value: ir.Value) -> ir.Value:
        """What the branch of a condition gives for its result that is taken; other values as they are."""
        made = self._made(value)
        if made is None or made.name != "scf.if":
            return value
        region = made.regions[0 if self.taken[made.operands[0]] else 1]
        return self.branch(yielded(region.blocks[0])[ir.OpResult(value).result_number])

    def scalar_of(self, result: ir.Value) -> Scalar:
        """The number of which a map's result consists."""
        map_ = result.owner.operation  # type: ignore[union-attr]
        return self._scalar(element_of(result), map_)

    def settled(self, value: ir.Value) -> Scalar:
        """A fragment's element: a constant, or an element of another fragment, where it is nothing more."""
        value = self.branch(value)
        if value in self.kept:
            return Scalar("read", self.kept[value])
        made = self._made(value)
        if made is not None and made.name == "warp.map" and not _kinds(made)[ir.OpResult(value).result_number]:
            found = self.scalar_of(value)
            if found.kind == "const" or (found.kind == "read" and found.key.type == value.type):
                return found
        return Scalar("read", value)

    def needed(self, value: ir.Value) -> Iterator[ir.Value]:
        """The results of maps that are made for a value."""
        found = self.settled(value)
        made = self._made(found.key) if found.kind == "read" else None
        if made is None or found.key in self.known:
            return
        if made.name == "warp.map":
            yield found.key
        sources = self.scalar_of(found.key).sources() if made.name == "warp.map" else iter(made.operands)
        for source in sources:
            yield from self.needed(source)

    # ---- ops

    def _made(self, value: ir.Value) -> ir.Operation | None:
        made = None if isinstance(value.owner, ir.Block) else value.owner.operation
        return made if made is not None and made in self.inside else None

    def _map(self, value: ir.Value, map_: ir.Operation) -> None:
        found = self.settled(value)
        if found.kind == "read" and found.key != value:
            self.known[value] = self.value(found.key)
            return
        kinds, shape = _kinds(map_), list(map_.attributes["shape"])
        if found.kind == "const":
            self.known[value] = build.map_(shape, [value.type], [""], lambda *places: [_constant(found)])[0]
            return
        own = [n for n, r in enumerate(map_.results) if r not in self.known and (kinds[n] or self.settled(r) == Scalar("read", r))]
        scalars = [self.scalar_of(map_.results[n]) for n in own]
        types = [map_.results[n].type for n in own]
        for at, n in enumerate(own):
            if map_.results[n] in self.wide:
                scalars[at], tensor = scalars[at].operands[0], ir.RankedTensorType(types[at])
                types[at] = ir.RankedTensorType.get(tensor.shape, ir.F32Type.get(), tensor.encoding)
        for source in dict.fromkeys(source for scalar in scalars for source in scalar.sources()):
            self.value(source)

        def body(*places: ir.Value) -> list[ir.Value]:
            made: dict[Scalar, ir.Value] = {}
            return [self._compute(scalar, places, made) for scalar in scalars]

        results = build.map_(shape, types, [kinds[n] for n in own], body)
        self.known.update(zip([map_.results[n] for n in own], results, strict=True))

    # ---- numbers

    def _scalar(self, value: ir.Value, map_: ir.Operation) -> Scalar:
        block = map_.regions[0].blocks[0]
        if isinstance(value.owner, ir.Block):
            return Scalar("place", ir.BlockArgument(value).arg_number) if value.owner == block else Scalar("value", value)
        op = value.owner.operation
        if op.name == "arith.constant" and isinstance(op.attributes["value"], ir.FloatAttr):
            return Scalar("const", op.attributes["value"].value, type=value.type)
        if op.block != block:
            return Scalar("value", value)
        for n, number in enumerate(yielded(block)):
            if number == value and map_.results[n] in self.kept:
                return Scalar("read", self.kept[map_.results[n]])
        if op.name == "tensor.extract" and isinstance(op.operands[0].type, ir.RankedTensorType):
            return self.settled(op.operands[0])
        operands = tuple(self._scalar(operand, map_) for operand in op.operands)
        return _folded(Scalar("op", _key(op, value), operands, op, value.type))

    def _compute(self, scalar: Scalar, places: tuple[ir.Value, ...], made: dict[Scalar, ir.Value]) -> ir.Value:
        if scalar.kind == "value":
            return self.known.get(scalar.key, scalar.key)
        if scalar.kind == "place":
            return places[scalar.key]
        if scalar not in made:
            if scalar.kind == "const":
                made[scalar] = _constant(scalar)
            elif scalar.kind == "read":
                source = self.known.get(scalar.key, scalar.key)
                tensor = ir.RankedTensorType(source.type)
                operands = [source, *places[: len(tensor.shape)]]
                made[scalar] = ir.Operation.create("tensor.extract", results=[tensor.element_type], operands=operands).result
            else:
                operands = [self._compute(operand, places, made) for operand in scalar.operands]
                assert scalar.op is not None
                clone = scalar.op.clone()
                for n, operand in enumerate(operands):
                    clone.operands[n] = operand
                made[scalar] = clone.results[0]
        return made[scalar]


def _kinds(map_: ir.Operation) -> list[str]:
    return [ir.StringAttr(kind).value for kind in map_.attributes["reductions"]]


def _key(op: ir.Operation, value: ir.Value) -> tuple[Any, ...]:
    """What ops that compute the same of the same have in common."""
    return (op.name, str(value.type), tuple((name, str(op.attributes[name])) for name in op.attributes))


def _constant(scalar: Scalar) -> ir.Value:
    return arith.ConstantOp(scalar.type, scalar.key).result


def _folded(scalar: Scalar) -> Scalar:
    """A number that is another one, of numbers that are neither infinite nor NaN."""
    name, operands = scalar.key[0], scalar.operands
    if name not in _FLOAT:
        return scalar
    numbers = [operand.key if operand.kind == "const" else None for operand in operands]
    if name == "arith.subf" and operands[0] == operands[1]:
        return Scalar("const", 0.0, type=scalar.type)
    if name in ("math.exp", "math.exp2") and numbers == [0.0]:
        return Scalar("const", 1.0, type=scalar.type)
    if name == "arith.mulf" and 0.0 in numbers and all(n is not None and math.isfinite(n) for n in numbers):
        return Scalar("const", 0.0, type=scalar.type)
    neutral = {"arith.mulf": 1.0, "arith.addf": 0.0}.get(name)
    if neutral is not None and neutral in numbers:
        return operands[1 - numbers.index(neutral)]
    return scalar
