"""Tiles of f32 as two pieces of bf16 each, and their products."""

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.tiling.scalars import cast_float, constant_index


def cut_tile(tile: ir.Value) -> list[ir.Value]:
    """Two pieces of bf16 of a tile of f32, of which the second is the residual of the first."""
    narrow, wide = ir.BF16Type.get(), ir.F32Type.get()

    def pieces(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        x = tensor.ExtractOp(tile, [i, j]).result
        high = cast_float(x, narrow)
        return [high, cast_float(arith.SubFOp(x, cast_float(high, wide)).result, narrow)], []

    shape = ir.RankedTensorType(tile.type).shape
    return build.map_([constant_index(n) for n in shape], [ir.RankedTensorType.get(shape, narrow)] * 2, [], [], pieces)[0]


def product_of_pieces(inverse: list[ir.Value], right: ir.Value) -> ir.Value:
    """T R of two pieces each, the smallest products first."""
    high, low = cut_tile(right)
    score = ir.RankedTensorType(right.type).element_type
    made = build.dot(inverse[1], high, score, transpose_b=False)
    made = build.dot_accumulate(made, None, inverse[0], low)
    return build.dot_accumulate(made, None, inverse[0], high)
