"""Multiplies the weights that warpgroups exchange an iteration later, so that they do not meet in the middle of one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.carrying import carry
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE, PING_PONG, THREADS, said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.numbers import flag, number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk

_STAGES = 2
_LATE, _AUTO = "late", "auto"
_PURE = ("arith.", "warp.view", "memref.dim")
_NUMBERS = ("arith.", "warp.stage")
_LEAVING = ("warp.view", "warp.elect", "warp.named_sync", "warp.wait", "warp.write", "warp.fence_async", "warp.named_arrive")
"""Ops by which a fragment leaves through shared memory (`warp-stage-stores`, `warp-specialize-additions`)."""
_ENDS = ("warp.add_async", "warp.named_arrive")
"""The last of them: an addition, or what tells who adds."""


@dataclass(frozen=True)
class DelayedExchange:
    """What a loop does with weights: each warpgroup writes its rows to a `stage`, all meet, and each multiplies all rows, which it sees
    in `read`, waits for the product, and lets the sums `leave`. `moving` are the numbers of the iteration that this needs.
    """

    write: ir.Operation
    stage: ir.Operation
    meeting: ir.Operation
    read: ir.Operation
    product: ir.Operation
    wait: ir.Operation
    leave: list[ir.Operation]
    moving: list[ir.Value]


@dataclass(frozen=True)
class DelaySums(Pass):
    """In loops by whose iterations warpgroups exchange weights, and each multiplies those of all and adds the product to global memory,
    lets it multiply what was written in the iteration before. Warpgroups meet no more: the buffer of the weights becomes a ring of two
    stages, which a warpgroup fills when the others have multiplied what was there. They may be half an iteration apart, so that one
    multiplies while another computes exponentials.

    What the addition needs of its iteration is carried to the next one, through all loops of a tile; after the last of them, the last
    weights are multiplied. In the first iteration there are none: its product, of keys instead, is dropped.

    It comes after `warp-pipeline-exchange`, which gives the buffer two stages. It is done where `key_sums` in `warp.schedule` is
    "late", as in the Hopper emitter's plan for 128 columns; kernels that GPUs are given by default do not take that over. A kernel
    stays as it is, with the reason in `warp.refused`, where loops exchange something in another way, or sums have an order.
    """

    name = "warp-delay-sums"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _delay)
        return True


def _delay(kernel: ir.Operation) -> None:
    asked = said(kernel, "key_sums", _AUTO)
    if asked != _LATE:
        raise Refused(f"the schedule makes sums over keys in the iteration of their weights (key_sums = '{asked}')")
    meetings = [op for op in find_all(kernel, "warp.named_sync") if _is_meeting(op)]
    if not meetings:
        raise Refused("no warpgroups exchange anything")
    found = [_read(op) for op in meetings]
    role = next(role for role in find_all(kernel, "warp.role") if meetings[0] in walk(role))
    block, loops = _loops([op.block for op in meetings])
    outside = _Outside(block)
    found = [_with_moving(each, outside) for each in found]
    if len({tuple(op.name for op in each.leave) for each in found}) > 1 or len({len(each.moving) for each in found}) > 1:
        raise Refused("loops add sums in different ways")
    arrivals = rings.WARPS * number(role, "warpgroups")
    how: _Telling
    if said(kernel, "named", "0") != "0":
        if number(role, "warpgroups") != _STAGES:
            raise Refused("named barriers tell two warpgroups of weights, no other number (named)")
        how = _Named(role.regions[0].blocks[0].arguments[0])
        with role.location:
            how.frame(role)
    else:
        # Before all roles: the threads that initialise barriers are the first role's, and all threads meet before it begins.
        with role.location, ir.InsertionPoint(find_all(kernel, "warp.role")[0]):
            with build.named("weights_full"):
                full = build.barrier(_STAGES, arrivals)
            with build.named("weights_free"):
                free = build.barrier(_STAGES, arrivals)
        how = _Barriers(full, free)
    first = next(op for view in block.operations if (op := view.operation) in loops)
    with first.location, ir.InsertionPoint(first):
        start = [build.index(-1), *(build.index(0) for _ in found[0].moving)]
    last = found[-1]
    buffer, _, *place = last.read.operands
    end = _Last(last, outside, (buffer, place[0], place[1]), last.read.results[0].type, [])

    def change(body: ir.Block, state: list[ir.Value]) -> list[ir.Value] | None:
        mine = next((each for each in found if each.write.block == body), None)
        if mine is None:
            return None
        mine = _with_moving(mine, outside)  # arguments of loops that were made again
        handed = [mine.stage.operands[0], *mine.moving]
        _change(mine, state, how)
        if mine.write == last.write:
            end.carried = state
        return handed

    with role.location:
        state = carry(block, loops, start, change)
        with last.write.location, ir.InsertionPoint.after(state[0].owner):
            end.finish(state, how)


@dataclass(frozen=True)
class _Barriers:
    """By which warpgroups tell each other that a stage is written ("full"), or multiplied ("free"): mbarriers."""

    full: ir.Value
    free: ir.Value

    def wait(self, which: str, stage: ir.Value, phase: ir.Value) -> None:
        """For the weights of a use, whose phase this is; before a stage is written, for the use before."""
        own = phase if which == "full" else arith.XOrIOp(phase, build.index(1)).result
        build.op("wait", [getattr(self, which), stage, own])

    def tell(self, which: str, stage: ir.Value) -> None:
        """That this warpgroup has written, or multiplied."""
        build.op("arrive", [getattr(self, which), stage])


@dataclass(frozen=True)
class _Named:
    """The same of two warpgroups, by named barriers: at one of each stage and warpgroup, this waits, and the other one arrives."""

    warpgroup: ir.Value

    def _at(self, which: str, stage: ir.Value, other: bool) -> ir.Value:
        """The number of the barrier at which this warpgroup waits, or the `other` one."""
        own = arith.SubIOp(build.index(1), self.warpgroup).result if other else self.warpgroup
        first = build.index(EXCHANGE if which == "full" else PING_PONG)
        twice = arith.MulIOp(stage, build.index(_STAGES)).result
        return arith.AddIOp(arith.AddIOp(twice, own).result, first).result

    def wait(self, which: str, stage: ir.Value, phase: ir.Value) -> None:
        """For what the other one has told last."""
        build.op("named_sync", [self._at(which, stage, False)], threads=2 * THREADS)

    def tell(self, which: str, stage: ir.Value) -> None:
        """The other one, that this has written, or multiplied."""
        build.op("named_arrive", [self._at(which, stage, True)], threads=2 * THREADS)

    def frame(self, role: ir.Operation) -> None:
        """Both stages are free at first; at the end, what was told last is heard."""
        block = role.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            for stage in range(_STAGES):
                self.tell("free", build.index(stage))
        with ir.InsertionPoint(block):
            for stage in range(_STAGES):
                self.wait("free", build.index(stage), self.warpgroup)


_Telling = _Barriers | _Named


def _is_meeting(op: ir.Operation) -> bool:
    return constant(op.operands[0]) == EXCHANGE


def _read(meeting: ir.Operation) -> DelayedExchange:
    """The exchange of a loop. Raises Refused where it has another form."""
    ops = [view.operation for view in meeting.block.operations]
    at = ops.index(meeting)
    if sum(op.name == "warp.named_sync" and _is_meeting(op) for op in ops) != 1:
        raise Refused("warpgroups meet more than once an iteration: what they exchange has one stage")
    writes = [op for op in ops[:at] if op.name == "warp.write"]
    own = maker(writes[-1].operands[1], "warp.view") if writes else None
    stage = maker(own.operands[1], "warp.stage") if own is not None else None
    if own is None or stage is None or rings.stages_of(own.operands[0].type) != _STAGES:
        raise Refused(f"what warpgroups exchange is in no buffer of {_STAGES} stages")
    views = [op for op in ops[at:] if op.name == "warp.view" and op.operands[0] == own.operands[0]]
    uses = [use.owner.operation for view in views for use in view.results[0].uses]
    if len(uses) != 1 or uses[0].name != "warp.mma_async" or uses[0].operands[1] != views[0].results[0] or uses[0].block != meeting.block:
        raise Refused("what warpgroups exchange is read by others than one product of each")
    product = uses[0]
    start = ops.index(product)
    around = [op.name for op in (*ops[start - 1 : start], *ops[start + 1 : start + 2])]
    waits = [use.owner.operation for use in product.results[0].uses]
    right = maker(product.operands[2], "warp.view")
    if around != ["warp.mma_begin", "warp.mma_commit"] or len(waits) != 1 or waits[0].name != "warp.mma_wait" or right is None:
        raise Refused("the product of exchanged weights is no group of its own")
    if right.results[0].type != views[0].results[0].type:
        raise Refused("exchanged weights have another form than the keys, which stand for them in the first iteration")
    leave = _leaving(ops, waits[0])
    return DelayedExchange(writes[-1], stage, meeting, views[0], product, waits[0], leave, [])


def _leaving(ops: list[ir.Operation], wait: ir.Operation) -> list[ir.Operation]:
    """How sums leave: the ops from the wait for their product to the start of the addition. Raises Refused of other ways."""
    behind = ops[ops.index(wait) + 1 :]
    adds = [n for n, op in enumerate(behind) if any(inner.name in _ENDS for inner in (op, *walk(op)))]
    found = [op for op in behind[: adds[0] + 1] if not op.name.startswith(_NUMBERS)] if adds else []
    if not found or any(op.name not in _LEAVING for op in found):
        raise Refused("sums do not leave by TMA, where they are made")
    if any(flag(inner, "ordered") for inner in walk(found[-1])):
        raise Refused("sums are added in a fixed order")
    made = {value for op in found for value in op.results}
    if any(use.owner.operation not in {inner for op in found for inner in (op, *walk(op))} for value in made for use in value.uses):
        raise Refused("something else needs what sums leave through")
    return found


def _loops(blocks: Sequence[ir.Block]) -> tuple[ir.Block, list[ir.Operation]]:
    """The block of a tile, and the loops from there to some blocks. Raises Refused where something else than loops is between."""
    loops: list[ir.Operation] = []
    tops: list[ir.Block] = []
    for block in blocks:
        owner = block.owner.operation
        while owner.name == "scf.for":
            loops.append(owner)
            block, owner = owner.block, owner.block.owner.operation
        tops.append(block)
    if any(top != tops[0] for top in tops) or tops[0] in blocks or tops[0].owner.operation.name == "scf.if":
        raise Refused("weights are exchanged elsewhere than in loops of a tile")
    return tops[0], loops


class _Outside:
    """What is there before the loops of a tile, whose ops are those of a block."""

    def __init__(self, block: ir.Block) -> None:
        self.blocks = [block]
        while (owner := self.blocks[-1].owner.operation).name != "warp.kernel":
            self.blocks.append(owner.block)
        self.blocks += [each for region in owner.regions for each in region.blocks]

    def knows(self, value: ir.Value) -> bool:
        """Whether a value is made outside of the loops."""
        return (value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block) in self.blocks

    def steady(self, value: ir.Value) -> bool:
        """Whether it is the same in all iterations: computed of nothing else."""
        if self.knows(value):
            return True
        made = maker(value)
        return made is not None and made.name.startswith(_PURE) and all(self.steady(operand) for operand in made.operands)


def _needed(each: DelayedExchange) -> list[ir.Value]:
    """What the product of exchanged weights, and how its sums leave, take from elsewhere."""
    inside = [inner for op in each.leave for inner in (op, *walk(op))]
    made = {*each.wait.results, *(value for op in inside for value in op.results)}
    taken = [each.product.operands[2], *(value for op in inside for value in op.operands)]
    return [value for value in dict.fromkeys(taken) if value not in made]


def _with_moving(each: DelayedExchange, outside: _Outside) -> DelayedExchange:
    moving = [value for value in _needed(each) if not outside.steady(value)]
    if any(not isinstance(value.type, ir.IndexType) for value in moving):
        raise Refused("an addition needs more of its iteration than numbers")
    return replace(each, moving=moving)


def _before(count: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Whether there are weights of the use `count`; their stage, and its phase."""
    some = arith.CmpIOp(arith.CmpIPredicate.sge, count, build.index(0)).result
    with build.named("weights_stage"):
        return (some, *build.stage(count, _STAGES))


def _change(each: DelayedExchange, state: list[ir.Value], how: _Telling) -> None:
    """Lets a loop multiply the weights of the iteration before, whose numbers are `state`."""
    count, *before = state
    with each.write.location, ir.InsertionPoint(each.write):
        # The others have multiplied what they wrote two iterations before.
        how.wait("free", *each.stage.results)
    with each.meeting.location, ir.InsertionPoint(each.meeting):
        how.tell("full", each.stage.results[0])
    ops = [view.operation for view in each.product.block.operations]
    with each.product.location, ir.InsertionPoint(ops[ops.index(each.product) - 1]):
        some, stage, phase = _before(count)
        tile = each.read.results[0].type
        branch = scf.IfOp(some, [tile], has_else=True)
        with ir.InsertionPoint(branch.then_block):
            how.wait("full", stage, phase)
            buffer, _, row, column = each.read.operands
            scf.YieldOp([build.op("view", [buffer, stage, row, column], [tile]).result])
        with ir.InsertionPoint(branch.else_block):
            # Something that nobody writes meanwhile: the product is dropped.
            scf.YieldOp([build.op("view", list(each.product.operands[2].owner.operation.operands), [tile]).result])  # type: ignore[union-attr]
    each.product.operands[1] = branch.results_[0]
    with each.wait.location, ir.InsertionPoint(each.leave[0]):
        own = scf.IfOp(some)
        with ir.InsertionPoint(own.then_block):
            how.tell("free", stage)
            end = scf.YieldOp([])
    known = dict(zip(each.moving, before, strict=True))
    for op in each.leave:
        op.move_before(end.operation)
        for inner in (op, *walk(op)):
            for n, operand in enumerate(inner.operands):
                if operand in known:
                    inner.operands[n] = known[operand]
    each.meeting.erase()
    each.read.erase()


@dataclass
class _Last:
    """What an exchange does with the weights of the last iteration, after the loops. `carried`: the numbers in its loop."""

    each: DelayedExchange
    outside: _Outside
    place: tuple[ir.Value, ir.Value, ir.Value]
    """The buffer of weights, and the first row and column of what is multiplied."""
    tile: ir.Type
    carried: list[ir.Value]

    def finish(self, state: list[ir.Value], how: _Telling) -> None:
        """Multiplies the last weights of a tile, whose numbers are `state`, and lets the sums leave."""
        count, *before = state
        known = dict(zip(self.carried[1:], before, strict=True))
        some, stage, phase = _before(count)
        branch = scf.IfOp(some)
        with ir.InsertionPoint(branch.then_block):
            how.wait("full", stage, phase)
            buffer, row, column = (self._again(value, known) for value in self.place)
            weights = build.op("view", [buffer, stage, row, column], [self.tile]).result
            product, type_ = self.each.product, self.each.wait.results[0].type
            keys = self._again(product.operands[2], known)
            registers = build.op("registers", results=[type_]).result
            never = arith.ConstantOp(ir.IntegerType.get_signless(1), 0).result
            build.op("mma_begin")
            first, second = (ir.BoolAttr(product.attributes[name]).value for name in ("transpose_a", "transpose_b"))
            pending = build.mma_async(registers, weights, keys, never, (first, second))
            build.op("mma_commit")
            known[self.each.wait.results[0]] = build.mma_wait(pending, type_, 0)
            how.tell("free", stage)
            for op in self.each.leave:
                for operand in [value for inner in (op, *walk(op)) for value in inner.operands]:
                    self._again(operand, known)
                clone_op(op, known)
            scf.YieldOp([])

    def _again(self, value: ir.Value, known: dict[ir.Value, ir.Value]) -> ir.Value:
        """A value of the loops that is the same in all iterations, computed here."""
        if value not in known and not self.outside.knows(value) and not isinstance(value.owner, ir.Block):
            op = value.owner.operation
            if op.name.startswith(_PURE):
                for operand in op.operands:
                    self._again(operand, known)
                clone_op(op, known)
        return known.get(value, value)
