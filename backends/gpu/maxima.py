"""Running maxima in maps of scores."""

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker


def is_running_maximum(value: ir.Value) -> bool:
    """Whether a map reads a maximum over keys that a step has made: it began with the lowest finite number, and so is not -inf."""
    read = maker(value, "tensor.extract")
    made = None if read is None else maker(read.operands[0], "tile.map", "warp.map")
    if read is None or made is None:
        return False
    yielded = made.regions[0].blocks[0].operations[-1].operation.operands
    number = ir.OpResult(read.operands[0]).result_number
    largest = maker(yielded[number], "arith.maximumf", "arith.select") if number < len(yielded) else None
    if largest is not None and largest.name == "arith.select":
        return maker(largest.operands[1], "tensor.extract") is not None and maker(largest.operands[2], "arith.maximumf") is not None
    return largest is not None and all(maker(operand, "tensor.extract") is not None for operand in largest.operands)
