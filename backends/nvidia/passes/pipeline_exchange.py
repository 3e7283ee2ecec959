"""Gives what warpgroups exchange through shared memory a second stage, so that they meet once an iteration instead of twice."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk

_STAGES = 2
_BARRIERS = 1024
"""Bytes of shared memory that barriers and single numbers may take beside buffers."""


@dataclass(frozen=True)
class Exchange:
    """What a loop does once an iteration: all meet, each writes its rows of a buffer, all meet, and products read all rows.

    `wait` is the first one of the iteration for the stage of a ring, whose count tells the iterations of all loops apart.
    """

    meeting: ir.Operation
    buffer: ir.Value
    views: list[ir.Operation]
    wait: ir.Operation


@dataclass(frozen=True)
class PipelineExchange(Pass):
    """Makes two stages of the buffer by which the warpgroups of a role exchange weights, and erases the meeting before they write to it:
    a stage was read an iteration before the last, by products that each has waited for before all met in the last one. Where another role
    multiplies the weights (`warp-specialize-sums`), the buffer is a ring, which gets two stages.

    It comes behind `warp-stage-stores`, when it is known what else lies in shared memory. A kernel stays as it is, with the reason in
    `warp.refused`, where nothing is exchanged, loops exchange something else or more than once, or shared memory has no room.
    """

    name = "warp-pipeline-exchange"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _deepen)
        return True


def _deepen(kernel: ir.Operation) -> None:
    if ring := _ring(kernel):
        rings.deepen(kernel, dict.fromkeys(ring, _STAGES))
        return
    blocks = {op.block: None for op in find_all(kernel, "warp.named_sync") if _is_meeting(op)}
    found = [_read(block) for block in blocks]
    if not found:
        raise Refused("no warpgroups exchange anything")
    if len({exchange.buffer for exchange in found}) > 1 or len({exchange.wait.operands[0] for exchange in found}) > 1:
        raise Refused("loops exchange through different buffers, or wait for different rings")
    buffer = found[0].buffer
    if {use.owner.operation for use in buffer.uses} != {view for exchange in found for view in exchange.views}:
        raise Refused("the buffer of an exchange is used by other ops than these loops")
    used = sum(bytes_of(op.results[0].type) for op in find_all(kernel, "warp.alloc"))
    more, limit = bytes_of(buffer.type), number(kernel, "shared_limit") - _BARRIERS
    if used + more > limit:
        raise Refused(f"a second stage takes {more} bytes beside {used}, there are {limit}")
    rings.deepen(kernel, {buffer: _STAGES})
    for exchange in found:
        _alternate(exchange)


def _ring(kernel: ir.Operation) -> set[ir.Value]:
    """The buffer and the barriers of a ring of one stage that warpgroups write to, for a role of its own (`warp-specialize-sums`).

    Raises Refused where they are counted together with another ring of one stage, as that of queries: more of these is not asked for.
    """
    for op in find_all(kernel, "warp.write"):
        view = maker(op.operands[1], "warp.view")
        if view is None or maker(view.operands[1], "warp.stage") is None or rings.stages_of(view.operands[0].type) != 1:
            continue
        own = set(walk(next(role for role in find_all(kernel, "warp.role") if op in walk(role))))
        reads = [use.owner.operation for use in view.operands[0].uses if use.owner.operation not in own]
        found = {user.operands[0] for read in reads or [view] for user in _of_stage(read.operands[1])}
        stages = {stage for value in found for use in value.uses for stage in use.owner.operation.operands if maker(stage, "warp.stage")}
        if any(user.operands[0] not in found for stage in stages for user in _of_stage(stage)):
            raise Refused("weights for a role of its own are counted together with another ring of one stage (stages)")
        return found
    return set()


def _of_stage(stage: ir.Value) -> list[ir.Operation]:
    """The ops that use a buffer or barriers at a stage, their first operand."""
    users = [use.owner.operation for use in stage.uses]
    return [user for user in users if user.name in ("warp.view", "warp.wait", "warp.arrive")]


def _is_meeting(op: ir.Operation) -> bool:
    made = maker(op.operands[0], "arith.constant")
    return made is not None and ir.IntegerAttr(made.attributes["value"]).value == EXCHANGE


def _read(block: ir.Block) -> Exchange:
    """The exchange of a loop. Raises Refused where there are others, or products that read it are in flight at its end."""
    ops = [view.operation for view in block.operations]
    meetings = [n for n, op in enumerate(ops) if op.name == "warp.named_sync" and _is_meeting(op)]
    writes = [op for op in ops[meetings[0] : meetings[-1]] if op.name == "warp.write"]
    waits = [op for op in ops[: meetings[0]] if op.name == "warp.wait" and maker(op.operands[1], "warp.stage") is not None]
    view = maker(writes[0].operands[1], "warp.view") if len(writes) == 1 else None
    if len(meetings) != len("ab") or view is None or not waits or rings.stages_of(view.operands[0].type) != 1:
        raise Refused("a loop exchanges more than once, or has no ring by which it counts its iterations")
    buffer = view.operands[0]
    views = [op for op in ops if op.name == "warp.view" and op.operands[0] == buffer]
    started = [use.owner.operation for each in views if each != view for use in each.results[0].uses]
    if any(op.name != "warp.mma_async" or any(use.owner.operation not in ops for use in op.results[0].uses) for op in started):
        raise Refused("what is exchanged is read by other ops than products that an iteration waits for")
    return Exchange(ops[meetings[0]], buffer, views, waits[0])


def _alternate(exchange: Exchange) -> None:
    """Lets a loop use the stages in turn, and meet once."""
    count = exchange.wait.operands[1].owner.operation.operands[0]  # type: ignore[union-attr]
    with exchange.wait.location, ir.InsertionPoint(exchange.wait):
        stage, _ = build.stage(count, _STAGES)
    for view in exchange.views:
        view.operands[1] = stage
    exchange.meeting.erase()
