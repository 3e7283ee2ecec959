"""Products that differences of large numbers are taken of, rounded before the difference on every device."""

from attn_mlir.backends.gpu.passes.scaling import Scaler, constant, float_maps, is_real, unnamed
from attn_mlir.dialects.regions import element_of, yielded
from attn_mlir.mlir import arith, ir
from attn_mlir.mlir import math as math_ops
from attn_mlir.passes.magnitudes import Magnitudes
from attn_mlir.passes.regions import find_all, maker

_SUMS = ("arith.addf", "arith.subf")


class Settler:
    """Makes products and quotients multiply-adds where compilers would make one of a product and a difference.

    That would leave the residual of the product in the difference, which at 1e9 is up to 32. Of pairs these are sums with an operand that
    may be large; in kernels where the maximum of a row may be, of rows those that exponentials are taken of.
    """

    def __init__(self) -> None:
        self._large: dict[ir.Operation, bool] = {}

    def settle(self, map_: ir.Operation) -> None:
        block = map_.regions[0].blocks[0]
        scaler = Scaler(block, bounded=False)
        if scaler.rank == 1:
            for op in find_all(map_, "math.exp2") if self._is_large(map_) else []:
                found = _sum_of(op.operands[0])
                if found is not None:
                    settle(found)
            return
        for op in find_all(map_, *_SUMS):
            full, of_row = ([x for x in op.operands if scaler.cheap(x) == cheap] for cheap in (False, True))
            is_difference = len(full) == 1 and bool(_products(full[0])) and bool(scaler.depends(of_row[0]))
            if is_difference and is_real(op.results[0]) and scaler.whole(op.results[0]):
                settle(op.results[0])

    def _is_large(self, map_: ir.Operation) -> bool:
        """Whether a maximum or minimum of the kernel may be large."""
        kernel = map_
        while kernel.parent is not None and kernel.name != "func.func":
            kernel = kernel.parent.operation
        if kernel not in self._large:
            self._large[kernel] = any(_has_large_extremum(other) for other in float_maps(kernel, rank=2) if other.name == "tile.map")
        return self._large[kernel]


def settle(difference: ir.Value) -> None:
    """Settles the operands of a sum."""
    for operand in difference.owner.operation.operands:
        read = maker(operand, "tensor.extract")
        if read is not None and maker(read.operands[0], "tile.map") is not None:
            operand = element_of(read.operands[0])
        _settle_products(operand)


def _settle_products(value: ir.Value) -> None:
    for op in dict.fromkeys(_products(value)):
        if is_real(op.results[0]):
            with unnamed(op.location), ir.InsertionPoint(op):
                a, b = op.operands
                factor = b if op.name == "arith.mulf" else arith.divf(constant(1.0, op.results[0].type), b)
                settled = math_ops.fma(a, factor, constant(0.0, op.results[0].type))
            op.results[0].replace_all_uses_with(settled)
            op.erase()


def _products(value: ir.Value) -> list[ir.Operation]:
    """The products and quotients that a value is, is the negative of, or is chosen of."""
    op = maker(value, "arith.mulf", "arith.divf", "arith.select", "arith.negf")
    if op is None or op.name in ("arith.mulf", "arith.divf"):
        return [] if op is None else [op]
    return [product for operand in list(op.operands)[1 if op.name == "arith.select" else 0 :] for product in _products(operand)]


def _sum_of(value: ir.Value) -> ir.Value | None:
    """The sum that an exponent is, or is a multiple of."""
    while (product := maker(value, "arith.mulf")) is not None:
        factors = [operand for operand in product.operands if maker(operand, "arith.constant") is None]
        if len(factors) != 1:
            break
        value = factors[0]
    return value if maker(value, *_SUMS) is not None else None


def _has_large_extremum(map_: ir.Operation) -> bool:
    block = map_.regions[0].blocks[0]
    kinds = map_.opview.kinds()
    values = yielded(block)[len(map_.results) - len(kinds) :]
    magnitudes = Magnitudes(block)
    return any(kind in ("max", "min") and magnitudes.is_large(value) for kind, value in zip(kinds, values, strict=True))
