"""Asynchronous copies between global memory and shared memory or registers. Tensors are [B, H, S, D]."""

from typing import Any

from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.verify import check, entry_block, terminator
from attn_mlir.dialects.warp.dialect import BarrierType, PendingType, Warp
from attn_mlir.dialects.warp.kinds import bytes_of, checks_ordered, in_form, inside, is_global, is_shared, padded, settled, swizzle_of
from attn_mlir.mlir import ext, ir

TURNED = "turned"
"""The attribute of copies of tiles that were transposed before; in choices: that 8-bit values come so."""
SLOPE = 4
"""Which operand of a copy of row values is what is added for each further row (`warp.copy_rows_scaled`)."""
_LANES = 32
_SHARED_ROWS = 32
"""Eight rows, the height of a swizzle, for each warp of a warpgroup."""


def _checks_tile(op: ir.OpView, memory: ir.Type, tile: ir.Type, where: bool, ranks: tuple[int, ...] = (4,)) -> bool:
    """A tile in the right place, with elements of a tensor, and no more columns than it has; in shared memory as many as products take."""
    fits = is_global(memory, *ranks) and where and tile.element_type == memory.element_type
    fits = fits and tile.shape[1] <= (padded(memory.shape[-1]) if is_shared(tile, 2) else memory.shape[-1])
    return check(op, fits, f"copies rows between a memref [B, H, S, D] and a tile of its elements and columns, got {memory} and {tile}")


def _checks_turned(op: ir.OpView, memory: ir.Type, tile: ir.Type) -> bool:
    """A tile of whole rows, as columns."""
    fits = is_global(memory, 4) and is_shared(tile, 2) and tile.element_type == memory.element_type and is_eight_bit(tile.element_type)
    fits = fits and tile.shape[0] == memory.shape[3] and tile.shape[1] % 32 == 0
    return check(
        op, fits, f"brings turned tiles [D, n] of 8-bit elements, n a multiple of 32, of a memref [B, H, S, D], got {memory} and {tile}"
    )


def _checks_elected(op: ir.OpView) -> bool:
    return check(op, inside(op, "warp.elect"), "is for one thread: it stands in 'warp.elect'")


class CopyAsyncOp(Warp.Operation, name="copy_async"):
    """Rows from `row` on and columns from `column` on of `source[batch, head]` go to shared memory (TMA).

    Rows and columns past the end are zeros. The bytes of the tile count at the barrier of the stage, which must have announced them.

    With a unit attribute `turned`, n rows of 8-bit elements, from a multiple of n on, are the bytes of a tile [D, n] as they lie in shared
    memory: the transpose that `warp.transpose` would make of the rows, which another kernel has written there.
    """

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        if TURNED in self.operation.attributes:
            return _checks_turned(self, self.source.type, self.target.type) and _checks_elected(self)
        return _checks_tile(self, self.source.type, self.target.type, is_shared(self.target.type, 2)) and _checks_elected(self)


class CopyRowsAsyncOp(Warp.Operation, name="copy_rows_async"):
    """Row values from `row` on of `source[batch, head]` go to a stage of shared memory, memref<stages x n> (cp.async).

    Those past the end are zeros. Every lane of the warpgroup's first warp copies some, and arrives at the barrier of the stage when its own
    have landed: the barrier awaits as many arrivals for it as a warp has lanes.
    """

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        return _checks_rows(self, self.source.type, self.target.type)


class MakeRowsOp(Warp.Operation, name="make_rows"):
    """Place i of a stage of shared memory, memref<stages x n>, gets the number that the region makes of i.

    `summed`: it gets the sum of those of 0 to i. One warp of the warpgroup does it, the first one only where it is alone: the others take
    stages in turn, so that several wait for memory at the same time. Each lane makes n / 32 numbers of f32, then the warp arrives, once. It
    may read what it has made.
    """

    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]
    summed: Any
    body: ext.Region

    def verify_invariants(self) -> bool:
        type_ = self.target.type
        if not check(self, isinstance(self.summed, ir.BoolAttr), f"takes `summed` as true or false, got {self.summed}"):
            return False
        fits = is_shared(type_, 2) and str(type_.element_type) == "f32" and type_.shape[1] % _LANES == 0
        return check(self, fits, f"writes a stage of a memref<stages x n x f32> in shared memory, n a multiple of {_LANES}, got {type_}")

    def verify_region_invariants(self) -> bool:
        block = entry_block(self)
        places = [argument.type for argument in block.arguments] if block else []
        if not check(self, len(places) == 1 and isinstance(places[0], ir.IndexType), "region takes the place, an index"):
            return False
        last = terminator(block) if block else None
        got = [str(v.type) for v in last.operation.operands] if last is not None and last.operation.name == "warp.yield" else None
        return check(self, got == ["f32"], "region ends in a 'warp.yield' of one number of f32")


class CopyRowsScaledOp(Warp.Operation, name="copy_rows_scaled"):
    """As `warp.copy_rows_async`, but each number is multiplied by `factor`, `slope` times its place from `row` on is added, and no more
    than `most` is left of the sum; NaN stays NaN. Rows that do not exist have the place of the last one that does.

    Lanes load the numbers, and write what they made of them, before they arrive.
    """

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    slope: ext.Operand[ir.F32Type]
    target: ext.Operand[Any]
    barrier: ext.Operand[BarrierType]
    stage: ext.Operand[ir.IndexType]
    factor: ir.FloatAttr
    most: ir.FloatAttr

    def verify_invariants(self) -> bool:
        return _checks_rows(self, self.source.type, self.target.type)


def _checks_rows(op: Any, memory: ir.Type, rows: ir.Type) -> bool:
    """Of a copy of row values by the lanes of a warp."""
    fits = is_global(memory, 3) and is_shared(rows, 2) and str(memory.element_type) == str(rows.element_type) == "f32"
    fits = fits and rows.shape[1] % _LANES == 0
    return check(
        op, fits, f"copies f32 of a memref [B, H, S] to a memref<stages x n> whose n lanes of a warp share, got {memory} and {rows}"
    ) and check(op, not inside(op, "warp.elect"), "is for all lanes of a warp: it does not stand in 'warp.elect'")


class CopyLanesAsyncOp(Warp.Operation, name="copy_lanes_async"):
    """Rows from `row` on and columns from `column` on of `source[batch, head]` go to shared memory, 16 bytes of a lane each (cp.async).

    Rows past the end are zeros. Each warp of the warpgroup copies its share of the rows, those of the first warp first. What a warp has
    copied is there after its `warp.copy_wait`, for all lanes and warps after a barrier at which they meet then.
    """

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    target: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        tile = self.target.type
        if not _checks_tile(self, self.source.type, tile, is_shared(tile, 2)):
            return False
        swizzle, row = swizzle_of(tile), bytes_of(tile) // tile.shape[0]
        shared = tile.shape[0] % _SHARED_ROWS == 0 and swizzle > 0 and row % swizzle == 0
        return check(
            self, shared, f"copies a multiple of {_SHARED_ROWS} rows, which warps share, of whole swizzle atoms, got {tile}"
        ) and check(self, not inside(self, "warp.elect"), "is for all lanes of a warpgroup: it does not stand in 'warp.elect'")


class CopyRowsLanesAsyncOp(Warp.Operation, name="copy_rows_lanes_async"):
    """`count` row values from `row` on of `source[batch, head]` go to places from `place` on of a stage, memref<stages x n> (cp.async).

    Those past the end are zeros. Each warp of the warpgroup copies its share, 4 bytes of a lane each. They are there as those of
    `warp.copy_lanes_async` are, and belong to the same groups.
    """

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    target: ext.Operand[Any]
    stage: ext.Operand[ir.IndexType]
    place: ext.Operand[ir.IndexType]
    count: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        memory, rows, count = self.source.type, self.target.type, self.count.value
        if not _checks_rows(self, memory, rows):
            return False
        shared = 0 < count <= rows.shape[1] and count % _LANES == 0
        return check(self, shared, f"copies a multiple of {_LANES} numbers, which warps share, {rows.shape[1]} at most, got {count}")


class CopyCommitOp(Warp.Operation, name="copy_commit"):
    """What each lane has copied since the last commit is a group, an empty one if there is nothing.

    That is by `warp.copy_lanes_async` and `warp.copy_rows_lanes_async`.
    """


class CopyWaitOp(Warp.Operation, name="copy_wait"):
    """Waits until all but the newest `pending` groups of copies that the lanes have committed are done."""

    pending: ir.IntegerAttr

    def verify_invariants(self) -> bool:
        return _checks_pending(self)


class StoreAsyncOp(Warp.Operation, name="store_async"):
    """A tile in shared memory goes to rows from `row` on of `target[batch, head]` (TMA); rows and columns past the end do not.

    Of a target in slots, [slots, B, H, S, D], it is the first one.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]

    def verify_invariants(self) -> bool:
        fits = is_shared(self.source.type, 2)
        return _checks_tile(self, self.target.type, self.source.type, fits, (4, 5)) and _checks_elected(self)


class AddAsyncOp(Warp.Operation, name="add_async"):
    """A tile in shared memory is added to rows from `row` on of `target[batch, head]` (TMA); additions to one element may meet.

    Of a target in slots, [slots, B, H, S, D], it is the first one. `ordered`: they do not meet, see `warp.atomic_add`.
    """

    source: ext.Operand[Any]
    target: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    ordered: Any

    def verify_invariants(self) -> bool:
        return (
            checks_ordered(self)
            and _checks_tile(self, self.target.type, self.source.type, is_shared(self.source.type, 2), (4, 5))
            and _checks_elected(self)
        )


class StoreCommitOp(Warp.Operation, name="store_commit"):
    """The stores and additions that this thread has issued since the last commit are a group."""


class StoreWaitOp(Warp.Operation, name="store_wait"):
    """Waits until all but the newest `pending` groups of this thread have read shared memory (`read`), or are done altogether."""

    pending: ir.IntegerAttr
    read: Any

    def verify_invariants(self) -> bool:
        return check(self, isinstance(self.read, ir.BoolAttr), f"takes `read` as true or false, got {self.read}") and _checks_pending(self)


class LoadAsyncOp(Warp.Operation, name="load_async"):
    """Rows from `row` on of `source[batch, head]` go to registers; rows past the end are zeros. `warp.load_wait` gives the fragment.

    In order: the loads of a warp are done in the order in which they were issued (vmcnt of AMD).
    """

    source: ext.Operand[Any]
    batch: ext.Operand[ir.IndexType]
    head: ext.Operand[ir.IndexType]
    row: ext.Operand[ir.IndexType]
    column: ext.Operand[ir.IndexType]
    result: ext.Result[PendingType]

    def verify_invariants(self) -> bool:
        tile = settled(self.result.type)
        return _checks_tile(self, self.source.type, tile, in_form(tile, "tile") is not None)


class LoadWaitOp(Warp.Operation, name="load_wait"):
    """Waits until all but the newest `pending` loads are done; gives the fragment of one of those that are."""

    load: ext.Operand[PendingType]
    pending: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return _checks_settled(self, self.load.type, self.result.type) and _checks_pending(self)


def _checks_settled(op: Any, pending: ir.Type, made: ir.Type) -> bool:
    """A wait gives the fragment that was pending."""
    return check(op, settled(pending) == made, f"gives the fragment that it waits for, {settled(pending)}, got {made}")


def _checks_pending(op: Any) -> bool:
    """No fewer than none stay in flight."""
    return check(op, op.pending.value >= 0, f"leaves some in flight or none, got {op.pending.value}")
