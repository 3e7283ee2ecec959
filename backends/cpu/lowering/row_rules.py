"""The rules for kernels whose tiles lie row by row."""

from attn_mlir.backends.cpu.lowering import emit, row_maps, row_products, row_solve, row_tiles
from attn_mlir.backends.cpu.lowering.context import Lowering, RowMajor, Rule
from attn_mlir.backends.cpu.lowering.gather import read_memory
from attn_mlir.backends.cpu.lowering.maps import lower_scalar
from attn_mlir.backends.cpu.lowering.row_tiles import copy_tile, get_tile, memory_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir, scf


def _lower_for(context: Lowering, op: ir.Operation) -> None:
    """`scf.for`: carried tiles are changed in place, or copied back at the end of each iteration."""
    lower, upper, step, *initial = (context.get(value) for value in op.operands)
    body = op.regions[0].blocks[0]
    scalars = [value for value in initial if isinstance(value, ir.Value)]
    loop = scf.ForOp(*[value for value in (lower, upper, step) if isinstance(value, ir.Value)], scalars)
    with ir.InsertionPoint(loop.body):
        context.values[body.arguments[0]] = loop.induction_variable
        inner = iter(loop.inner_iter_args)
        for argument, value in zip(list(body.arguments)[1:], initial, strict=True):
            context.values[argument] = next(inner) if isinstance(value, ir.Value) else value
        before = list(context.upcoming)
        context.lower_block(body)
        context.upcoming = before  # what is left is known in the body only
        yielded = [context.get(value) for value in body.operations[-1].operation.operands]
        for home, value in zip(initial, yielded, strict=True):
            if isinstance(home, RowMajor) and isinstance(value, RowMajor) and home.address != value.address:
                copy_tile(context, value, home)
        scf.YieldOp([value for value in yielded if isinstance(value, ir.Value)])
    results = iter(loop.results)
    for result, value in zip(op.results, initial, strict=True):
        context.values[result] = next(results) if isinstance(value, ir.Value) else value


def _lower_if(context: Lowering, op: ir.Operation) -> None:
    """`scf.if` without results."""
    if len(op.results):
        raise UnsupportedError("tiles in rows are not chosen by conditions")
    blocks = [region.blocks[0] for region in op.regions if len(region.blocks)]
    branch = scf.IfOp(context.scalar(op.operands[0]), [], has_else=len(blocks) == 2)
    for block, target in zip(blocks, [branch.then_block, branch.else_block] if len(blocks) == 2 else [branch.then_block], strict=True):
        with ir.InsertionPoint(target):
            context.lower_block(block)
            scf.YieldOp([])


def _lower_scalar(context: Lowering, op: ir.Operation) -> None:
    """Scalar code outside of maps: numbers of tiles and of memory, arithmetic."""
    if op.name == "tensor.extract":
        tile = get_tile(context, op.operands[0])
        *row, column = (context.scalar(value) for value in list(op.operands)[1:])
        value = emit.load(tile.kept, tile.at(row[0] if row else None, column))
        context.values[op.results[0]] = emit.cast_float(value, op.results[0].type)
    elif op.name == "memref.load":
        indices = [context.scalar(value) for value in list(op.operands)[1:]]
        context.values[op.results[0]] = read_memory(context, memory_of(context, op.operands[0]), indices)
    else:
        lower_scalar(context, op)


RULES: dict[str, Rule] = {
    "memref.subview": row_tiles.lower_subview,
    "scalar": _lower_scalar,
    "scf.for": _lower_for,
    "scf.if": _lower_if,
    "tile.cumsum": row_tiles.lower_cumsum,
    "tile.dot": row_products.lower_dot,
    "tile.dot_add": row_products.lower_dot_accumulate,
    "tile.dot_rescale": row_products.lower_dot_accumulate,
    "tile.fill": row_tiles.lower_fill,
    "tile.load": row_tiles.lower_load,
    "tile.map": row_maps.lower_map,
    "tile.solve_unit": row_solve.lower_solve_unit,
    "tile.store": row_tiles.lower_store,
}
