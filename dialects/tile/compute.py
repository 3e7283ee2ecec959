"""Computation on tiles: constants, matrix products, elementwise maps with reductions."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.tile.dialect import Tile
from attn_mlir.dialects.variadic import single_variadic
from attn_mlir.dialects.verify import check, entry_block, is_score_type, terminator
from attn_mlir.mlir import ext, ir

REDUCTIONS = ("sum", "max", "min")


class YieldOp(Tile.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Ends the region of `tile.map`: elements of its tiles, then contributions to its reductions."""

    tiles: Sequence[ext.Operand[Any]]
    rows: Sequence[ext.Operand[Any]]


class FillOp(Tile.Operation, name="fill", traits=[ext.Pure]):
    """A tile of static shape whose every element is `value`.

    Accumulators are updated in place: those of `attn-tile` carry a number, `accumulator`, which keeps CSE from merging them.
    """

    value: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        result = self.result.type
        static = isinstance(result, ir.RankedTensorType) and result.has_static_shape
        if not check(self, static, f"makes a tile of static shape, got {result}"):
            return False
        return check(self, result.element_type == self.value.type, f"fills with {self.value.type} a tile of that type, got {result}")


def _verify_dot(op: Any, a: ir.Type, b: ir.Type, c: ir.Type) -> bool:
    if not check(op, isinstance(op.transpose_b, ir.BoolAttr), f"takes `transpose_b` as true or false, got {op.transpose_b}"):
        return False
    attributes = op.operation.attributes
    flag = attributes["transpose_a"] if "transpose_a" in attributes else None
    if not check(op, flag is None or isinstance(flag, ir.BoolAttr), f"takes `transpose_a` as true or false, got {flag}"):
        return False
    a_transposed = flag is not None and flag.value
    tiles = all(isinstance(t, ir.RankedTensorType) and t.rank == 2 for t in (a, b, c))
    if not check(op, tiles, f"multiplies rank-2 tiles, got {a}, {b}, {c}"):
        return False
    transposed = op.transpose_b.value
    inner, columns = (b.shape[1], b.shape[0]) if transposed else (b.shape[0], b.shape[1])
    rows, depth = (a.shape[1], a.shape[0]) if a_transposed else (a.shape[0], a.shape[1])
    fits = (depth, rows, columns) == (inner, c.shape[0], c.shape[1])
    if not check(
        op, fits, f"shapes do not fit: {a}{' transposed' if a_transposed else ''} times {b}{' transposed' if transposed else ''} into {c}"
    ):
        return False
    if not check(op, a.element_type == b.element_type, f"multiplies equal element types, got {a} and {b}"):
        return False
    return check(op, is_score_type(c.element_type), f"accumulates in f32 or f64, got {c}")


class DotOp(Tile.Operation, name="dot", traits=[ext.Pure]):
    """a b, or a b^T with `transpose_b`, a^T b with `transpose_a` (absent: false); accumulated in the result's element type."""

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    transpose_b: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _verify_dot(self, self.a.type, self.b.type, self.result.type)


class DotAddOp(Tile.Operation, name="dot_add", traits=[ext.Pure]):
    """c + a b (or a b^T, a^T b; see `tile.dot`)."""

    c: ext.Operand[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    transpose_b: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        if not check(self, self.result.type == self.c.type, f"returns the accumulator's type {self.c.type}, got {self.result.type}"):
            return False
        return _verify_dot(self, self.a.type, self.b.type, self.c.type)


class DotRescaleOp(Tile.Operation, name="dot_rescale", traits=[ext.Pure]):
    """c * scale + a b (or a b^T, a^T b; see `tile.dot`), where `scale` has one factor for each row of c, in the type of c or in f64."""

    c: ext.Operand[Any]
    scale: ext.Operand[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    transpose_b: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        c, scale = self.c.type, self.scale.type
        if not check(self, self.result.type == c, f"returns the accumulator's type {c}, got {self.result.type}"):
            return False
        if not _verify_dot(self, self.a.type, self.b.type, c):
            return False
        rows = isinstance(scale, ir.RankedTensorType) and list(scale.shape) == [c.shape[0]]
        rows = rows and (scale.element_type == c.element_type or isinstance(scale.element_type, ir.F64Type))
        return check(self, rows, f"scales each of {c.shape[0]} rows, got {scale}")


class CumsumOp(Tile.Operation, name="cumsum", traits=[ext.Pure]):
    """Inclusive sums along the first dimension of a tile of floats, [M] or [M, N]; with `reverse` from the last row on."""

    tile: ext.Operand[Any]
    reverse: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        tile, reverse = self.tile.type, self.reverse
        if not check(self, isinstance(reverse, ir.BoolAttr), f"takes `reverse` as true or false, got {reverse}"):
            return False
        fits = isinstance(tile, ir.RankedTensorType) and tile.rank in (1, 2) and is_score_type(tile.element_type)
        return check(self, fits and self.result.type == tile, f"sums a tile of f32 or f64 into one of its type, got {tile}")


class SolveUnitOp(Tile.Operation, name="solve_unit", traits=[ext.Pure]):
    """X with (I + a) X = b, [M, N], where I + a is a unit lower triangle: only what of a, [M, M], is below its diagonal is read.

    With `upper` it is what is above the diagonal. It is exact algebra, row after row: no inverse and no powers of a, which may be large.
    """

    a: ext.Operand[Any]
    b: ext.Operand[Any]
    upper: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        a, b, upper = self.a.type, self.b.type, self.upper
        if not check(self, isinstance(upper, ir.BoolAttr), f"takes `upper` as true or false, got {upper}"):
            return False
        fits = isinstance(b, ir.RankedTensorType) and b.rank == 2 and is_score_type(b.element_type) and b.has_static_shape
        if not check(
            self, fits and self.result.type == b, f"makes a tile like b, of rank 2 and f32 or f64, got {b} and {self.result.type}"
        ):
            return False
        square = isinstance(a, ir.RankedTensorType) and list(a.shape) == [b.shape[0]] * 2 and a.element_type == b.element_type
        return check(self, square, f"takes a as {b.shape[0]} x {b.shape[0]} of {b.element_type}, got {a}")


@single_variadic
class MapOp(Tile.Operation, name="map", traits=[ext.Pure]):
    """Computes tiles element by element, and reductions along their rows.

    The operands are the extents, (M, N) or (M). The region takes the element's indices, (i, j) or (i), reads tiles
    defined outside by `tensor.extract` and captured tensors by `memref.load`, and yields one value per result. The
    `tiles` have the shape [M, N] or [M]; the `rows`, [M], reduce what is yielded for them along N, each by its entry
    of `reductions` ("sum", "max", "min"). Over N = 0 a reduction gives 0, the lowest or the highest finite number.
    """

    extents: Sequence[ext.Operand[ir.IndexType]]
    reductions: ir.ArrayAttr
    tiles: Sequence[ext.Result[Any]]
    rows: Sequence[ext.Result[Any]]
    body: ext.Region

    def kinds(self) -> list[str]:
        """The reduction kind of each of `rows`."""
        return [kind.value for kind in self.operation.attributes["reductions"]]

    def verify_invariants(self) -> bool:
        rank, tiles, rows = len(self.extents), [r.type for r in self.tiles], [r.type for r in self.rows]
        if not check(self, rank in (1, 2), f"takes one or two extents, got {rank}"):
            return False
        fits = all(isinstance(t, ir.RankedTensorType) and t.rank == rank for t in tiles)
        if not check(self, fits, f"makes tiles of rank {rank}, as it has extents, got {', '.join(map(str, tiles))}"):
            return False
        names = self.operation.attributes["reductions"]
        known = all(isinstance(n, ir.StringAttr) and n.value in REDUCTIONS for n in names)
        if not check(self, known, f"reduces by {', '.join(REDUCTIONS)}"):
            return False
        if not check(self, len(rows) == len(names), f"names {len(names)} reductions but has {len(rows)} of them"):
            return False
        if not check(self, not rows or rank == 2, "reduces along the second extent, but has only one"):
            return False
        fits = all(isinstance(t, ir.RankedTensorType) and t.rank == 1 and is_score_type(t.element_type) for t in rows)
        return check(self, fits, f"reduces to rank-1 tiles of f32 or f64, got {', '.join(map(str, rows))}")

    def verify_region_invariants(self) -> bool:
        block, rank = entry_block(self), len(self.extents)
        got = [a.type for a in block.arguments] if block is not None else []
        fits = len(got) == rank and all(isinstance(t, ir.IndexType) for t in got)
        if not check(self, fits, f"region takes {rank} indices, got ({', '.join(map(str, got))})"):
            return False
        last = terminator(block)
        if not check(self, last is not None and last.operation.name == "tile.yield", "ends in 'tile.yield'"):
            return False
        for what, values, results in (("tiles", last.tiles, self.tiles), ("rows", last.rows, self.rows)):
            got, wanted = ", ".join(str(v.type) for v in values), ", ".join(str(r.type.element_type) for r in results)
            if not check(self, got == wanted, f"yields ({wanted}) for its {what}, got ({got})"):
                return False
        return True
