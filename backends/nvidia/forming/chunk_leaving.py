"""Rows of o of a chunk on their way to memory: what maps make of them, sums along columns, rows that are another sequence's."""

from contextlib import nullcontext
from dataclasses import dataclass, field

from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.chunk_tiles import ChunkTilesFormer
from attn_mlir.backends.nvidia.forming.facts import COLUMN_SUMS, CUT, STORES, THREADS
from attn_mlir.backends.nvidia.forming.kernel import ROWS
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import block_of, find_all, maker


@dataclass
class LeavingFormer(ChunkTilesFormer):
    """What `leaving` lists is made of o^T and stored while the state's product runs. A tile of v, `values`, lies where o^T leaves.

    `products` has the sums along columns that are stored: each warp adds up its rows, all meet, and the first warpgroup adds up theirs.
    """

    leaving: list[ir.Operation] = field(default_factory=list)
    """Maps over positions and columns of v, and stores of rows, in their order."""
    products: dict[ir.Value, ir.Value] = field(init=False)

    def _rows_of_o(self) -> ir.Type:
        """The type of the warpgroup's o^T."""
        return build.fragment_type(INSTRUCTION, "tile", [ROWS, ROWS], ir.F32Type.get())

    def _numbers(self, name: str, rows: int) -> ir.Value:
        """Shared memory for rows of a number for each position."""
        with build.named(name):
            return build.op("alloc", results=[build.shared_type([rows, ROWS], ir.F32Type.get(), 0)]).result

    def _cut(self, tiles: dict[ir.Value, ir.Value]) -> None:
        """Rows of k and v that belong to the next sequence become zeros: its infinities must not meet the zeros of weights.

        Of k the first warpgroup clears all columns, of v each has its own.
        """
        if not self.side_by_side:
            return
        loads = [maker(self.changed.get(tile, tile), "tile.load") for tile in tiles]
        count = self._value(loads[0].operands[4])  # type: ignore[union-attr]
        branch = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.slt, count, build.index(ROWS)).result)
        with ir.InsertionPoint(branch.then_block):
            for tile, memory in tiles.items():
                first = scf.IfOp(self.leads) if memory == self.loaded[tile].memory else None
                with ir.InsertionPoint(first.then_block) if first is not None else nullcontext():
                    build.op("clear_rows", [memory, count])
                    if first is not None:
                        scf.YieldOp([])
            # wgmma reads what all warps have written.
            build.op("fence_async")
            build.op("named_sync", [build.index(CUT)], threads=THREADS * self.warpgroups)
            scf.YieldOp([])

    def _leave(self) -> None:
        """What is made of rows of o, and their way to memory."""
        self.loaded[self.values].fragment = None  # read once more, so that no registers hold it meanwhile
        for op in self.leaving:
            if op.name == "tile.map":
                made = self._of_columns(op)
                if op.opview.kinds():
                    row = arith.MulIOp(self.warpgroup, build.index(rings.WARPS)).result
                    build.op("sum_columns", [made, self.products[op.results[0]], row])
                else:
                    self.known[op.results[0]] = made
        stores = [op for op in self.leaving if op.name == "tile.store"]
        if self.products:
            build.op("named_sync", [build.index(COLUMN_SUMS)], threads=THREADS * self.warpgroups)
        for op in stores:
            if op.operands[0] not in self.products:
                self._leave_rows(op)
        if self.products:  # behind rows, which others wait for
            branch = scf.IfOp(self.leads)
            with ir.InsertionPoint(branch.then_block):
                for op in stores:
                    tile, target, *place = op.operands
                    if tile in self.products:
                        memory, slot = self._slot(target)
                        build.op("store_sums", [self.products[tile], memory, slot, *map(self._value, place)])
                scf.YieldOp([])
        self.leaving = []

    def _slot(self, target: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The memory of numbers of rows, and which of its slots a view of it is."""
        view = maker(target, "memref.subview")
        if view is None:
            return self._value(target), build.index(0)
        memory, slot, *_ = view.operands
        static = list(ir.DenseI64ArrayAttr(view.attributes["static_offsets"]))
        if len(static) != len("SBHT") or not ir.ShapedType.is_dynamic_size(static[0]) or any(static[1:]) or maker(memory) is not None:
            raise Refused("numbers of rows go to one slot of memory")
        return self._value(memory), self._value(slot)

    def _of_columns(self, op: ir.Operation) -> ir.Value:
        """A map over positions and columns of v, as a fragment of columns and positions; o and loaded tiles lie so in registers."""
        block = block_of(op)
        if len(op.results) != 1:
            raise Refused("a map over rows makes one tile, or sums of one")
        for tile in dict.fromkeys(read.operands[0] for read in find_all(op, "tensor.extract") if read.operands[0] in self.loaded):
            if self.loaded[tile].fragment is None:
                type_ = build.fragment_type(INSTRUCTION, "tile", [ROWS, ROWS], ir.RankedTensorType(tile.type).element_type)
                self.loaded[tile].fragment = build.op("read_transposed", [self._own_columns(self.loaded[tile])], [type_]).result

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            known = {block.arguments[0]: j, block.arguments[1]: arith.AddIOp(self.first, i).result}

            def read(inner: ir.Operation) -> ir.Value:
                source, *places = inner.operands
                if places == list(block.arguments[:1]):
                    return self._number(source, j)
                if places != list(block.arguments):
                    raise Refused("a map over rows reads a tile at another place than its own")
                tile = self.loaded[source].fragment if source in self.loaded else self._value(source)
                return ir.Operation.create("tensor.extract", results=[inner.results[0].type], operands=[tile, i, j]).result

            return [self._clone(block, known, read)]

        return build.map_([ROWS, ROWS], [self._rows_of_o()], [""], body)[0]

    def _leave_rows(self, op: ir.Operation) -> None:
        """Rows of o, through the warpgroup's columns of v."""
        tile, target, batch, head, row, count = op.operands
        whole, column = self._memory(target)
        element = ir.MemRefType(target.type).element_type
        values = self.loaded[self.values]
        to = self._own_columns(values)
        if ir.MemRefType(to.type).element_type != element:
            raise Refused("rows of o have the type of v, through whose memory they leave")
        o = self._value(tile)

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            value = ir.Operation.create("tensor.extract", results=[ir.F32Type.get()], operands=[o, i, j]).result
            return [arith.TruncFOp(element, value).result]

        type_ = build.fragment_type(INSTRUCTION, "tile", [ROWS, ROWS], element)
        narrow = build.map_([ROWS, ROWS], [type_], [""], body)[0]
        own = arith.AddIOp(self.warpgroup, build.index(STORES)).result
        if not self.products:  # else all have met since they read v
            build.op("named_sync", [own], threads=THREADS)
        build.op("write_transposed", [narrow, to])
        # TMA stores what all warps have written.
        build.op("fence_async")
        build.op("named_sync", [own], threads=THREADS)
        first = self.first if column is None else arith.AddIOp(self._value(column), self.first).result
        place = [to, self._value(whole), self._value(batch), self._value(head), self._value(row), first]
        if not self.side_by_side:
            self._copy(place)
            return
        # A box of the copy engine would reach into the next sequence.
        rows = self._value(count)
        branch = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.slt, rows, build.index(ROWS)).result, has_else=True)
        with ir.InsertionPoint(branch.then_block):
            build.op("store_lanes", [*place, rows])
            scf.YieldOp([])
        with ir.InsertionPoint(branch.else_block):
            self._copy(place)
            scf.YieldOp([])

    def _copy(self, place: list[ir.Value]) -> None:
        """One thread stores rows."""
        with ir.InsertionPoint(build.elect()):
            build.op("store_async", place)
            build.op("store_commit")
