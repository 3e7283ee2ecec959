"""Products of f32 tiles as products of bf16 pieces, which tensor cores multiply."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import grid_kind
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile import build
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.tiling.scalars import cast_float, constant_index

PIECES = "nvidia.pieces"
"""An attribute of a delta rule's kernels: how many pieces of each factor of f32 they multiply."""
_SOLVE = "tile.solve_unit"
_PAIRS = {2: ((1, 0), (0, 1), (0, 0)), 3: ((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))}
"""Which pieces of the two factors are multiplied, the smallest products first, by how many pieces there are."""
_Key = tuple[ir.Value, ir.Block]


@dataclass(frozen=True)
class Float32Products(Pass):
    """In chunk scans: products of f32 tiles become six products of bf16 tiles, with errors of about 2^-24 as f32 has.

    x = high + middle + low, each rounded to the nearest of what is left: together they have the 24 bits of x, and its range. Of the nine
    products the three that are less than 2^-24 of the whole are left out ("BF16x6"). The smallest come first, and every product starts
    from zero: tensor cores cut off what an accumulator has no bits for, at every step and always towards zero, so that sums over many
    chunks would drift; what was summed up before is added in f32 by a `tile.map`, which rounds to nearest.

    Where a delta rule's other scans read q, k and v in 16 bits, two pieces and three products do, with errors of about 2^-16: what is
    multiplied was made of numbers of 16 bits, and its sums are rounded to them.

    An infinite x has pieces that are infinite and NaN: its products are NaN or infinite. So are those of finite x beyond 3.39e38, which
    bf16 rounds to infinity.
    """

    name = "nvidia-float32-products"

    def run(self, module: ir.Operation) -> bool:
        functions = find_all(module, "func.func")
        scans = [function for function in functions if "tile.kernel" in function.attributes and grid_kind(function) == "chunks"]
        delta = any(find_all(kernel, _SOLVE) for kernel in scans)
        count = 2 if delta and any(_reads_halves(kernel) for kernel in scans) else 3
        for kernel in scans:
            made: dict[_Key, list[ir.Value]] = {}
            for op in find_all(kernel, *DOTS):
                if isinstance(ir.RankedTensorType(list(op.operands)[-1].type).element_type, ir.F32Type):
                    _replace(op, made, count)
            for load in find_all(kernel, "tile.load") if made else []:
                _sink(load)
        for kernel in [function for function in functions if "tile.kernel" in function.attributes] if delta else []:
            kernel.attributes[PIECES] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, kernel.context), count)
        return True


def _reads_halves(kernel: ir.Operation) -> bool:
    """Whether a kernel loads tiles of 16 bits."""
    return any(ir.RankedTensorType(op.results[0].type).element_type.width == 16 for op in find_all(kernel, "tile.load"))


def _replace(op: ir.Operation, made: dict[_Key, list[ir.Value]], count: int) -> None:
    """Replaces one product; `made` has the `count` pieces of tiles that a block has made already."""
    *before, a, b = op.operands
    result = op.results[0]
    turned = {name: flag(op, name) for name in ("transpose_a", "transpose_b")}
    with op.location, ir.InsertionPoint(op):
        left, right = (_pieces(op, factor, made, count) for factor in (a, b))
        flags = {name: ir.BoolAttr.get(turns) for name, turns in turned.items() if turns or name == "transpose_b"}
        whole: list[ir.Value] = []
        for x, y in _PAIRS[count]:
            name = "tile.dot_add" if whole else "tile.dot"
            whole = [ir.Operation.create(name, results=[result.type], operands=[*whole, left[x], right[y]], attributes=flags).result]
        if before:
            whole = [_added(before, whole[0])]
    result.replace_all_uses_with(whole[0])
    op.erase()


def _pieces(op: ir.Operation, tile: ir.Value, made: dict[_Key, list[ir.Value]], count: int) -> list[ir.Value]:
    """The pieces of a tile in the op's block, made where they are first needed."""
    key = (tile, op.block)
    if key not in made:
        shape, narrow, wide = ir.RankedTensorType(tile.type).shape, ir.BF16Type.get(), ir.F32Type.get()

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            rest, parts = tensor.ExtractOp(tile, [i, j]).result, []
            for number in range(count):
                parts.append(cast_float(rest, narrow))
                if number < count - 1:
                    rest = arith.SubFOp(rest, cast_float(parts[-1], wide)).result
            return parts, []

        types: list[ir.Type] = [ir.RankedTensorType.get(shape, narrow)] * count
        made[key] = build.map_([constant_index(size) for size in shape], types, [], [], body)[0]
    return made[key]


def _sink(load: ir.Operation) -> None:
    """Moves a load to where its block first needs it: till then, its tile would take registers."""
    users = [use.owner.operation for use in load.results[0].uses]
    for view in load.block.operations:
        if any(user == view.operation or _holds(view.operation, user) for user in users):
            load.move_before(view.operation)
            return


def _holds(op: ir.Operation, user: ir.Operation) -> bool:
    """Whether `user` lies in a region of an op."""
    current = user
    while current is not None and current.block != op.block and current.name != "func.func":
        current = current.parent
    return current == op


def _added(before: list[ir.Value], product: ir.Value) -> ir.Value:
    """A product and what was summed up before it, times a factor for every row where there is one."""
    c, *scale = before

    def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        x = tensor.ExtractOp(c, [i, j]).result
        for factors in scale:
            x = arith.MulFOp(x, tensor.ExtractOp(factors, [i]).result).result
        return [arith.AddFOp(x, tensor.ExtractOp(product, [i, j]).result).result], []

    extents = [constant_index(size) for size in ir.RankedTensorType(c.type).shape]
    return build.map_(extents, [c.type], [], [], body)[0][0]
