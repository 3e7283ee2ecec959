"""Gives the additions of sums over keys (dq) to warps of their own, beside the producer."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import ADDITIONS, THREADS, said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.forming.rings import WARPS
from attn_mlir.backends.nvidia.forming.slicing import Slice
from attn_mlir.dialects.numbers import flag, i64, number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.structure import first_free_warp, shares
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker

_LEAVING = ["warp.elect", "warp.named_sync", "warp.write", "warp.fence_async", "warp.named_sync"]
"""What `warp-stage-stores` lets a warpgroup do before one thread starts an addition."""


@dataclass(frozen=True)
class SpecializeAdditions(Pass):
    """Where warpgroups write sums to shared memory and one thread of each starts the addition to global memory, lets a warp for each do
    that (reduction warps): warps of the producer's warpgroup, which have nothing else to do. They go through the same tiles and loops.

    A warpgroup waits until its buffer is free, writes, and tells the warp so at a named barrier, at which only that waits; the warp adds,
    and gives the buffer back when the copy has read it. Nothing of an addition, such as its row, stays in the warpgroup's registers.

    It comes after `warp-stage-stores`, with `reduction_warps` in `warp.schedule`. A kernel stays as it is, with the reason in
    `warp.refused`, where sums leave in another way or have an order, or the producer's warpgroup has too few idle warps.
    """

    name = "warp-specialize-additions"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _split)
        return True


def _split(kernel: ir.Operation) -> None:
    if said(kernel, "reduction_warps", "0") == "0":
        raise Refused("the schedule lets the warps that make sums start their additions (reduction_warps)")
    roles = find_all(kernel, "warp.role")
    adding = [role for role in roles if find_all(role, "warp.add_async", "warp.atomic_add")]
    if len(adding) != 1 or find_all(adding[0], "warp.atomic_add"):
        raise Refused("sums over keys leave in another way than by asynchronous additions of one role")
    (role,), host = adding, roles[0]
    units, first = number(role, "warpgroups"), first_free_warp(host)
    if host == role or number(host, "warpgroups") != 1 or first + units > WARPS:
        raise Refused(f"the producer's warpgroup has no {units} idle warps")
    found = [_Leaving.of(op) for op in find_all(role, "warp.add_async")]
    if len({each.block for each in found}) != len(found):
        raise Refused("a loop adds several sums in an iteration")
    with kernel.location, ir.InsertionPoint(host), build.named("sums_free"):
        free = build.barrier(units, 1)
    _make(kernel, role, found, (free, first))
    for op in find_all(role, "warp.order_now"):
        op.erase()
    for each in found:
        each.hand_over(role.regions[0].blocks[0].arguments[0], free, _threads(kernel))


def _threads(kernel: ir.Operation) -> int:
    """Those at the barrier of a warpgroup and the warp that adds what it wrote."""
    return THREADS + number(kernel, "lanes")


@dataclass(frozen=True)
class _Leaving:
    """How a sum leaves: one thread `waits` until the buffer of `view` was read, all `meet`, write, and meet (`told`); one adds (`branch`).

    `count` numbers the iteration.
    """

    view: ir.Operation
    waits: ir.Operation
    meet: ir.Operation
    told: ir.Operation
    branch: ir.Operation
    count: ir.Value

    @property
    def block(self) -> ir.Block:
        """That of an iteration."""
        return self.branch.block

    @classmethod
    def of(cls, add: ir.Operation) -> "_Leaving":
        """Raises Refused for an addition that stands elsewhere than `warp-stage-stores` puts it, or has an order."""
        if flag(add, "ordered"):
            raise Refused("sums are added in a fixed order")
        branch = add.block.owner.operation
        ops = [view.operation for view in branch.block.operations]
        at = ops.index(branch) if branch in ops else 0
        before = ops[max(at - len(_LEAVING), 0) : at]
        if [op.name for op in before] != _LEAVING or not find_all(before[0], "warp.store_wait"):
            raise Refused("a sum leaves in another way than through a buffer of its warpgroup")
        waits = [op for op in ops[:at] if op.name == "warp.wait" and maker(op.operands[1], "warp.stage") is not None]
        if not waits or branch.block.owner.operation.name != "scf.for":
            raise Refused("a loop that adds sums has no ring by which it counts its iterations")
        count = waits[0].operands[1].owner.operation.operands[0]  # type: ignore[union-attr]
        view = maker(before[2].operands[1], "warp.view")
        assert view is not None
        return cls(view, before[0], before[1], before[-1], branch, count)

    def hand_over(self, warpgroup: ir.Value, free: ir.Value, threads: int) -> None:
        """Lets the warpgroup write when its buffer is free, tell so, and go on."""
        with self.branch.location:
            with ir.InsertionPoint(self.view):  # numbers first: `warp-delay-sums` moves what follows
                told = arith.AddIOp(warpgroup, build.index(ADDITIONS)).result
                _, phase = build.stage(self.count, 1)
                before = arith.XOrIOp(phase, build.index(1)).result
            with ir.InsertionPoint(self.waits):
                build.op("wait", [free, warpgroup, before])
            with ir.InsertionPoint(self.told):
                build.op("named_arrive", [told], threads=threads)
        for op in (self.waits, self.meet, self.told, self.branch):
            op.erase()


def _make(kernel: ir.Operation, role: ir.Operation, found: list[_Leaving], place: tuple[ir.Value, int]) -> None:
    """The new role: a slice of the one that makes sums. `place`: the barriers by which buffers are given back, and its first warp."""
    free, first = place
    host, block, units = find_all(kernel, "warp.role")[0], role.regions[0].blocks[0], number(role, "warpgroups")
    firsts = [view.operation for loop in find_all(role, "scf.while") for view in loop.regions[0].blocks[0].operations]
    drawn = [op for op in firsts if op.name in ("warp.wait", "warp.arrive")]
    for barrier in {op.operands[0] for op in drawn if op.name == "warp.arrive"}:
        with role.location:
            build.add_arrivals(barrier, units)
    part = Slice(block, [*drawn, *find_all(role, "warp.order_now"), *(each.branch for each in found)])
    ops = [view.operation for view in kernel.regions[0].blocks[0].operations]
    for op in [op for op in ops[ops.index(host) :] if op.name == "warp.alloc"]:
        op.move_before(host)  # buffers of later roles
    others = [each for each in find_all(kernel, "warp.role")[1:] if not shares(each)]
    numbers = {"warpgroups": units, "warps": 1, "registers": number(host, "registers"), "first_warp": first}
    with role.location, ir.InsertionPoint(others[0]):
        attributes = {"sym_name": ir.StringAttr.get("additions"), **{key: i64(value) for key, value in numbers.items()}}
        made = ir.Operation.create("warp.role", attributes=attributes, regions=1)
    argument = block.arguments[0]
    own = made.regions[0].blocks.append(argument.type, arg_locs=[argument.location])
    unit, branches, threads = own.arguments[0], {each.branch for each in found}, _threads(kernel)

    def special(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> bool:
        if op not in branches:
            return False
        with op.location:
            build.op("named_sync", [arith.AddIOp(unit, build.index(ADDITIONS)).result], threads=threads)
            with ir.InsertionPoint(build.elect()):
                for view in op.regions[0].blocks[0].operations:
                    clone_op(view.operation, known)
                build.op("store_wait", pending=0, read=True)
                build.op("arrive", [free, unit])
        return True

    with role.location, ir.InsertionPoint(own):
        part.clone({argument: unit}, special)
        with ir.InsertionPoint(build.elect()):
            build.op("store_wait", pending=0, read=False)
