"""Lets factors of positions that two tiles have in common scale the first factor of a product instead of the second."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, clone_op, find_all, maker
from attn_mlir.passes.tiling.scalars import constant_index

_DOTS = ("tile.dot", "tile.dot_add", "tile.dot_rescale")


@dataclass(frozen=True)
class ScaleLeft(Pass):
    """In chunk scans: a^T (f b), where f has a factor for each row of a loaded tile b, becomes (f a)^T b.

    What is computed can be the first factor of a product, which may lie in registers; the second one is read from shared memory as it was
    loaded. a is a loaded tile, too. Of either form each product is rounded once, to the elements of both tiles.
    """

    name = "warp-scale-left"

    def run(self, module: ir.Operation) -> bool:
        for op in find_all(module, *_DOTS):
            *before, a, b = op.operands
            scaled = _of_rows(b)
            if flag(op, "transpose_a") and not flag(op, "transpose_b") and scaled is not None and _alike(a, scaled.loaded):
                with op.location, ir.InsertionPoint(op):
                    made = scaled.of(a)
                others = [use for use in b.uses if use.owner.operation != op]
                op.operands[len(before)], op.operands[len(before) + 1] = made, scaled.loaded
                if not others:
                    scaled.map.erase()
        return True


@dataclass(frozen=True)
class _ScaledRows:
    """A map that multiplies the rows of a `loaded` tile by a factor each, and rounds."""

    map: ir.Operation
    loaded: ir.Value

    def of(self, other: ir.Value) -> ir.Value:
        """The same of another tile."""
        type_ = ir.RankedTensorType(other.type)

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            block = block_of(self.map)
            known = {**dict(zip(block.arguments, (i, j), strict=True)), self.loaded: other}
            for view in list(block.operations)[:-1]:
                clone_op(view.operation, known)
            return [known[block.operations[-1].operation.operands[0]]], []

        return build.map_([constant_index(size) for size in type_.shape], [type_], [], [], body)[0][0]


def _of_rows(tile: ir.Value) -> _ScaledRows | None:
    """How a tile is made of a loaded one and factors of its rows; None where it is made otherwise."""
    op = maker(tile, "tile.map")
    if op is None or len(op.results) != 1 or len(block_of(op).arguments) != 2:
        return None
    row, column = block_of(op).arguments
    product = _through(block_of(op).operations[-1].operation.operands[0], "arith.truncf")
    product = None if product is None else maker(product, "arith.mulf")
    for one, factor in [tuple(product.operands), tuple(product.operands)[::-1]] if product is not None else []:
        wide = _through(one, "arith.extf")
        read = None if wide is None else maker(wide, "tensor.extract")
        if read is not None and list(read.operands)[1:] == [row, column] and maker(read.operands[0], "tile.load") is not None:
            return _ScaledRows(op, read.operands[0]) if not _needs(factor, lambda v, r=read: v in (column, r.results[0])) else None
    return None


def _through(value: ir.Value, name: str) -> ir.Value | None:
    """What an op of this name is made of."""
    op = maker(value, name)
    return None if op is None else op.operands[0]


def _needs(value: ir.Value, of: Callable[[ir.Value], bool]) -> bool:
    """Whether a value is, or is made of, one of these."""
    todo, seen = [value], set[ir.Value]()
    while todo:
        value = todo.pop()
        if of(value):
            return True
        if value not in seen and not isinstance(value.owner, ir.Block):
            seen.add(value)
            todo += value.owner.operation.operands
    return False


def _alike(a: ir.Value, b: ir.Value) -> bool:
    """Whether a is a loaded tile with the rows and elements of b."""
    if maker(a, "tile.load") is None:
        return False
    one, other = ir.RankedTensorType(a.type), ir.RankedTensorType(b.type)
    return one.shape[0] == other.shape[0] and one.element_type == other.element_type
