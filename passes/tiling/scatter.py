"""What the index of an `attn.scatter` depends on, and which programs it keeps apart."""

from attn_mlir.mlir import ir
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.read import Reader
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


def disjoint(scatter: ir.Operation) -> tuple[bool, bool, bool]:
    """Whether pairs of different chunks of keys, heads and batches never meet: some index is the key, the head or the batch itself."""
    block = block_of(scatter)
    pool = Pool()
    variables = [pool.leaf("var", name, 0) for name in ("b", "h", "q_idx", "kv_idx")]
    reader = Reader(pool, dict(zip(block.arguments, variables, strict=True)))
    indices = [reader.read(value) for value in list(block.operations)[-1].operation.operands]
    batch, head, _, key = (any(index is variable for index in indices) for variable in variables)
    return key, head, batch
