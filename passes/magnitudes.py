"""How large scores may be: those that numbers of the user are added to, or chosen in place of, have any size."""

import math

from attn_mlir.mlir import ir
from attn_mlir.passes.float_ranges import ANY, FloatRanges, Range
from attn_mlir.passes.regions import block_of, maker, piece

LARGE = 2.0**24
"""From here on a float32 has steps of 1 and more, and the residual of a multiple is no small share of what it is an exponent of."""
_PRODUCTS: Range = (-(2.0**16), 2.0**16)
_HALF: Range = (-65504.0, 65504.0)
_WINDOWS = ("tile.load_window", "tile.band")
_CASTS = ("arith.extf", "arith.truncf", "arith.negf")


class Magnitudes(FloatRanges):
    """Ranges of the floats in one block of scalars.

    Products of queries and keys are taken to be ordinary, and so are numbers that scores or positions are multiplied by, as of a
    temperature or of ALiBi: where they are not, scores have lost the digits that tell them apart. What is loaded or passed and then added
    to scores, or chosen in their place, may be anything that its type holds, as masks are made of it.
    """

    def __init__(self, block: ir.Block, captured: bool = False) -> None:
        """`captured`: tensors that are read are captured ones; else they are tiles."""
        super().__init__({argument: _PRODUCTS for argument in block.arguments if isinstance(argument.type, ir.FloatType)})
        self._block, self._captured = block, captured

    def is_large(self, value: ir.Value) -> bool:
        """Whether it may be finite and beyond `LARGE`."""
        return max(map(abs, self.of(value))) >= LARGE

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
                return (-1.0, 1.0) if str(op.operands[0].type) == "i1" else _PRODUCTS
            case "arith.addf":
                return _added(*map(self._term, op.operands))
            case "arith.subf" if any(map(_is_passed, op.operands)):
                a, b = map(self._term, op.operands)
                return _added(a, (-b[1], -b[0]))
            case "tensor.extract":
                return self._element(op)
            case "arith.extf" | "arith.truncf":
                return self._known[op.operands[0]]
            case "arith.mulf" | "arith.divf" if (found := self._beside_factor(op)) is not None:
                return found
            case "math.fma":
                a, b, _ = (self._known[operand] for operand in op.operands)
                ends = self._beside_factor(op) or [x * y if x and y else 0.0 for x in a for y in b]
                return _added((min(ends), max(ends)), self._term(op.operands[2]))
        return super()._compute(value)

    def _term(self, value: ir.Value) -> Range:
        """The range of a term; a number that is passed and added to all scores alike is taken to be ordinary."""
        return _PRODUCTS if _is_passed(value) else self._known[value]

    def _element(self, op: ir.Operation) -> Range:
        """An element of a captured tensor, before there are tiles; of what another map makes; of a product."""
        source = op.operands[0]
        if self._captured:
            return _HALF if isinstance(op.results[0].type, ir.F16Type) else ANY
        made = None if isinstance(source.owner, ir.Block) else source.owner.operation
        if made is None or made.name != "tile.map":
            return ANY if made is not None and made.name in _WINDOWS else _PRODUCTS
        block = made.regions[0].blocks[0]
        return Magnitudes(block).of(block.operations[-1].operation.operands[ir.OpResult(source).result_number])

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
        op = value.owner.operation
        if op.block != self._block:
            return False
        reads = op.name == "tensor.extract" and self._known[value] not in (ANY, _HALF)
        places = op.name in ("arith.sitofp", "arith.uitofp") and str(op.operands[0].type) != "i1"
        return reads or places or any(map(self._is_score, _floats(op)))

    def _is_loaded(self, value: ir.Value) -> bool:
        """Whether it is read from memory or passed to the kernel, or a product or quotient of such numbers and constants."""
        if isinstance(value.owner, ir.Block):
            return value.owner != self._block
        op = value.owner.operation
        if op.block == self._block and op.name in (*_CASTS, "arith.mulf", "arith.divf"):
            read = [self._is_loaded(operand) for operand in op.operands if maker(operand, "arith.constant") is None]
            return bool(read) and all(read)
        if op.name == "arith.constant":
            return False
        return op.block != self._block or op.name == "memref.load" or (op.name == "tensor.extract" and self._known[value] in (ANY, _HALF))


def _added(a: Range, b: Range) -> Range:
    low, high = a[0] + b[0], a[1] + b[1]
    return (-math.inf if math.isnan(low) else low), (math.inf if math.isnan(high) else high)


def _is_passed(value: ir.Value) -> bool:
    """Whether it is a number that a function or kernel takes, or a multiple of one."""
    if isinstance(value.owner, ir.Block):
        return value.owner.owner.operation.name == "func.func"
    op = value.owner.operation
    others = [operand for operand in op.operands if maker(operand, "arith.constant") is None]
    return op.name in (*_CASTS, "arith.mulf") and len(others) == 1 and _is_passed(others[0])


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
