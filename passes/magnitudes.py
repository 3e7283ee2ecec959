"""How large scores may be: those that numbers of the user are added to, or chosen in place of, have any size."""

import math
from collections.abc import Sequence

from attn_mlir.dialects.regions import element_of
from attn_mlir.mlir import ir
from attn_mlir.passes.float_ranges import ANY, FloatRanges, Range, product_of, sum_of
from attn_mlir.passes.regions import block_of, maker, piece

LARGE = 2.0**18
"""From here on a float32 has steps of 1/32 and more: the residual of a multiple, or of m + log l, shows in weights of 16 bits."""
_PRODUCTS: Range = (-(2.0**16), 2.0**16)
_HALF: Range = (-65504.0, 65504.0)
_LOGARITHM = -150.0
"""Below the logarithm of every positive float32."""
_WINDOWS = ("tile.load_window", "tile.band")
_CASTS = ("arith.extf", "arith.truncf", "arith.negf")
_TO_FLOAT = ("arith.sitofp", "arith.uitofp")
_INTEGER_BITS = {"i1": 0, "i8": 8, "i16": 16}


class Magnitudes(FloatRanges):
    """Ranges of the floats in one block of scalars.

    Products of queries and keys are taken to be ordinary, and so are numbers that scores or positions are multiplied by, as of a
    temperature or of ALiBi: where they are not, scores have lost the digits that tell them apart. What is loaded or passed and then added
    to scores, or chosen in their place, may be anything that its type holds, as masks are made of it; so may integers, and their products.
    """

    def __init__(self, block: ir.Block, captured: bool = False, ordinary: bool = False) -> None:
        """`captured`: tensors that are read are captured ones; else they are tiles. `ordinary`: exponentials are, as weights are."""
        super().__init__({argument: _PRODUCTS for argument in block.arguments if isinstance(argument.type, ir.FloatType)})
        self._block, self._captured, self._ordinary = block, captured, ordinary
        self._scores: dict[ir.Value, bool] = {}
        self._loaded: dict[ir.Value, bool] = {}

    def is_large(self, value: ir.Value) -> bool:
        """Whether it may be finite and beyond `LARGE`."""
        return _reaches(self.of(value))

    def has_large_terms(self, op: ir.Operation, terms: Sequence[int]) -> bool:
        """Whether terms of a sum may be large, which are counted as 0 and 1; the product of a multiply-add is the first one."""
        if op.name != "math.fma":
            return any(self.is_large(op.operands[number]) for number in terms)
        self.of(op.results[0])
        return any(_reaches((self._product(op), self._known[op.operands[2]])[number]) for number in terms)

    def _compute(self, value: ir.Value) -> Range:
        if isinstance(value.owner, ir.Block):
            return ANY
        op = value.owner.operation
        if op.name == "arith.constant":
            number = ir.FloatAttr(op.attributes["value"]).value
            return (0.0, 0.0) if math.isinf(number) else (number, number)
        if op.block != self._block:
            return ANY
        match op.name:
            case "memref.load" if isinstance(op.results[0].type, ir.F16Type):
                return _HALF
            case "arith.sitofp" | "arith.uitofp":
                return _of_integer(op.operands[0])
            case "math.log" | "math.log2" | "math.log1p":
                low, high = super()._compute(value)
                return max(low, _LOGARITHM), high
            case "tensor.extract":
                return self._element(op)
            case "arith.extf" | "arith.truncf":
                return self._known[op.operands[0]]
            case "arith.mulf" | "arith.divf" if (found := self._beside_factor(op)) is not None:
                return found
            case "math.fma":
                term, found = self._known[op.operands[2]], self._beside_factor(op)
                if found is not None and _bare(op.operands[2]) in [_bare(factor) for factor in list(op.operands)[:2]]:
                    term = found  # c - c x, of which a soft cap is made
                return sum_of(self._product(op), term)
            case "math.exp" | "math.exp2" if self._ordinary:
                low, high = super()._compute(value)
                return low, min(high, _PRODUCTS[1])
        return super()._compute(value)

    def _product(self, op: ir.Operation) -> Range:
        found = self._beside_factor(op)
        return product_of(*(self._known[factor] for factor in list(op.operands)[:2])) if found is None else found

    def _element(self, op: ir.Operation) -> Range:
        """An element of a captured tensor, before there are tiles; of what another map makes; of a product."""
        source = op.operands[0]
        if self._captured:
            return _HALF if isinstance(op.results[0].type, ir.F16Type) else ANY
        made = maker(source, "tile.map")
        if made is None:
            return _PRODUCTS if maker(source, *_WINDOWS) is None else ANY
        return Magnitudes(made.regions[0].blocks[0], ordinary=self._ordinary).of(element_of(source))

    def _beside_factor(self, op: ir.Operation) -> Range | None:
        """The range of the other factor, which is made of products or positions, where one is a number known at run time only."""
        a, b = list(op.operands)[:2]
        for factor, other in ((a, b), (b, a)):
            low, high = self._known[other]
            if (
                self._is_loaded(factor)
                and self._is_score(other)
                and max(abs(low), abs(high)) < LARGE
                and (op.name != "arith.divf" or factor == b)
            ):
                return min(low, -high), max(high, -low)
        return None

    def _is_score(self, value: ir.Value) -> bool:
        """Whether a value depends on products or on positions."""
        if isinstance(value.owner, ir.Block):
            return value.owner == self._block
        found = self._scores.get(value)
        if found is None:
            found = self._scores[value] = self._makes_scores(value.owner.operation)
        return found

    def _makes_scores(self, op: ir.Operation) -> bool:
        if op.block != self._block:
            return False
        reads = op.name == "tensor.extract" and self._known[op.results[0]] not in (ANY, _HALF)
        places = op.name in _TO_FLOAT and str(op.operands[0].type) not in _INTEGER_BITS and not _is_read(op.operands[0], {})
        return reads or places or any(map(self._is_score, _floats(op)))

    def _is_loaded(self, value: ir.Value) -> bool:
        """Whether it is read from memory or passed to the kernel, or a product or quotient of such numbers and constants."""
        if isinstance(value.owner, ir.Block):
            return value.owner != self._block
        found = self._loaded.get(value)
        if found is None:
            found = self._loaded[value] = self._is_made_of_loaded(value.owner.operation)
        return found

    def _is_made_of_loaded(self, op: ir.Operation) -> bool:
        if op.block == self._block and op.name in (*_CASTS, "arith.mulf", "arith.divf"):
            read = [self._is_loaded(operand) for operand in op.operands if maker(operand, "arith.constant") is None]
            return bool(read) and all(read)
        if op.name == "arith.constant":
            return False
        reads = op.name == "tensor.extract" and self._known[op.results[0]] in (ANY, _HALF)
        return op.block != self._block or op.name == "memref.load" or reads


def _of_integer(value: ir.Value) -> Range:
    """A number made of an integer: of positions, or of what is read."""
    while (widened := maker(value, "arith.extsi", "arith.extui", "arith.index_cast")) is not None:
        value = widened.operands[0]
    bits = _INTEGER_BITS.get(str(value.type))
    if bits is not None:
        return -(2.0**bits), 2.0**bits
    if _is_read(value, {}):
        return ANY
    return _of_places(value, {})


def _of_places(value: ir.Value, known: dict[ir.Value, Range]) -> Range:
    """The range of an integer that is made of positions and sizes, which are not negative."""
    if value not in known:
        known[value] = _of_place(value, known)
    return known[value]


def _of_place(value: ir.Value, known: dict[ir.Value, Range]) -> Range:
    low, high = _PRODUCTS
    if isinstance(value.owner, ir.Block):
        return (0.0 if isinstance(value.type, ir.IndexType) else low), high
    op = value.owner.operation
    if op.name == "arith.constant":
        number = float(ir.IntegerAttr(op.attributes["value"]).value)
        return number, number
    if op.name == "arith.index_cast":
        return _of_places(op.operands[0], known)
    parts = [_of_places(operand, known) for operand in op.operands if isinstance(operand.type, type(value.type))]
    match op.name:
        case "math.absi" | "tensor.dim":
            return 0.0, high
        case "arith.maxsi":
            return max(part[0] for part in parts), high
        case "arith.addi" | "arith.muli" if all(part[0] >= 0 for part in parts):
            return 0.0, high
        case "arith.subi" if parts[0] == (0.0, 0.0):
            return -parts[1][1], -parts[1][0]
    return low, high


def _is_read(value: ir.Value, known: dict[ir.Value, bool]) -> bool:
    """Whether an integer depends on what its block reads from memory; indices and comparisons do not count, but what they choose does."""
    if isinstance(value.owner, ir.Block):
        return False
    if value not in known:
        op = value.owner.operation
        if op.name in ("memref.load", "tensor.extract"):
            known[value] = True
        elif op.name == "arith.cmpi":
            known[value] = False
        else:
            known[value] = any(
                _is_read(operand, known) for operand in op.operands if isinstance(operand.type, ir.IntegerType | ir.IndexType)
            )
    return known[value]


def _bare(value: ir.Value) -> ir.Value:
    """Without signs and constant factors."""
    while (op := maker(value, "arith.negf", "arith.mulf")) is not None:
        others = [operand for operand in op.operands if maker(operand, "arith.constant") is None]
        if len(others) != 1:
            break
        value = others[0]
    return value


def _reaches(range_: Range) -> bool:
    return max(map(abs, range_)) >= LARGE


def _floats(op: ir.Operation) -> list[ir.Value]:
    return [operand for operand in op.operands if isinstance(operand.type, ir.FloatType)]


def scores_may_be_large(attention: ir.Operation) -> bool:
    """Whether scores of an `attn.attention` may be finite and large."""
    score = piece(attention, "attn.score")
    if score is None:
        return False
    block = block_of(score)
    magnitudes = Magnitudes(block, captured=True)
    return any(magnitudes.is_large(value) for value in block.operations[-1].operation.operands)
