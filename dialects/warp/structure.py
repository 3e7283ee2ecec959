"""The frame of a scheduled kernel: roles, who of them does something, and how tiles are handed out."""

from collections.abc import Sequence
from typing import Any

from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.regions import walk
from attn_mlir.dialects.verify import check, entry_block, terminator
from attn_mlir.dialects.warp.dialect import Warp
from attn_mlir.dialects.warp.kinds import bytes_of, in_form, inside, is_global
from attn_mlir.mlir import ext, ir

WARPS = 4
"""Warps of a warpgroup."""
_TOGETHER = frozenset(
    {f"warp.{name}" for name in ("mma_async", "mma_wait", "mma_commit", "mma_begin", "named_sync", "wait", "arrive", "elect")}
)


def _index_arguments(op: ir.OpView, count: int) -> bool:
    """Whether the op's region takes so many indices."""
    block = entry_block(op)
    return block is not None and len(block.arguments) == count and all(isinstance(a.type, ir.IndexType) for a in block.arguments)


class KernelOp(Warp.Operation, name="kernel", traits=[ir.NoTerminatorTrait, ir.IsIsolatedFromAboveTrait]):
    """A kernel over tensors in global memory, [B, H, S, D] or [B, H, S], and numbers.

    Shared memory, barriers and roles stand directly in it. `function` names the function of the module whose arguments and results are
    the kernel's arguments, "" for none; after them come counters of its own in global memory, zeros when it begins. Each thread has
    `registers` at launch. `lanes` of a warp, the registers of a multiprocessor (`register_file`) and the bytes of shared memory that a
    thread block may have (`shared_limit`) are facts of the target. A kernel on packed sequences has `tile.kernel` of its function, which
    tells the arguments that are ragged views, and those with the lengths of sequences.
    """

    sym_name: ir.StringAttr
    function: ir.StringAttr
    registers: ir.IntegerAttr
    lanes: ir.IntegerAttr
    register_file: ir.IntegerAttr
    shared_limit: ir.IntegerAttr
    body: ext.Region

    def verify_region_invariants(self) -> bool:
        block = entry_block(self)
        ops = [view.operation for view in block.operations] if block else []
        roles, buffers = ([op for op in ops if op.name == f"warp.{name}"] for name in ("role", "alloc"))
        if not check(self, bool(roles), "has roles"):
            return False
        sizes = [
            [ir.IntegerAttr(role.attributes[name]).value for name in ("warpgroups", "registers")] for role in roles if not shares(role)
        ]
        threads = WARPS * self.lanes.value
        given = self.registers.value * threads * sum(groups for groups, _ in sizes)
        asked = threads * sum(groups * registers for groups, registers in sizes)
        used = sum(bytes_of(op.result.type) for op in buffers)
        file, limit = self.register_file.value, self.shared_limit.value
        return (
            check(self, given <= file, f"launches with {given} registers, there are {file}")
            and check(self, asked <= given, f"gives its roles {asked} registers, more than the {given} of its launch: it would hang")
            and check(self, used <= limit, f"has {used} bytes of shared memory, there are {limit}")
        )


class RoleOp(Warp.Operation, name="role", traits=[ir.NoTerminatorTrait]):
    """What `warpgroups` of the thread block do, after those of the roles before. The region takes which of them it is, 0 first.

    `warps` of each run it, with `registers` a thread, which `setmaxnreg` gives them. With an attribute `first_warp`, a role shares the
    only warpgroup of the role before, and has its registers: its "warpgroups" are so many `warps` each of that one, from `first_warp` on.
    """

    sym_name: ir.StringAttr
    warpgroups: ir.IntegerAttr
    warps: ir.IntegerAttr
    registers: ir.IntegerAttr
    body: ext.Region

    def verify_invariants(self) -> bool:
        groups, warps, registers = self.warpgroups.value, self.warps.value, self.registers.value
        return (
            check(self, inside(self, "warp.kernel"), "stands in 'warp.kernel'")
            and check(self, groups > 0 and 0 < warps <= WARPS, f"has warpgroups, of 1 to {WARPS} warps, got {groups} of {warps}")
            and check(self, registers % 8 == 0 and 24 <= registers <= 512, f"has a multiple of 8 registers from 24 on, got {registers}")
            and self._shares_well()
        )

    def verify_region_invariants(self) -> bool:
        return check(self, _index_arguments(self, 1), "has a region that takes the warpgroup, an index")

    def _shares_well(self) -> bool:
        """Whether warps of a warpgroup that another role begins are that role's for none, and exist."""
        if not shares(self.operation):
            return True
        host, first = host_of(self.operation), number(self.operation, "first_warp")
        if not check(self, host is not None, "shares the warpgroup of a role before it, and there is none"):
            return False
        assert host is not None
        same = number(host, "registers") == self.registers.value and number(host, "warpgroups") == 1
        taken = first_free_warp(host, self.operation)
        last = first + self.warpgroups.value * self.warps.value
        return check(self, same, "shares the only warpgroup of a role with as many registers") and check(
            self, taken <= first and last <= WARPS, f"has warps {first} to {last - 1}, those from {taken} to {WARPS - 1} are free"
        )


def shares(role: ir.Operation) -> bool:
    """Whether a role has warps of the warpgroup of a role before it."""
    return "first_warp" in role.attributes


def host_of(role: ir.Operation) -> ir.Operation | None:
    """The role that begins the warpgroup which another one shares, if there is one."""
    before = _roles_before(role)
    return next((each for each in reversed(before) if not shares(each)), None)


def first_free_warp(host: ir.Operation, role: ir.Operation | None = None) -> int:
    """The first warp of a role's warpgroup that neither it has nor those that share it, up to `role` where it is given."""
    block = host.block
    ops = [view.operation for view in block.operations if view.operation.name == "warp.role"]
    taken = number(host, "warps")
    for each in ops[ops.index(host) + 1 :]:
        if not shares(each) or (role is not None and each == role):
            break
        taken = number(each, "first_warp") + number(each, "warpgroups") * number(each, "warps")
    return taken


def _roles_before(role: ir.Operation) -> list[ir.Operation]:
    ops = [view.operation for view in role.block.operations if view.operation.name == "warp.role"]
    return ops[: ops.index(role)]


class ElectOp(Warp.Operation, name="elect", traits=[ir.NoTerminatorTrait]):
    """One thread of the warpgroup's first warp does what is in the region."""

    body: ext.Region

    def verify_region_invariants(self) -> bool:
        return check(self, _index_arguments(self, 0) and inside(self, "warp.role"), "stands in 'warp.role' and takes no arguments")


class YieldOp(Warp.Operation, name="yield", traits=[ir.IsTerminatorTrait, ext.Pure]):
    """Ends the region of `warp.map` (an element of each result) or `warp.each_warp` (its results)."""

    first: Sequence[ext.Operand[Any]]
    second: Sequence[ext.Operand[Any]]
    third: Sequence[ext.Operand[Any]]


class EachWarpOp(Warp.Operation, name="each_warp"):
    """Each warp of the warpgroup goes its own way with its rows of all fragments: a `warp.vote` may differ between warps.

    The results are fragments, of which each warp gives its rows. Nothing that warps do together stands in it.
    """

    first: Sequence[ext.Result[Any]]
    second: Sequence[ext.Result[Any]]
    third: Sequence[ext.Result[Any]]
    body: ext.Region

    def verify_region_invariants(self) -> bool:
        block, results = entry_block(self), [r.type for r in self.operation.results]
        together = sorted({op.name for op in walk(self)} & _TOGETHER)
        last = terminator(block) if block else None
        ended = last is not None and last.operation.name == "warp.yield" and [v.type for v in last.operation.operands] == results
        return (
            check(self, all(in_form(t, "tile", "rows", "parts") for t in results), f"makes fragments, got ({', '.join(map(str, results))})")
            and check(self, not together, f"holds what one warp can do, got {', '.join(together)}")
            and check(
                self, ended and _index_arguments(self, 0), f"takes nothing and ends in a 'warp.yield' of ({', '.join(map(str, results))})"
            )
        )


class BlockIdOp(Warp.Operation, name="block_id", traits=[ext.Pure]):
    """The number of this thread block."""

    result: ext.Result[ir.IndexType[()]] = ext.infer_result()


class BlockCountOp(Warp.Operation, name="block_count", traits=[ext.Pure]):
    """How many thread blocks there are. With `warp.block_id` it is the static tile scheduler: tiles id, id + count, ..."""

    result: ext.Result[ir.IndexType[()]] = ext.infer_result()


class NextTileOp(Warp.Operation, name="next_tile"):
    """Adds 1 to a counter in global memory and gives what it was: the dynamic tile scheduler. One thread does it, in `warp.elect`.

    Who is given `last` sets it to 0 instead: so the last of all draws leaves the counter as the first one found it. Which tile a number
    stands for is arithmetic on it: the longest first, for example.
    """

    counter: ext.Operand[Any]
    last: ext.Operand[ir.IndexType]
    result: ext.Result[ir.IndexType[()]] = ext.infer_result()

    def verify_invariants(self) -> bool:
        counter = self.counter.type
        fits = is_global(counter, 1) and str(counter.element_type) == "i32"
        return check(self, fits, f"counts in a memref<?xi32> of global memory, got {counter}") and check(
            self, inside(self, "warp.elect"), "is for one thread: it stands in 'warp.elect'"
        )
