"""Scales what rounding to f16 leaves of a factor of a product by 2^11, as most of it would be subnormal."""

from dataclasses import dataclass

from attn_mlir.dialects.regions import yielded
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all, maker

_SCALE = 2.0**11


@dataclass(frozen=True)
class ScaleResiduals(Pass):
    """In chunk scans: f S + hi b + lo b, where lo is the residual of hi in f16, becomes 2^-11 (2^11 f S + (2^11 lo) b) + hi b.

    Scaling by powers of two is exact; the state has room for it.
    """

    name = "warp-scale-residuals"

    def run(self, module: ir.Operation) -> bool:
        for last in find_all(module, "tile.dot_add"):
            first = maker(last.operands[0], "tile.dot_rescale")
            residuals = [n for n in (1, 2) if _is_residual(last.operands[n])]
            if first is not None and len(residuals) == 1 and len(list(first.results[0].uses)) == 1:
                with last.location, ir.InsertionPoint(last):
                    self._scale(first, last, residuals[0])
        return True

    def _scale(self, first: ir.Operation, last: ir.Operation, which: int) -> None:
        """`first` multiplies the residual, and `last`, whose operand `which` that is, what was rounded."""
        state, factor, *rounded = first.operands
        residual = last.operands[which]
        factors = [_scaled(residual) if n == which else last.operands[n] for n in (1, 2)]
        lower = arith.ConstantOp(ir.F32Type.get(), 1 / _SCALE).result
        rows = maker(factor).operands[0]  # pyright: ignore
        back = build.map_([rows], [ir.RankedTensorType(factor.type)], [], [], lambda row: ([lower], []))[0][0]
        flags = {name: last.attributes[name] for name in ("transpose_a", "transpose_b")}

        def product(*operands: ir.Value) -> ir.Value:
            return ir.Operation.create("tile.dot_rescale", results=[state.type], operands=list(operands), attributes=flags).result

        made = product(product(state, _scaled(factor), *factors), back, *rounded)
        last.results[0].replace_all_uses_with(made)
        for op in (last, first, maker(residual)):
            if op is not None and not any(list(result.uses) for result in op.results):
                op.erase()


def _is_residual(tile: ir.Value) -> bool:
    """Whether a map makes a tile of f16 of x - round(x)."""
    op = maker(tile, "tile.map")
    if op is None or str(ir.RankedTensorType(tile.type).element_type) != "f16" or len(op.results) != 1:
        return False
    rounded = maker(yielded(block_of(op))[0], "arith.truncf")
    difference = None if rounded is None else maker(rounded.operands[0], "arith.subf")
    wide = None if difference is None else maker(difference.operands[1], "arith.extf")
    narrow = None if wide is None else maker(wide.operands[0], "arith.truncf")
    return narrow is not None and difference is not None and narrow.operands[0] == difference.operands[0]


def _scaled(tile: ir.Value) -> ir.Value:
    """What a map makes times 2^11, before it is rounded if it is."""
    made = maker(tile).clone()  # pyright: ignore
    value = yielded(block_of(made))[0]
    rounded = maker(value, "arith.truncf")
    last = rounded if rounded is not None else block_of(made).operations[-1].operation
    with ir.InsertionPoint(last):
        scale = arith.ConstantOp(ir.F32Type.get(), _SCALE).result
        last.operands[0] = arith.MulFOp(last.operands[0], scale).result
    return made.results[0]
