"""Ordinary accesses to global memory: row values, tiles, additions, and the order of additions that keeps their bits."""

from typing import Any

from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import Warp
from attn_mlir.dialects.warp.kinds import checks_ordered, in_form, inside, is_global, padded
from attn_mlir.mlir import ext, ir


def _checks_sums(op: ir.OpView, fragment: ir.Type, memory: ir.Type) -> bool:
    """A tile and a memref [B, H, S, D], maybe in slots, or row values and a memref [B, H, S], of one element type."""
    tile, rows = in_form(fragment, "tile"), in_form(fragment, "rows")
    of_tile = tile is not None and is_global(memory, 4, 5) and tile.shape[1] <= memory.shape[-1]
    fits = of_tile or (rows is not None and is_global(memory, 3))
    fits = fits and fragment.element_type == memory.element_type
    return check(op, fits, f"adds a tile to [B, H, S, D] or row values to [B, H, S], got {fragment} and {memory}")


def _checks_place(op: ir.OpView, fragment: ir.Type, memory: ir.Type) -> bool:
    """A tile and a memref [B, H, S, D], whose D may not be known, or row values and a memref [B, H, S], of one element type.

    Tiles that are `padded` have more columns.
    """
    tile, rows = in_form(fragment, "tile"), in_form(fragment, "rows")
    unknown = ir.ShapedType.get_dynamic_size()
    of_tile = (
        tile is not None
        and is_global(memory, 4)
        and (memory.shape[3] == unknown or tile.shape[1] in (memory.shape[3], padded(memory.shape[3])))
    )
    fits = of_tile or (rows is not None and is_global(memory, 3))
    fits = fits and fragment.element_type == memory.element_type
    return check(op, fits, f"moves a tile [B, H, S, D] or row values [B, H, S], got {fragment} and {memory}")


class LoadOp(Warp.Operation, name="load"):
    """A tile or row values, from `row` on, of `source[batch, head]`; those past the end are zeros, as are columns past the last one."""

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _checks_place(self, self.result.type, self.source.type)


class StoreOp(Warp.Operation, name="store"):
    """A tile or row values go to `target[batch, head]`, from `row` on; those past the end do not, nor do columns past the last one."""

    fragment: ext.Operand[Any]
    target: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        return _checks_place(self, self.fragment.type, self.target.type)


class AtomicAddOp(Warp.Operation, name="atomic_add"):
    """A tile or row values are added to `target[batch, head]`, from `row` and `column` on, element by element, in any order.

    Rows past the end are not added; row values have no column, it is 0. Of a target in slots, [slots, B, H, S, D], it is the first one.
    `ordered`: other additions to these elements come before or after it, as `warp.order_wait` and `warp.order_pass` say.
    """

    fragment: ext.Operand[Any]
    target: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    ordered: Any

    def verify_invariants(self) -> bool:
        return checks_ordered(self) and _checks_sums(self, self.fragment.type, self.target.type)


class OrderWaitOp(Warp.Operation, name="order_wait"):
    """Waits until `counters[index]`, in global memory, is `number`: what was added before another thread block set it comes before.

    In `warp.elect` one thread waits, else every warp.
    """

    counters: ext.Operand[Any]
    index: ext.Operand[ir.IndexType]
    number: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        return _checks_counters(self)


class OrderPassOp(Warp.Operation, name="order_pass"):
    """Sets `counters[index]` to `number`: what this thread has seen added is done, the one that waits for the number goes on."""

    counters: ext.Operand[Any]
    index: ext.Operand[ir.IndexType]
    number: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        return _checks_counters(self) and check(self, inside(self, "warp.elect"), "is for one thread: it stands in 'warp.elect'")


class OrderNowOp(Warp.Operation, name="order_now"):
    """The number that `counters[index]`, in global memory, has: what was done before another thread block set it comes before.

    `warp.claim` asks again, if it is not 2: so it may be asked for long before.
    """

    counters: ext.Operand[Any]
    index: ext.Operand[ir.IndexType]
    result: ext.Result[ir.IndexType[()]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        return _checks_counters(self)


class ClaimOp(Warp.Operation, name="claim"):
    """Whether this thread block is the first one at `counters[index]`, which is 0 then, and becomes 1: it stores, where others add.

    Others wait until the counter is 2, which the first one sets when its store is done (`warp.order_pass`): that comes before. Who finds
    that it is (`now`, of `warp.order_now`) neither asks nor waits. Between the two, the first one waits for nobody.
    """

    counters: ext.Operand[Any]
    index: ext.Operand[ir.IndexType]
    now: ext.Operand[ir.IndexType]
    result: ext.Result[ir.IntegerType[1]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        return _checks_counters(self) and check(self, inside(self, "warp.elect"), "is for one thread: it stands in 'warp.elect'")


def _checks_counters(op: OrderWaitOp | OrderPassOp | OrderNowOp | ClaimOp) -> bool:
    """Counters are integers in global memory."""
    type_ = op.counters.type
    return check(op, is_global(type_, 1) and str(type_.element_type) == "i32", f"counts in a memref<?xi32> of global memory, got {type_}")
