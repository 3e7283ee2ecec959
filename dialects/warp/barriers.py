"""Barriers: mbarriers with phases and bytes, named barriers, the fence between ordinary and asynchronous accesses."""

from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import BarrierType, Warp
from attn_mlir.dialects.warp.kinds import comes_later, inside, stages_and_arrivals
from attn_mlir.mlir import ext, ir


class MbarrierOp(Warp.Operation, name="mbarrier"):
    """Mbarriers, initialised before the roles begin. The first phase is in progress.

    They stand before all roles: threads of a role that came earlier would wait for what is not initialised yet.
    """

    result: ext.Result[BarrierType]

    def verify_invariants(self) -> bool:
        stages, arrivals = stages_and_arrivals(self.result.type)
        early = not (inside(self, "warp.role") or comes_later(self, "warp.role"))
        return check(self, stages > 0 and arrivals > 0, f"has stages and awaits arrivals, got {stages} and {arrivals}") and check(
            self, early, "is initialised before the roles begin: it stands before all of them"
        )


class ArriveOp(Warp.Operation, name="arrive"):
    """Arrives at the barrier of a stage: in `warp.elect` once, else once for each warp, when all of its lanes are there."""

    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]


class ArriveExpectOp(Warp.Operation, name="arrive_expect"):
    """Arrives once, and announces `bytes` that copies bring in this phase. In `warp.elect`."""

    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]
    bytes: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return check(self, self.bytes.value > 0, f"announces bytes, got {self.bytes.value}") and check(
            self, inside(self, "warp.elect"), "is for one thread: it stands in 'warp.elect'"
        )


IN_TURN = "in_turn"
"""Marks a wait of one warp of a warpgroup, which takes the stage."""
FIRST_WARP = "first_warp"
"""Marks a wait of the first warp of a warpgroup."""


class WaitOp(Warp.Operation, name="wait"):
    """Waits until the phase of this parity of the barrier of a stage is over. The first phase has parity 0.

    A stage that nobody has used yet is waited for with parity 1: the phase before the first one counts as over. A warp for which nobody
    waits would miss a phase, if it were late by two: with `in_turn`, a mark, that warp alone waits which takes the stage in
    `warp.make_rows` or `warp.copy_window_async`, and with `first_warp`, another one, the warp of `warp.elect`.
    """

    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]
    phase: ext.Operand[ir.IndexType]


class StageOp(Warp.Operation, name="stage", traits=[ext.Pure]):
    """The stage of a ring's use number `count`, 0 the first, and the phase in which that use fills it: count % stages and the parity of
    count / stages. Who fills a stage waits for the other parity of the barrier that says that it is free.
    """

    count: ext.Operand[ir.IndexType]
    stages: ir.IntegerAttr
    stage: ext.Result[ir.IndexType[()]] = ext.infer_result()
    phase: ext.Result[ir.IndexType[()]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        return check(self, self.stages.value > 0, f"has stages, got {self.stages.value}")


class NamedSyncOp(Warp.Operation, name="named_sync"):
    """Waits at the named barrier with this number until `threads` have come; 0 is not for kernels to use."""

    id: ext.Operand[ir.IndexType]
    threads: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _checks_threads(self)


class NamedArriveOp(Warp.Operation, name="named_arrive"):
    """Comes to the named barrier with this number, and does not wait for the `threads` that it needs."""

    id: ext.Operand[ir.IndexType]
    threads: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _checks_threads(self)


def _checks_threads(op: NamedSyncOp | NamedArriveOp) -> bool:
    """Named barriers count whole warps."""
    threads = op.threads.value
    return check(op, threads > 0 and threads % 32 == 0, f"counts threads of whole warps, got {threads}")


class FenceAsyncOp(Warp.Operation, name="fence_async"):
    """Makes ordinary writes of this thread to shared memory visible to asynchronous copies and products."""
