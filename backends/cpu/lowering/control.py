"""Rules for loops and branches: carried row tiles become vectors, carried lane tiles stay in their buffers."""

from attn_mlir.backends.cpu.lowering.context import Lowering
from attn_mlir.mlir import ir, scf


def _carried_values(context: Lowering, values: list[ir.Value]) -> list[ir.Value]:
    """The values that are really carried: everything but tiles in buffers."""
    return [lowered for lowered in (context.get(value) for value in values) if isinstance(lowered, ir.Value)]


def _bind(context: Lowering, names: list[ir.Value], sources: list[ir.Value], carried: list[ir.Value]) -> None:
    """Gives `names` the carried values in turn, and the tiles of `sources` where those are in buffers."""
    remaining = iter(carried)
    for name, source in zip(names, sources, strict=True):
        lowered = context.get(source)
        context.values[name] = next(remaining) if isinstance(lowered, ir.Value) else lowered


def lower_for(context: Lowering, op: ir.Operation) -> None:
    """`scf.for`."""
    operands = list(op.operands)
    body = op.regions[0].blocks[0]
    lower, upper, step = (context.scalar(value) for value in operands[:3])
    loop = scf.ForOp(lower, upper, step, _carried_values(context, operands[3:]))
    with ir.InsertionPoint(loop.body):
        context.values[body.arguments[0]] = loop.induction_variable
        _bind(context, list(body.arguments)[1:], operands[3:], list(loop.inner_iter_args))
        context.lower_block(body)
        scf.YieldOp(_carried_values(context, list(body.operations[-1].operation.operands)))
    _bind(context, list(op.results), operands[3:], list(loop.results))


def lower_if(context: Lowering, op: ir.Operation) -> None:
    """`scf.if`."""
    blocks = [region.blocks[0] for region in op.regions if len(region.blocks)]
    yields = [list(block.operations[-1].operation.operands) for block in blocks]
    types = [context.row_type if isinstance(r.type, ir.RankedTensorType) else r.type for r in op.results if not _in_buffer(r)]
    branch = scf.IfOp(context.scalar(op.operands[0]), types, has_else=len(blocks) == 2)
    targets = [branch.then_block, branch.else_block] if len(blocks) == 2 else [branch.then_block]
    for block, target, values in zip(blocks, targets, yields, strict=True):
        with ir.InsertionPoint(target):
            context.lower_block(block)
            scf.YieldOp(_carried_values(context, values))
    _bind(context, list(op.results), yields[0] if yields else [], list(branch.results))


def _in_buffer(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType) and value.type.rank == 2
