"""A `warp.kernel` from a tiled function over pairs: a block of keys stays, blocks of queries pass, weights go through shared memory."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.claims import Claims, is_alone, is_apart
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE, OF_HOPPER, THREADS
from attn_mlir.backends.nvidia.forming.kernel import ROWS, Former
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION
from attn_mlir.backends.nvidia.forming.ordering import Order, OrderedAdd
from attn_mlir.backends.nvidia.forming.packed import LONGEST_FIRST
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.ordered_sums import is_masked
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import find_all, maker

_WIDE = 128
"""Columns of rows from which on a kernel is one of wide rows."""


@dataclass
class PairsFormer(Former):
    """Fragments have the rows of a block of keys. A chunk is one block: the loop over the blocks of a chunk becomes what it does once.

    A sum over keys (`tile.accumulate`) needs the weights of all warpgroups: each writes its rows to shared memory, all meet, and each
    multiplies its share of queries, or of columns where there are too few queries, which it adds to global memory.
    """

    GRIDS: ClassVar[tuple[str, ...]] = ("pairs",)
    STEP: ClassVar[int] = 16  # sums in f32 have as many columns as exist

    def form(self) -> ir.Operation:
        """The kernel, before the function. Raises Refused, with what was made so far erased."""
        loops = [view.operation for view in self.function.regions[0].blocks[0].operations if view.operation.name == "scf.for"]
        if len(loops) != 1 or list(loops[0].results):
            raise Refused("a kernel over pairs has one loop over the blocks of keys of a chunk")
        self.keys = loops[0]
        fields = attributes.read(self.function, attributes.SCHEDULE)
        self.order = Order(self.function, self.keys) if fields.get("deterministic") else None
        # What the Hopper emitter's plan says of it is for kernels whose warps of the producer add.
        self.claims = Claims(self.function) if fields.get("claims") and fields.get("emitter") == "warp" else None
        return super().form()

    def _schedule(self) -> ir.Attribute:
        """Under a causal mask the first keys are seen by the most queries: they come first. Tiles are drawn, loops stay apart: measured.

        Sums in a fixed order begin with the last keys (`Order`), and so do lists of work then. What the Hopper emitter calls a group counts
        programs, and is not for `warp-order-tiles`, which counts heads.
        """
        fields = attributes.read(self.function, attributes.SCHEDULE)
        own = {"group": 1} if self.order is not None and self.order.masked else {}
        if self.order is None or self.packed is not None:
            own |= LONGEST_FIRST
        others = {"group", "heads", "join", *(("claims",) if self.claims is None else ())}
        others |= OF_HOPPER if fields.get("emitter") != "warp" else set()
        given = {name: value for name, value in fields.items() if name not in others}
        return attributes.write({**thresholds.BACKWARD_FIELDS, **thresholds.BACKWARD_CHOICES[self._kind()], **given, **own})

    def _kind(self) -> str:
        """The key of what was chosen for such a kernel."""
        loops, loads = find_all(self.keys, "scf.for"), find_all(self.function, "tile.load")
        if all(self._is_alone(self.columns // ROWS, *_columns(op)) for op in find_all(self.keys, "tile.accumulate")):
            return "apart"
        masked = is_masked(loops, self.keys.regions[0].blocks[0].arguments[0])
        wide = any(ir.MemRefType(load.operands[0].type).shape[-1] >= _WIDE for load in loads)
        return " ".join(word for word, said in (("masked", masked), ("wide", wide)) if said)

    def _own_arguments(self) -> list[ir.Type]:
        return [] if self.order is None and self.claims is None else [ir.Type.parse("memref<?xi32>", self.function.context)]

    def _make_rings(self) -> None:
        """Also the buffers by which warpgroups exchange weights, one for those of each type, and the chunk, which is one block."""
        if self.packed is None:
            self.known[self.function.regions[0].blocks[0].arguments[-1]] = build.index(self.block)
        super()._make_rings()
        if self.order is not None:
            self.order.allocate(self.warpgroups)
        self.exchanges: dict[str, ir.Value] = {}
        for op in find_all(self.function, "tile.accumulate"):
            type_ = ir.RankedTensorType(op.operands[0].type)
            columns = self.columns if type_.shape[1] < 0 else type_.shape[1]
            if columns % ROWS:
                raise Refused(f"sums over keys take blocks of a multiple of {ROWS} queries, not {columns}")
            shared = build.shared_type([1, self.block, columns], type_.element_type, rings.SWIZZLE)
            if str(shared) not in self.exchanges:
                with build.named("weights"):
                    self.exchanges[str(shared)] = build.op("alloc", results=[shared]).result

    def _for(self, op: ir.Operation) -> None:
        if op != self.keys:
            if self.order is not None and op == self.order.first:
                batch, head = list(find_all(op, "tile.accumulate")[0].operands)[4:6]
                over = self.known[self.function.regions[0].blocks[0].arguments[self.order.over]]
                block = self.program[0]
                if self.packed is not None:
                    block = arith.DivSIOp(self._value(self.keys.operands[0]), build.index(self.block)).result
                place = OrderedAdd(block, self._value(batch), self._value(head), self.warpgroup)
                self.order.begin(self.known, over, place, self.block)
            super()._for(op)
            return
        lower, upper, step = list(op.operands)[:3]
        end, size = maker(upper, "arith.minsi"), maker(step, "arith.constant")
        sums = [maker(v, "arith.addi") for v in end.operands] if end is not None else []
        chunk = self.function.regions[0].blocks[0].arguments[-1]
        is_one = any(each is not None and {*each.operands} == {lower, chunk} for each in sums)
        is_one |= self.packed is not None and self.packed.is_item(lower, upper)
        if size is None or ir.IntegerAttr(size.attributes["value"]).value != self.block or not is_one:
            raise Refused("the keys of a program are not one block of a chunk")
        self.known[op.regions[0].blocks[0].arguments[0]] = self._value(lower)
        self._block(op.regions[0].blocks[0])

    def _exists(self, value: ir.Value) -> bool:
        """Also the end of the block of keys, min(rows that exist, first key + block)."""
        return value == self.keys.operands[1] or super()._exists(value)

    def _op(self, op: ir.Operation) -> None:
        if op.name == "tile.accumulate":
            self._accumulate(op)
            return
        super()._op(op)
        for result in op.results if op.name == "tile.map" else []:
            if any(use.owner.operation.name == "tile.accumulate" and use.operand_number == 0 for use in result.uses):
                self.known[result] = self._of_present(self.known[result])

    def _accumulate(self, op: ir.Operation) -> None:
        """Adds weights^T times a tile of keys to rows of queries; where keys or queries do not exist, the weights are zeros."""
        weights, keys = list(op.operands)[:2]
        if keys not in self.loaded:
            raise Refused("a sum over keys takes a loaded tile of keys")
        fragment, memory = self._value(weights), self.loaded[keys].memory
        exchanged = self._exchange(fragment)
        queries, columns = ir.RankedTensorType(fragment.type).shape[1] // ROWS, ir.MemRefType(memory.type).shape[1]
        if self._is_alone(queries, columns):
            branch = scf.IfOp(self.leads)
            with ir.InsertionPoint(branch.then_block):
                places = [(build.index(ROWS * n), build.index(0)) for n in range(queries)]
                self._add(op, exchanged, places, columns)
                scf.YieldOp([])
            return
        places, part = self._shares(queries, columns)
        self._add(op, exchanged, places, part)

    def _is_alone(self, queries: int, columns: int) -> bool:
        """Whether the first warpgroup makes the whole sum: asked for, or because the warpgroups share neither queries nor columns.

        `warp-specialize-sums` then gives it a role of its own. Sums in a fixed order have counters for it, or for all warpgroups.
        """
        if self.order is not None:
            return is_apart(queries, columns, self.warpgroups) and self.order.parts == 1
        return is_alone(
            str(attributes.read(self.function, attributes.SCHEDULE).get("key_sums", "auto")), (queries, columns), self.warpgroups
        )

    def _shares(self, queries: int, columns: int) -> tuple[list[tuple[ir.Value, ir.Value]], int]:
        """The first queries and columns of the products of a warpgroup, and how many columns each has."""
        zero, first = build.index(0), self._first_sums()
        if queries % self.warpgroups == 0:
            return [(arith.AddIOp(first, build.index(ROWS * n)).result, zero) for n in range(0, queries, self.warpgroups)], columns
        part, left = divmod(columns, self.warpgroups)
        if left or part % 64:
            raise Refused(f"{self.warpgroups} warpgroups do not share {columns} columns of sums for {ROWS * queries} queries")
        own = arith.MulIOp(arith.DivUIOp(first, build.index(ROWS)).result, build.index(part)).result
        return [(build.index(ROWS * n), own) for n in range(queries)], part

    def _first_sums(self) -> ir.Value:
        """The warpgroup's first row of sums where each makes those of other queries, 64 at a time."""
        return self.first

    def _add(self, op: ir.Operation, exchanged: ir.Value, places: list[tuple[ir.Value, ir.Value]], part: int) -> None:
        """Multiplies weights in shared memory by keys, for the queries and columns at some places, and adds the products."""
        _, keys, target, _, batch, head, row, _ = op.operands
        buffer, stage, *_ = self.loaded[keys].memory.owner.operation.operands
        zero, ordered = build.index(0), self._ordered(op, places)
        if self.claims is not None:
            over = self.known[self.function.regions[0].blocks[0].arguments[self.claims.over]]
            parts = self._parts(op)
            if self.claims.parts != parts:
                raise Refused(f"{parts} warpgroups make sums over keys, for which there are counters of {self.claims.parts} (claims)")
            self.claims.look(self.own[0], over, [self._value(value) for value in (batch, head, row)], self.warpgroup)
        of_all, of_each = (nullcontext(), ordered) if len(places) == 1 or self.order is None else (ordered, nullcontext())
        with of_all:
            for first, column in places:
                a = self._view([exchanged, zero, zero, first], [self.block, ROWS])
                b = self._view([buffer, stage, zero, column], [self.block, part])
                product = self._multiplied(a, b, [ROWS, part])
                at = arith.AddIOp(self._value(row), first).result
                with of_each:
                    operands = [product, self._value(target), self._value(batch), self._value(head), at, column]
                    build.op("atomic_add", operands, ordered=self.order is not None)

    def _ordered(self, op: ir.Operation, places: list[tuple[ir.Value, ir.Value]]) -> AbstractContextManager[None]:
        """Around what a warpgroup adds: its place in the order of sums, if there is one."""
        if self.order is None:
            return nullcontext()
        queries, parts = self._where().type_of(op.operands[0].type).shape[1], self._parts(op)
        if (len({row for row, _ in places}), self.order.rows, self.order.parts) != (1, queries, parts):
            raise Refused(f"counters for {self.order.rows} queries are not those of {parts} warpgroups that share {queries}")
        row = op.operands[6] if self.packed is None else self.packed.position(op.operands[6])
        return self.order.at(self.own[0], self._value(row), self.warpgroup)

    def _parts(self, op: ir.Operation) -> int:
        """How many warpgroups make a sum over keys."""
        queries, columns = self._where().type_of(op.operands[0].type).shape[1], ir.RankedTensorType(op.operands[1].type).shape[1]
        return 1 if self._is_alone(queries // ROWS, columns) else self.warpgroups

    def _view(self, operands: list[ir.Value], shape: list[int]) -> ir.Value:
        """A tile of a buffer at a stage, row and column."""
        type_ = ir.MemRefType(operands[0].type)
        return build.op("view", operands, [ir.MemRefType.get(shape, type_.element_type, memory_space=type_.memory_space)]).result

    def _multiplied(self, a: ir.Value, b: ir.Value, shape: list[int]) -> ir.Value:
        """a^T b, waited for."""
        type_ = build.fragment_type(INSTRUCTION, "tile", shape, ir.F32Type.get())
        start = build.op("registers", results=[type_]).result
        never = arith.ConstantOp(ir.IntegerType.get_signless(1), 0).result
        build.op("mma_begin")
        pending = build.mma_async(start, a, b, never, (True, False))
        build.op("mma_commit")
        return build.mma_wait(pending, type_, 0)

    def _of_present(self, weights: ir.Value) -> ir.Value:
        """Weights, with zeros in the rows of keys that do not exist: their scores are zeros, but not their weights, which may be infinite.

        All products take these, so that the others need no registers of their own.
        """
        type_ = ir.RankedTensorType(weights.type)
        lower, upper = (self._value(v) for v in list(self.keys.operands)[:2])
        count = arith.SubIOp(upper, lower).result
        few = arith.CmpIOp(arith.CmpIPredicate.slt, count, build.index(self.block)).result
        branch = scf.IfOp(few, [type_], has_else=True)

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            weight = ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[weights, i, j]).result
            exists = arith.CmpIOp(arith.CmpIPredicate.slt, arith.AddIOp(self.first, i).result, count).result
            return [arith.SelectOp(exists, weight, arith.ConstantOp(type_.element_type, 0.0).result).result]

        with ir.InsertionPoint(branch.then_block):
            scf.YieldOp(build.map_(type_.shape, [type_], [""], body))
        with ir.InsertionPoint(branch.else_block):
            scf.YieldOp([weights])
        return branch.results_[0]

    def _exchange(self, fragment: ir.Value) -> ir.Value:
        """Writes weights to this warpgroup's rows of shared memory once all have multiplied those before; all meet. The buffer."""
        type_, zero, number = ir.RankedTensorType(fragment.type), build.index(0), build.index(EXCHANGE)
        threads = THREADS * self.warpgroups
        buffer = self.exchanges[str(build.shared_type([1, self.block, type_.shape[1]], type_.element_type, rings.SWIZZLE))]
        own = self._view([buffer, zero, self.first, zero], list(type_.shape))
        build.op("named_sync", [number], threads=threads)
        build.op("write", [fragment, own])
        # wgmma reads what all warps have written.
        build.op("fence_async")
        build.op("named_sync", [number], threads=threads)
        return buffer


def _columns(accumulate: ir.Operation) -> list[int]:
    """Those of the keys that a sum multiplies."""
    return [ir.RankedTensorType(accumulate.operands[1].type).shape[1]]
