"""Finding ops; shared by verifiers and passes."""

from collections.abc import Iterator

from attn_mlir.mlir import ir


def walk(root: ir.Operation | ir.OpView) -> Iterator[ir.Operation]:
    """Every operation inside `root`, outermost first. Collect into a list before changing anything."""
    for region in root.operation.regions:
        for block in region.blocks:
            for op in block.operations:
                yield op.operation
                yield from walk(op)


def maker(value: ir.Value, *names: str) -> ir.Operation | None:
    """The op that makes a value, if it has one of the names (any, where none is given); None for arguments of blocks."""
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    return op if op is not None and (not names or op.name in names) else None
