"""Gives sums over keys (dq) to a warpgroup of their own, so that consumers need not meet."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE, chosen, launch_registers
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.forming.rings import WARPS
from attn_mlir.backends.nvidia.forming.slicing import Slice
from attn_mlir.backends.nvidia.passes.specialize_warps import is_alone
from attn_mlir.dialects.numbers import i64, number
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk


@dataclass(frozen=True)
class _Sum:
    """What the first warpgroup of the consumers alone multiplies (`branch`), and how it gets there what all have written.

    All meet (`begin`), each writes its rows to `view`, all meet again (`end`). `count` numbers the iteration.
    """

    branch: ir.Operation
    begin: ir.Operation
    view: ir.Operation
    end: ir.Operation
    count: ir.Operation


@dataclass(frozen=True)
class SpecializeSums(Pass):
    """Splits the consumers of a kernel with a producer: what their first warpgroup alone multiplied, of weights that all have written to
    shared memory, becomes a role of one warpgroup. The weights become a ring of one stage: consumers wait until it is free, write, and
    go on; that role waits until it is full, multiplies, gives it back, and adds its sums to memory. `warp-pipeline-exchange` gives the ring
    a second stage.

    The new role gets 88 registers a thread, the consumers what is left, or what `warp.schedule` has as `consumer_registers`.

    A kernel stays as it is, with the reason in `warp.refused`, where no product is one warpgroup's alone, or something else than products
    reads what it multiplies.
    """

    name = "warp-specialize-sums"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _split)
        return True


def _split(kernel: ir.Operation) -> None:
    roles = find_all(kernel, "warp.role")
    if len(roles) != 2:
        raise Refused(f"splits the consumers beside a producer, there are {len(roles)} roles")
    producer, consumer = roles
    leads = consumer.regions[0].blocks[0].arguments[0]
    sums = [_read(op) for op in find_all(consumer, "scf.if") if is_alone(op, leads, "warp.mma_async")]
    if not sums:
        raise Refused("no product is one warpgroup's alone")
    buffer = sums[0].view.operands[0]
    inside = [op for each in sums for op in walk(each.branch)]
    if {use.owner.operation for use in buffer.uses} != {*(each.view for each in sums), *_views(inside, buffer)}:
        raise Refused("the weights that one warpgroup multiplies are used by other ops, too")
    launch, own, left = _registers(kernel, producer, consumer)
    with kernel.location, ir.InsertionPoint(producer):
        with build.named("weights_full"):
            full = build.barrier(1, WARPS * number(consumer, "warpgroups"))
        with build.named("weights_free"):
            free = build.barrier(1, WARPS)
    _make(consumer, own, sums, (buffer, full, free))
    for each in sums:
        _hand_over(each, full, free)
    kernel.attributes["registers"], consumer.attributes["registers"] = i64(launch), i64(left)


def _registers(kernel: ir.Operation, producer: ir.Operation, consumer: ir.Operation) -> tuple[int, int, int]:
    """Those of a thread at launch, of the role that makes sums, and of the consumers."""
    count, own = number(consumer, "warpgroups"), thresholds.KEY_SUM_REGISTERS[1]
    launch = launch_registers(number(kernel, "register_file"), count + 2)
    left = (launch * (count + 2) - number(producer, "registers") - own) // count // 8 * 8
    asked = chosen(kernel, "consumer_registers", 0, min(240, left))
    if asked > left:
        raise Refused(f"consumers cannot have {asked} registers: {left} are left for each thread beside a warpgroup that makes sums")
    return launch, own, asked


def _read(branch: ir.Operation) -> _Sum:
    """How weights get to a product of one warpgroup. Raises Refused where that is done in another way."""
    ops = [view.operation for view in branch.block.operations]
    before = ops[: ops.index(branch)]
    meetings = [n for n, op in enumerate(before) if op.name == "warp.named_sync" and _is_meeting(op)]
    writes = [op for op in before[meetings[0] : meetings[-1]] if op.name == "warp.write"] if meetings else []
    view = maker(writes[0].operands[1], "warp.view") if len(writes) == 1 else None
    waits = [op for op in before[: meetings[0]] if op.name == "warp.wait"] if meetings else []
    count = maker(waits[0].operands[1], "warp.stage") if waits else None
    if len(meetings) != len("ab") or view is None or count is None:
        raise Refused("what one warpgroup multiplies is written in another way than by all between two meetings")
    return _Sum(branch, before[meetings[0]], view, before[meetings[-1]], count)


def _is_meeting(op: ir.Operation) -> bool:
    made = maker(op.operands[0], "arith.constant")
    return made is not None and ir.IntegerAttr(made.attributes["value"]).value == EXCHANGE


def _views(ops: list[ir.Operation], buffer: ir.Value) -> list[ir.Operation]:
    return [op for op in ops if op.name == "warp.view" and op.operands[0] == buffer]


def _make(consumer: ir.Operation, registers: int, sums: list[_Sum], ring: tuple[ir.Value, ir.Value, ir.Value]) -> None:
    """The new role, after the consumers: a slice of these, with what else its products read in shared memory, and give back."""
    buffer, full, free = ring
    block = consumer.regions[0].blocks[0]
    inside = [op for each in sums for op in walk(each.branch)]
    factors = [maker(value, "warp.view") for op in inside if op.name == "warp.mma_async" for value in list(op.operands)[1:3]]
    stages = {view.operands[1] for view in factors if view is not None and view.operands[0] != buffer}
    frame = [op for op in find_all(consumer, "warp.wait", "warp.arrive") if op.operands[1] in stages and op not in inside]
    for barrier in {op.operands[0] for op in frame if op.name == "warp.arrive"}:
        with consumer.location:
            build.add_arrivals(barrier, WARPS)
    by_branch = {each.branch: each for each in sums}

    def special(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> bool:
        found = by_branch.get(op)
        if found is None:
            return False
        with op.location:
            count = found.count.operands[0]
            with build.named("weights_stage"):
                stage, phase = build.stage(known.get(count, count), 1)
            build.op("wait", [full, stage, phase])
            ops = [view.operation for view in op.regions[0].blocks[0].operations][:-1]
            last = max(n for n, inner in enumerate(ops) if inner.name == "warp.mma_wait")
            for n, inner in enumerate(ops):
                made = clone_op(inner, known)
                if made.name == "warp.view" and made.operands[0] == buffer:
                    made.operands[1] = stage
                if n == last:
                    build.op("arrive", [free, stage])
        return True

    kept = _kept(consumer, inside)
    part = Slice(block, [*(op for op in inside if op.name.startswith("warp.")), *frame, *(each.count for each in sums), *kept])
    attributes = {"warpgroups": 1, "warps": WARPS, "registers": registers}
    with consumer.location:
        made = ir.Operation.create(
            "warp.role",
            attributes={"sym_name": ir.StringAttr.get("sums"), **{key: i64(value) for key, value in attributes.items()}},
            regions=1,
            ip=ir.InsertionPoint.after(consumer),
        )
        argument = block.arguments[0]
        own = made.regions[0].blocks.append(argument.type, arg_locs=[argument.location])
        with ir.InsertionPoint(own):
            part.clone({argument: own.arguments[0]}, special)
    for op in kept:
        op.erase()


def _kept(consumer: ir.Operation, inside: list[ir.Operation]) -> list[ir.Operation]:
    """What threads of the consumers write down for what becomes the new role, such as its place in an order of sums."""
    read = [op.operands[0] for op in inside if op.name == "memref.load"]
    return [op for op in find_all(consumer, "warp.elect") if any(inner.operands[1] in read for inner in find_all(op, "memref.store"))]


def _hand_over(each: _Sum, full: ir.Value, free: ir.Value) -> None:
    """Lets consumers write as soon as the ring is free, tell it, and go on."""
    with each.branch.location:
        with ir.InsertionPoint(each.view), build.named("weights_stage"):
            stage, phase = build.stage(each.count.operands[0], 1)
        each.view.operands[1] = stage
        with ir.InsertionPoint(each.begin):
            build.op("wait", [free, stage, arith.XOrIOp(phase, build.index(1)).result])
        with ir.InsertionPoint(each.end):
            build.op("arrive", [full, stage])
    for op in (each.branch, each.begin, each.end):
        op.erase()
