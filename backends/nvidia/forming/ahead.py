"""Copies of a loop that all warps make together, issued iterations ahead of their use: what they need, and the loop's new form."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.numbers import i64, number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import clone_op, maker

COPIES = ("warp.copy_lanes_async", "warp.copy_rows_lanes_async")
"""Ops by which lanes copy, and which a commit makes a group."""
_NUMBERS = ("arith.", "memref.dim", "warp.view", "warp.stage")
_QUIET = (*_NUMBERS, "warp.map", "warp.reduce", "warp.load")
"""Ops that neither read shared memory nor wait."""


@dataclass(frozen=True)
class LoadPoint:
    """A load as `warp-assign-layouts` forms it: all meet, copies, a commit, a wait for them, all meet. `needed` makes their operands."""

    before: ir.Operation
    copies: list[ir.Operation]
    commit: ir.Operation
    wait: ir.Operation
    after: ir.Operation
    needed: list[ir.Operation]

    @property
    def buffers(self) -> list[ir.Value]:
        """The rings that are filled."""
        views = [maker(copy.operands[5], "warp.view") for copy in self.copies if copy.name == COPIES[0]]
        return [
            *(view.operands[0] for view in views if view is not None),
            *(copy.operands[4] for copy in self.copies if copy.name != COPIES[0]),
        ]


def points_of(loop: ir.Operation) -> list[LoadPoint]:
    """The loads that stand directly in a loop. Raises Refused for those of another form, or of what the loop computes."""
    ops = [view.operation for view in loop.regions[0].blocks[0].operations]
    return [_point(loop, ops, n) for n, op in enumerate(ops) if op.name == "warp.copy_commit"]


def _point(loop: ir.Operation, ops: list[ir.Operation], at: int) -> LoadPoint:
    first = next((n for n in range(at, -1, -1) if ops[n].name == "warp.named_sync"), None)
    behind = [op for op in ops[at + 1 :] if not op.name.startswith(_NUMBERS)][:2]
    inside = ops[first + 1 : at] if first is not None else []
    copies = [op for op in inside if op.name in COPIES]
    others = [op for op in inside if op.name not in COPIES and not op.name.startswith(_NUMBERS)]
    names = [op.name for op in behind]
    if first is None or others or not copies or names != ["warp.copy_wait", "warp.named_sync"] or number(behind[0], "pending"):
        raise Refused("copies are waited for elsewhere than behind their commit, between two meetings of all warps")
    wait, after = behind
    return LoadPoint(ops[first], copies, ops[at], wait, after, _needed(loop, ops, copies))


def _needed(loop: ir.Operation, ops: list[ir.Operation], roots: list[ir.Operation]) -> list[ir.Operation]:
    """The ops of the loop that make what copies read. Raises Refused where that is more than numbers of the iteration."""
    block, found, todo = loop.regions[0].blocks[0], set[ir.Operation](), [v for op in roots for v in op.operands]
    while todo:
        value = todo.pop()
        if isinstance(value.owner, ir.Block):
            if value.owner == block and value != block.arguments[0]:
                _check_count(loop, ir.BlockArgument(value))
            continue
        op = value.owner.operation
        if op.block != block or op in found:
            continue
        if not op.name.startswith(_NUMBERS):
            raise Refused(f"a copy depends on '{op.name}' of its iteration")
        found.add(op)
        todo += op.operands
    return [op for op in ops if op in found]


def _check_count(loop: ir.Operation, argument: ir.BlockArgument) -> None:
    """What an iteration knows ahead of what a loop carries: numbers that grow by one."""
    yielded = list(loop.regions[0].blocks[0].operations[-1].operation.operands)[argument.arg_number - 1]
    made = maker(yielded, "arith.addi")
    one = maker(made.operands[1], "arith.constant") if made is not None and made.operands[0] == argument else None
    if one is None or ir.IntegerAttr(one.attributes["value"]).value != 1:
        raise Refused("a copy depends on what the loop carries, and that is no count of iterations")


@dataclass(frozen=True)
class LoopAhead:
    """A loop whose loads are to run `ahead` iterations ahead; `together`: which are waited for at the first one of them."""

    loop: ir.Operation
    points: list[LoadPoint]
    ahead: int
    together: bool = False

    def change(self) -> None:
        """Issues the first copies before the loop, and in each iteration those of a later one, when all have met to use its own.

        Groups are committed whether an iteration exists or not: so the wait for an iteration's own copies leaves as many in flight each
        time. One meeting does for a load: behind it all see what was copied, and have left the stage that is filled next. The first copies
        need none: the stages that they fill were left before the last use of the ring, at which all met.

        Loads that are waited for together have one meeting, before the first use of any of them.
        """
        loop, flying = self.loop, len(self.points) * self.ahead
        begin, end, step, *starts = loop.operands
        index, *carried = loop.regions[0].blocks[0].arguments
        waiting = _waiting(loop)
        with loop.location, ir.InsertionPoint(loop):
            for n in range(self.ahead):
                place = _moved(begin, step, n)
                for point in self.points:
                    known = {index: place, **dict(zip(carried, starts, strict=True))}
                    self._issue(point, known, n, end)
        if waiting is not None:
            for op in waiting:
                op.move_before(loop)
            waiting[0].attributes["pending"] = i64(flying)
        behind = _behind(self.points[0].after) if self.together else None
        for point in self.points:
            place = ir.InsertionPoint(behind) if behind is not None else ir.InsertionPoint.after(point.after)
            with point.commit.location, place:
                known = {index: _moved(index, step, self.ahead)}
                self._issue(point, known, self.ahead, end)
            point.wait.attributes["pending"] = i64(flying - (len(self.points) if self.together else 1))
        for number_, point in enumerate(self.points):
            later = (point.wait, point.after) if self.together and number_ else ()
            for op in (point.before, *point.copies, point.commit, *later):
                op.erase()

    def _issue(self, point: LoadPoint, known: dict[ir.Value, ir.Value], ahead: int, end: ir.Value) -> None:
        """The copies of an iteration, if there is one, and their commit; counts are those of an iteration so many before."""
        index, *carried = self.loop.regions[0].blocks[0].arguments
        known = dict(known)
        exists = arith.CmpIOp(arith.CmpIPredicate.slt, known[index], end).result
        branch = scf.IfOp(exists)
        with ir.InsertionPoint(branch.then_block):
            for argument in carried:
                if any(argument in list(op.operands) for op in (*point.needed, *point.copies)):
                    known[argument] = _moved(known.get(argument, argument), build.index(1), ahead)
            for op in (*point.needed, *point.copies):
                clone_op(op, known)
            scf.YieldOp([])
        build.op("copy_commit")


def _behind(op: ir.Operation) -> ir.Operation:
    """The op behind another one, which does not end its block."""
    ops = [view.operation for view in op.block.operations]
    return ops[ops.index(op) + 1]


def _moved(value: ir.Value, step: ir.Value, times: int) -> ir.Value:
    """A number so many steps further on."""
    if not times:
        return value
    more = step if times == 1 else arith.MulIOp(step, build.index(times)).result
    return arith.AddIOp(value, more).result


def _waiting(loop: ir.Operation) -> tuple[ir.Operation, ir.Operation] | None:
    """The wait and the meeting of a load before a loop, if nothing between them and the loop needs what was copied."""
    ops = [view.operation for view in loop.block.operations]
    before = [op for op in ops[: ops.index(loop)] if not op.name.startswith(_QUIET)][-3:]
    if [op.name for op in before] != ["warp.copy_commit", "warp.copy_wait", "warp.named_sync"] or number(before[1], "pending"):
        return None
    return before[1], before[2]
