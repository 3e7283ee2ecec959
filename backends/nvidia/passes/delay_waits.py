"""Lets products of a loop fly until something needs them: waits move behind what does not."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk

_FREE = ("arith.", "math.", "memref.dim", "memref.load", "tensor.extract", "scf.yield", "warp.yield")
_CROSSED = (
    *("map", "reduce", "columns", "view", "stage", "registers", "mma_begin", "mma_async", "mma_commit"),
    *("fence_async", "write", "write_transposed", "read_transposed", "named_sync", "wait", "arrive", "atomic_add", "order_now"),
    *("hold", "store_async", "store_commit", "store_wait", "store_lanes", "sum_columns", "write_diagonal", "store_sums"),
)
_LEAVING = (
    *("warp.elect", "warp.map", "warp.yield", "warp.stage", "warp.arrive"),
    *("warp.store_async", "warp.store_commit", "warp.store_wait", "warp.store_lanes", "warp.store_sums"),
)
"""What may stand in a condition."""
_KNOWN = ("scf.if", "warp.elect", *(f"warp.{name}" for name in _CROSSED))
_WRITES = ("warp.write", "warp.write_transposed")


@dataclass(frozen=True)
class DelayWaits(Pass):
    """In loops of several products that are each waited for at once, moves every `warp.mma_wait` to where its fragment is needed first.

    What gives a stage back behind a wait (`warp.arrive`) moves along, as the product reads the stage until then. A wait stays before the
    next wait, before what gives such a stage back in a condition, before a write to memory that its product reads, before a meeting of
    warpgroups where they write such memory, and, where a stage is given back behind it, before waits for other stages: their copies may
    need that stage. `pending` is what was committed since.

    A kernel stays as it is, with the reason in `warp.refused`, where no loop has several such products.
    """

    name = "warp-delay-waits"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _delay)
        return True


def _delay(kernel: ir.Operation) -> None:
    blocks = [loop.regions[0].blocks[0] for loop in find_all(kernel, "scf.for")]
    written = {buffer for op in find_all(kernel, *_WRITES) for buffer in _buffers(op.operands[1])}
    copied = {op.operands[0] for op in find_all(kernel, "warp.arrive_expect")}
    change_parts(blocks, lambda block: _change(block, written, copied), "no loop multiplies")


def _change(block: ir.Block, written: set[ir.Value], copied: set[ir.Value]) -> None:
    """Delays the waits of a block. Raises Refused where there are fewer than two, or some products are in flight together already."""
    waits = [op for op in _ops(block) if op.name == "warp.mma_wait"]
    if len(waits) < 2:
        raise Refused("no loop has several products")
    if any(ir.IntegerAttr(op.attributes["pending"]).value for op in waits):
        raise Refused("products are in flight together already")
    if any(maker(op.operands[0], "warp.mma_async") is None or op.operands[0].owner.operation.block != block for op in waits):
        raise Refused("a loop waits for products that were started outside of it")
    for wait in reversed(waits):
        _sink(wait, written, copied)
    for wait in waits:
        ops = _ops(block)
        begin = ops.index(wait.operands[0].owner.operation)
        commits = sum(op.name == "warp.mma_commit" for op in ops[begin : ops.index(wait)])
        wait.attributes["pending"] = i64(commits - 1)


def _sink(wait: ir.Operation, written: set[ir.Value], copied: set[ir.Value]) -> None:
    """Moves a wait, and the arrivals that come to stand behind it, down as far as possible."""
    product = wait.operands[0].owner.operation
    views = [view for operand in list(product.operands)[1:3] for view in _views(operand)]
    unit = [wait]
    ops = _ops(wait.block)
    behind = ops[ops.index(wait) + 1 :]
    for before, op in zip([wait, *behind], behind, strict=False):
        if op.name == "warp.arrive" and before.name != "warp.fence_async":  # behind a fence, it tells what was written
            unit.append(op)
        elif _holds(op, wait, views, written, copied if len(unit) > 1 else set()):
            break
        else:
            for each in reversed(unit):
                each.move_after(op)


def _holds(op: ir.Operation, wait: ir.Operation, views: list[ir.Operation], written: set[ir.Value], held: set[ir.Value]) -> bool:
    """Whether a wait stays before an op.

    `views`: what its product reads in shared memory. `held`: the barriers whose copies may need a stage that is given back with it.
    """
    inner, read, stages = [op, *walk(op)], {view.operands[0] for view in views}, {view.operands[1] for view in views}
    if any(wait.results[0] in list(each.operands) for each in inner) or op.name in ("scf.yield", "scf.for"):
        return True
    if op.name == "warp.elect" and not all(each.name.startswith((*_FREE, "warp.store_")) for each in walk(op)):
        return True
    if any(not each.name.startswith(_FREE) and each.name not in _KNOWN for each in inner):
        return True
    if op.name == "scf.if" and any(each.name.startswith("warp.") and each.name not in _LEAVING for each in inner):
        return True
    if any(each.name == "warp.arrive" and each.operands[1] in stages for each in inner[1:]):
        return True  # one in a condition does not move along
    names = {each.name for each in inner}
    if any(read & _buffers(each.operands[1]) for each in inner if each.name in _WRITES):
        return True
    if any(each.name == "warp.wait" and each.operands[0] in held for each in inner):
        return True
    return "warp.named_sync" in names and bool(read & written)


def _buffers(value: ir.Value) -> set[ir.Value]:
    """The buffers in shared memory in which a tile lies; none of registers."""
    return {view.operands[0] for view in _views(value)}


def _views(value: ir.Value) -> list[ir.Operation]:
    """Those of shared memory that a tile is made of."""
    op = maker(value, "warp.view", "warp.concat", "warp.hold")
    if op is None:
        return []
    parts = list(op.operands)[: 1 if op.name == "warp.hold" else None]
    return [op] if op.name == "warp.view" else [view for part in parts for view in _views(part)]


def _ops(block: ir.Block) -> list[ir.Operation]:
    return [view.operation for view in block.operations]
