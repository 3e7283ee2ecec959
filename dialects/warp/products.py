"""Matrix products: asynchronous ones, whose result is pending until it is waited for, and synchronous ones."""

from typing import Any

from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.dialects.verify import check
from attn_mlir.dialects.warp.dialect import PendingType, Warp
from attn_mlir.dialects.warp.kinds import STEP, in_form, is_shared, settled
from attn_mlir.mlir import ext, ir


def _checks_product(op: Any) -> bool:
    """Accumulator [M, N] += a [M, K] times b [K, N], where `transpose_a` and `transpose_b` say that they are stored the other way."""
    acc, a, b, flags = settled(op.accumulator.type), op.a.type, op.b.type, (op.transpose_a, op.transpose_b)
    if not check(op, all(isinstance(f, ir.BoolAttr) for f in flags), "takes `transpose_a` and `transpose_b` as true or false"):
        return False
    places = in_form(acc, "tile") and (is_shared(a, 2) or in_form(a, "tile")) and is_shared(b, 2)
    if not check(op, bool(places), f"adds to a tile: a in registers or shared memory times b in shared memory, got {acc}, {a}, {b}"):
        return False
    if not check(op, is_shared(a, 2) or not flags[0].value, f"transposes a in shared memory only, got {a}"):
        return False
    along_k = not is_eight_bit(b.element_type) or (not flags[0].value and flags[1].value)
    if not check(op, along_k, f"of 8-bit elements takes a and b whose columns are summed over, got {a} and {b}"):
        return False
    (m, k), (depth, n) = (list(t.shape)[::-1] if flag.value else list(t.shape) for t, flag in zip((a, b), flags, strict=True))
    fits = [m, n] == list(acc.shape) and k == depth and a.element_type == b.element_type
    return check(op, fits, f"shapes do not fit: {a} times {b} into {acc}")


class RegistersOp(Warp.Operation, name="registers"):
    """Registers of no particular value, which a product writes. Not pure: two products must not be given the same ones."""

    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        return check(
            self, in_form(self.result.type, "tile") is not None, f"are those of a tile that fits its layout, got {self.result.type}"
        )


class HoldOp(Warp.Operation, name="hold"):
    """The tile, of whose first columns a fragment has the same numbers: a product takes these from registers, and reads the others."""

    tile: ext.Operand[Any]
    held: ext.Operand[Any]
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        tile, held = self.tile.type, in_form(self.held.type, "tile")
        fits = is_shared(tile, 2) and held is not None and held.shape[0] == tile.shape[0] and held.element == str(tile.element_type)
        if not check(self, fits, f"holds the first columns of a tile in shared memory, got {self.held.type} of {tile}"):
            return False
        assert held is not None
        columns = held.shape[1]
        some = columns % STEP == 0 and columns < tile.shape[1]
        return check(self, some, f"holds a multiple of {STEP} of the {tile.shape[1]} columns, not all, got {columns}") and check(
            self, self.result.type == tile, f"gives the tile that it takes, got {self.result.type}"
        )


class MmaBeginOp(Warp.Operation, name="mma_begin"):
    """Before asynchronous products whose registers, accumulators or a, other ops have written (wgmma.fence)."""


class MmaAsyncOp(Warp.Operation, name="mma_async"):
    """Starts accumulator * keep + a b in the accumulator's registers (wgmma). What it reads may not change until the wait.

    Where elements have 8 bits, a in registers has its columns in an order of its own (`layouts.column_at`), and so must b.
    """

    accumulator: ext.Operand[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    keep: ext.Operand[ir.IntegerType[1]]
    transpose_a: Any
    transpose_b: Any
    result: ext.Result[PendingType]

    def verify_invariants(self) -> bool:
        acc, made = settled(self.accumulator.type), settled(self.result.type)
        return check(self, made == acc, f"gives what it adds to, {acc}, got {made}") and _checks_product(self)


class MmaOp(Warp.Operation, name="mma", traits=[ext.Pure]):
    """accumulator + a b, done when it returns (mma.sync, MFMA). In `warp.each_warp` each warp multiplies its rows of a."""

    accumulator: ext.Operand[Any]
    a: ext.Operand[Any]
    b: ext.Operand[Any]
    transpose_a: Any
    transpose_b: Any
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        acc, made = self.accumulator.type, self.result.type
        return check(self, made == acc, f"gives a tile like its accumulator, {acc}, got {made}") and _checks_product(self)


class MmaCommitOp(Warp.Operation, name="mma_commit"):
    """The products that were started since the last commit are a group."""


class MmaWaitOp(Warp.Operation, name="mma_wait"):
    """Waits until all but the newest `pending` groups are done; gives the fragment of a product that is done then.

    Waits for further products of the same groups, after it, take no time.
    """

    product: ext.Operand[PendingType]
    pending: ir.IntegerAttr
    result: ext.Result[Any]

    def verify_invariants(self) -> bool:
        wanted, made, pending = settled(self.product.type), self.result.type, self.pending.value
        return check(self, made == wanted, f"gives the fragment that it waits for, {wanted}, got {made}") and check(
            self, pending >= 0, f"leaves some groups in flight or none, got {pending}"
        )
