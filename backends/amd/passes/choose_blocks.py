"""Block sizes, by the facts of each kernel."""

from dataclasses import dataclass

from attn_mlir.backends import fields
from attn_mlir.backends.amd import blocks
from attn_mlir.backends.gpu import attributes
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

TUNED = "amd.tuned"


@dataclass(frozen=True)
class AmdChooseBlocks(Pass):
    """Gives each function that becomes a kernel its `tile.blocks`: of `tile.choices`, else of `amd.tuned`, else by head dimensions.

    Chunks of linear attention that are larger than what fits into shared memory become smaller.
    """

    name = "amd-choose-blocks"

    def run(self, module: ir.Operation) -> bool:
        try:
            tuned = fields.tuned_in(module, TUNED)
        except ValueError as error:
            module.location.emit_error(f"{self.name}: {error}")
            return False
        for function in find_all(module, "func.func"):
            facts = blocks.facts_of(function)
            if facts is None:
                continue
            choices = {**tuned.get(fields.tuned_name(function), {}), **attributes.read(function, attributes.CHOICES)}
            sizes = [
                choices.get(name, default) for name, default in zip(("block_q", "block_kv"), blocks.default_blocks(facts), strict=True)
            ]
            if not all(isinstance(size, int) and size > 0 for size in sizes):
                function.location.emit_error(f"{self.name}: block sizes must be positive numbers, got {sizes[0]} and {sizes[1]}")
                return False
            for chunk in find_all(function, "attn.chunk"):
                _shrink(chunk, int(sizes[0]))
            function.attributes["tile.blocks"] = ir.DenseI64ArrayAttr.get([int(size) for size in sizes], function.context)
        return True


def _shrink(op: ir.Operation, size: int) -> None:
    """Gives an `attn.chunk` chunks of that size, where they are larger, and states stay at the ends of chunks. Its pieces hold for any."""
    chunk = ir.IntegerAttr(op.attributes["chunk"])
    interval = interval_of(op) or size
    if size < chunk.value and interval % size == 0 and not ("crossing" in op.attributes and interval_of(op)):  # those are whole intervals
        op.attributes["chunk"] = ir.IntegerAttr.get(chunk.type, size)
