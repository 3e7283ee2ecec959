"""Gives rings more stages, so that what comes next is copied while what is there is used."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import chosen
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import i64
from attn_mlir.dialects.warp.kinds import bytes_of, stages_and_arrivals
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker

_STAGES = 2


@dataclass(frozen=True)
class PipelineLoads(Pass):
    """Makes `stages` of the one stage of each ring that an inner loop fills: its buffer, its barriers, and the `warp.stage` of its uses.

    Without the option, `warp.schedule` says how many, or there are two. An inner loop is one in a loop. A kernel stays as it is, with the
    reason in `warp.refused`, where no inner loop fills a ring of one stage, or shared memory does not hold so many.
    """

    name = "warp-pipeline-loads"
    stages: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.stages < 0:
            module.location.emit_error(f"{self.name}: `stages` must not be negative, got {self.stages}")
            return False
        change_kernels(module, self.name, self._deepen)
        return True

    def _deepen(self, kernel: ir.Operation) -> None:
        stages = chosen(kernel, "stages", self.stages, _STAGES)
        copies = [op for op in find_all(kernel, "warp.copy_async") if _depth(op) > 1]
        values = {value for op in copies for value in _of_ring(op)}
        values = {value for value in values if _stages_of(value.type) == 1}
        if not values:
            raise Refused("no inner loop fills a ring of one stage")
        used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
        more = (stages - 1) * sum(bytes_of(value.type) for value in values if isinstance(value.type, ir.MemRefType))
        limit = ir.IntegerAttr(kernel.attributes["shared_limit"]).value
        if used + more > limit:
            raise Refused(f"{stages} stages take {used + more} bytes of shared memory, there are {limit}")
        counts = {maker(use, "warp.stage") for value in values for op in _users(value) for use in op.operands}
        with kernel.location:
            for value in values:
                value.set_type(_with_stages(value.type, stages))
        for op in counts:
            if op is not None:
                op.attributes["stages"] = i64(stages)


def _depth(op: ir.Operation) -> int:
    """How many loops an op stands in."""
    above, found = op.parent, 0
    while above is not None:
        found += above.operation.name == "scf.for"
        above = above.operation.parent
    return found


def _of_ring(copy: ir.Operation) -> list[ir.Value]:
    """The buffer and the barriers that a copy's stage is one of: what it fills, where its bytes count, and who waits in the same block."""
    view, full, stage = maker(copy.operands[5], "warp.view"), copy.operands[6], copy.operands[7]
    barriers = ("warp.wait", "warp.arrive", "warp.view")  # and, where tiles are transposed, what holds the transposes
    waits = [use.owner.operation.operands[0] for use in stage.uses if use.owner.operation.name in barriers]
    beside = [use.owner.operation.operands[4] for use in stage.uses if use.owner.operation.name == "warp.copy_rows_async"]
    return [full, *waits, *beside, *([view.operands[0]] if view is not None else [])]


def _users(value: ir.Value) -> list[ir.Operation]:
    return [use.owner.operation for use in value.uses]


def _stages_of(type_: ir.Type) -> int:
    return type_.shape[0] if isinstance(type_, ir.MemRefType) else stages_and_arrivals(type_)[0]


def _with_stages(type_: ir.Type, stages: int) -> ir.Type:
    if isinstance(type_, ir.MemRefType):
        return ir.MemRefType.get([stages, *type_.shape[1:]], type_.element_type, memory_space=type_.memory_space)
    return ir.Type.parse(f"!warp.barrier<{stages} : i64, {stages_and_arrivals(type_)[1]} : i64>")
