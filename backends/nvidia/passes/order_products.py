"""Lets a product that is only added to a sum fly while the result of another one leaves."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker


@dataclass(frozen=True)
class OrderProducts(Pass):
    """In loops, starts a product whose result is added to global memory (`warp.atomic_add`) before the last of those in front of it that
    a loop only carries on: nothing waits for such a sum in its iteration, so that it flies while the other result leaves.

    What gives a stage back behind the moved product (`warp.arrive`) moves along. Runs before `warp-delay-waits`, which lets products fly,
    while each is still waited for at once. A kernel stays as it is, with the reason in `warp.refused`, where no loop has two such products.
    """

    name = "warp-order-products"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _order)
        return True


def _order(kernel: ir.Operation) -> None:
    arrivals = [op for op in find_all(kernel, "warp.arrive") if _tells(op)]
    change_parts([*find_all(kernel, "warp.atomic_add"), *arrivals], _change, "no loop adds a product to global memory")


def _tells(arrival: ir.Operation) -> bool:
    """Whether an arrival tells another role what was written."""
    ops = [view.operation for view in arrival.block.operations]
    at = ops.index(arrival)
    return at > 0 and ops[at - 1].name == "warp.fence_async" and ops[-1].name == "scf.yield"


def _change(op: ir.Operation) -> None:
    """Moves the product of a sum behind the one that is added, or behind an arrival. Raises Refused, with nothing changed."""
    ops = [view.operation for view in op.block.operations]
    place = op if op.name == "warp.arrive" else maker(op.operands[0], "warp.mma_wait")
    if place is None or place not in ops or ops[-1].name != "scf.yield":
        raise Refused("what is added to global memory is no product of its loop")
    sums = [each for each in ops[: ops.index(place)] if each.name == "warp.mma_wait" and _is_carried(each, ops[-1])]
    if not sums:
        raise Refused("no product before it is added to a sum that the loop carries")
    unit = _unit(sums[-1], ops)
    if any(ir.IntegerAttr(each.attributes["pending"]).value for each in ops if each.name == "warp.mma_wait"):
        raise Refused("products are in flight together already")
    for each in reversed(unit):
        each.move_after(place)


def _is_carried(wait: ir.Operation, yielding: ir.Operation) -> bool:
    """Whether a product is added to what the loop carries, and the loop hands the sum on, unread."""
    started = maker(wait.operands[0], "warp.mma_async")
    uses = [use.owner.operation for use in wait.results[0].uses]
    return started is not None and isinstance(started.operands[0].owner, ir.Block) and uses == [yielding]


def _unit(wait: ir.Operation, ops: list[ir.Operation]) -> list[ir.Operation]:
    """From the begin of a product to its wait, and the stages that are given back behind it. Raises Refused for other ops between."""
    end = ops.index(wait)
    begin = max(n for n, op in enumerate(ops[:end]) if op.name == "warp.mma_begin")
    last = next(n for n, op in enumerate(ops[end + 1 :], end + 1) if op.name != "warp.arrive")
    unit = ops[begin:last]
    if [op.name for op in unit[: end - begin]] != ["warp.mma_begin", "warp.mma_async", "warp.mma_commit"]:
        raise Refused("other ops stand between the start of a product and its wait")
    return unit
