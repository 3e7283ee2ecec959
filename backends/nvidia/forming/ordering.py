"""Sums over keys in a fixed order: each block of keys adds to a block of queries after the block of the next keys."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia.forming.facts import STORES, THREADS
from attn_mlir.backends.nvidia.forming.packed import Packed
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.ordered_sums import depends, is_masked, without_order
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.regions import clone_op, find_all, maker

Known = dict[ir.Value, ir.Value]
_NEVER = (1 << 31) - 1
"""No query sees a block of keys."""


@dataclass(frozen=True)
class OrderedAdd:
    """Of what a warpgroup adds: the block of keys, to which head's queries of which batch, and which warpgroup it is."""

    block: ir.Value
    batch: ir.Value
    head: ir.Value
    warpgroup: ir.Value


@dataclass
class Order:
    """The order of a kernel over pairs: a counter for each block of queries of a head and each warpgroup tells which keys were last.

    Under a causal mask the last keys are seen by the last queries, so that blocks which run side by side get to a block of queries in
    that order. A block waits only for those of later keys, which are handed out before. How many counters there are, the schedule says:
    `semaphore_parts` of them for `semaphore_rows` rows of a head of argument `semaphore_over`.
    """

    function: ir.Operation
    keys: ir.Operation
    known: Known = field(default_factory=dict)
    """What numbers are for the next block of keys."""

    def __post_init__(self) -> None:
        fields, self.packed = attributes.read(self.function, attributes.SCHEDULE), Packed.of(self.function)
        names = ("semaphore_over", "semaphore_rows", "semaphore_parts")
        if not all(isinstance(fields.get(name), int) for name in names):
            raise Refused("the schedule has no counters for sums in a fixed order (deterministic=True)")
        self.over, self.rows, self.parts = (int(fields[name]) for name in names)
        body = self.keys.regions[0].blocks[0]
        loops = [op for op in find_all(self.keys, "scf.for") if any(v.operation.name == "tile.accumulate" for v in op.regions[0].blocks[0])]
        loads = [view.operation for view in body.operations if view.operation.name == "tile.load"]
        if not loops or not loads:
            raise Refused("a fixed order of sums is one of blocks of queries and keys")
        self.first, self.masked = loops[0], is_masked(loops, body.arguments[0])
        reason = without_order(loops, body.arguments[0], loads[0].operands[4], bool(self.packed))
        if reason:
            raise Refused(reason)

    def allocate(self, warpgroups: int) -> None:
        """Numbers in shared memory for each warpgroup, which its thread that waits keeps: so no registers hold them meanwhile."""
        type_ = build.shared_type([warpgroups, 3], ir.IntegerType.get_signless(32), 0)
        with build.named("semaphore_numbers"):
            self.kept = build.op("alloc", results=[type_]).result

    def begin(self, known: Known, over: ir.Value, place: OrderedAdd, size: int) -> None:
        """Before the loops over queries of a head.

        Keeps the first query that sees the next block of keys (none does where that block is missing), the number of that block, and that
        of the head's first counter.
        """
        keys = self.keys.regions[0].blocks[0].arguments[0]
        with ir.InsertionPoint(build.elect()):
            following = arith.AddIOp(place.block, build.index(1)).result
            self.known = {keys: arith.MulIOp(following, build.index(size)).result}
            for op in find_all(self.function, "tile.program_id") if self.packed is None else []:
                if ir.IntegerAttr(op.attributes["axis"]).value == 0:
                    self.known[op.results[0]] = following
            if self.packed is not None:  # of the next item all but its rows is that of this one
                end = arith.AddIOp(self.known[keys], build.index(size)).result
                self.known[self.keys.operands[1]] = arith.MinSIOp(end, self._size(known)).result
            begin = self._of_next(self.first.operands[0], known, list(self.known))
            is_last = arith.CmpIOp(arith.CmpIPredicate.sge, self.known[keys], self._size(known)).result
            pair, blocks = self._blocks(known, over, place)
            before = arith.MulIOp(pair, blocks).result
            if self.packed is not None:
                before = arith.AddIOp(before, known[find_all(self.keys, "tile.accumulate")[0].operands[3]]).result
            counters = arith.MulIOp(before, build.index(self.parts)).result
            first = arith.AddIOp(counters, place.warpgroup).result
            for n, value in enumerate((arith.SelectOp(is_last, build.index(_NEVER), begin).result, following, first)):
                whole = arith.IndexCastOp(ir.IntegerType.get_signless(32), value).result
                memref.StoreOp(whole, self.kept, [place.warpgroup, build.index(n)])

    def _blocks(self, known: Known, over: ir.Value, place: OrderedAdd) -> tuple[ir.Value, ir.Value]:
        """The number of a head of queries, and how many blocks of queries with counters each has (see `SemaphoreBlocks`)."""
        heads, length = (memref.DimOp(over, build.index(n)).result for n in (1, 2))
        if self.packed is not None:
            sequences = memref.DimOp(known[self.packed.lengths[1]], build.index(0)).result
            return place.head, arith.AddIOp(arith.DivSIOp(length, build.index(self.rows)).result, sequences).result
        blocks = arith.CeilDivSIOp(length, build.index(self.rows)).result
        return arith.AddIOp(arith.MulIOp(place.batch, heads).result, place.head).result, blocks

    def _size(self, known: Known) -> ir.Value:
        """How many keys there are: the second limit of the block's end, of packed sequences those of the item's."""
        if self.packed is not None:
            return known[self.packed.length(self.function)]
        end = maker(self.keys.operands[1], "arith.minsi")
        sizes = [v for v in end.operands if maker(v, "memref.dim") is not None] if end is not None else []
        if len(sizes) != 1:
            raise Refused("the keys of a program are not one block of a chunk")
        return known[sizes[0]]

    def _of_next(self, value: ir.Value, known: Known, starts: list[ir.Value]) -> ir.Value:
        """What a number of this block of keys is for the next one."""
        if value in self.known:
            return self.known[value]
        if not any(depends(value, start) for start in starts):
            return known[value]
        op = value.owner.operation  # type: ignore[union-attr]
        mapping = {operand: self._of_next(operand, known, starts) for operand in op.operands}
        self.known[value] = clone_op(op, mapping).results[0]
        return self.known[value]

    @contextmanager
    def at(self, counters: ir.Value, row: ir.Value, warpgroup: ir.Value) -> Iterator[None]:
        """Additions in between come after those of the next block of keys to these queries, and before those of the block before.

        One thread waits and passes the semaphore on; the warpgroup's threads meet behind the one and before the other.
        """
        own = arith.AddIOp(warpgroup, build.index(STORES)).result
        with ir.InsertionPoint(build.elect()):
            begin, following, counter = self._read(row, warpgroup)
            sees = arith.CmpIOp(arith.CmpIPredicate.sle, begin, row).result
            number = arith.AddIOp(following, build.index(1)).result
            build.op("order_wait", [counters, counter, arith.SelectOp(sees, number, build.index(0)).result])
        build.op("named_sync", [own], threads=THREADS)
        yield
        build.op("named_sync", [own], threads=THREADS)
        with ir.InsertionPoint(build.elect()):
            _, following, counter = self._read(row, warpgroup)
            build.op("order_pass", [counters, counter, following])

    def _read(self, row: ir.Value, warpgroup: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
        """What was kept, with the counter of a block of queries."""
        kept = [memref.LoadOp(self.kept, [warpgroup, build.index(n)]).result for n in range(3)]
        begin, following, first = (arith.IndexCastOp(ir.IndexType.get(), each).result for each in kept)
        before = arith.MulIOp(arith.DivUIOp(row, build.index(self.rows)).result, build.index(self.parts)).result
        return begin, following, arith.AddIOp(first, before).result
