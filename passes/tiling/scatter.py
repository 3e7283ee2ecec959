"""What the index of an `attn.scatter` depends on, and which programs it keeps apart."""

from attn_mlir.mlir import ir
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.read import MaskReader
from attn_mlir.passes.regions import block_of


def depends_on(block: ir.Block, position: int, outputs: list[int] | None = None) -> bool:
    """Whether what the block yields (or those of it numbered `outputs`) uses its argument number `position`."""
    values = {block.arguments[position]}
    *body, last = (view.operation for view in block.operations)
    for op in body:
        if any(operand in values for operand in op.operands):
            values.update(op.results)
    yielded = list(last.operands)
    return any(yielded[n] in values for n in (range(len(yielded)) if outputs is None else outputs))


def disjoint(scatter: ir.Operation, chunked: int, packed: bool = False) -> tuple[bool, bool, bool]:
    """Whether programs of different chunks, heads and batches never meet: some index is that one of the region's arguments itself.

    Chunks are of argument number `chunked`: keys of pairs (3), rows of elements (2). Those of `packed` tensors are of different sequences,
    too, and there is one batch.
    """
    block = block_of(scatter)
    pool = Pool()
    variables = [pool.leaf("var", f"index_{n}", 0) for n in range(len(block.arguments))]
    reader = MaskReader(pool, dict(zip(block.arguments, variables, strict=True)))
    indices = [reader.read(value) for value in block.operations[-1].operation.operands]
    batch, head, chunk = (any(index is variables[n] for index in indices) for n in (0, 1, chunked))
    return (chunk and batch, head, True) if packed else (chunk, head, batch)
