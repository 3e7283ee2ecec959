"""Finding ops; shared by verifiers and passes."""

from collections.abc import Iterator

from attn_mlir.mlir import ir


def walk(root: ir.Operation | ir.OpView) -> Iterator[ir.Operation]:
    """Every operation inside `root`, outermost first. Collect into a list before changing anything."""
    # Without recursion, in which each op of a loop nest passes through all loops around it.
    within = [_inside(root.operation)]
    while within:
        for view in within[-1]:
            op = view.operation
            yield op
            if len(op.regions):
                within.append(_inside(op))
                break
        else:
            within.pop()


def _inside(op: ir.Operation) -> Iterator[ir.OpView]:
    return (view for region in op.regions for block in region.blocks for view in block.operations)


def around(op: ir.Operation) -> Iterator[ir.Operation]:
    """The ops that an op stands in, innermost first."""
    above = op.parent
    while above is not None:
        yield above.operation
        above = above.operation.parent


def maker(value: ir.Value, *names: str) -> ir.Operation | None:
    """The op that makes a value, if it has one of the names (any, where none is given); None for arguments of blocks."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    return op if op is not None and (not names or op.name in names) else None


def yielded(block: ir.Block) -> list[ir.Value]:
    """What the block's terminator hands on."""
    return list(block.operations[-1].operation.operands)


def element_of(tile: ir.Value) -> ir.Value:
    """The scalar that a map yields for one of its results, `tile`."""
    map_ = tile.owner.operation  # type: ignore[union-attr]
    return yielded(map_.regions[0].blocks[0])[ir.OpResult(tile).result_number]
