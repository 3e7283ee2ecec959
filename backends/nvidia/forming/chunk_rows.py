"""A `warp.kernel` from a tiled function that scans chunks and gives rows of o: what the state and the chunk's own pairs give to them."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import constant, yielded
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.chunks import MOST_BLOCKS, ChunksFormer, is_scaled
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE, STORES, THREADS
from attn_mlir.backends.nvidia.forming.kernel import INSTRUCTION, ROWS, Loaded
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import block_of, find_all, maker

_TOGETHER, _PIECE = 128, 64
"""The most columns of a state that are rounded at once, and how many of wider ones are."""
_STAGES = 2
"""The fewest stages of tiles, and those of weights that warpgroups exchange."""


@dataclass
class ChunkRowsFormer(ChunksFormer):
    """Rows of fragments are columns of v, 64 for each warpgroup: those of the state, turned where v is the second factor of what is added
    to it, and of o^T = S^T q^T times factors + v^T P^T. For rows of dq, keys stand for v.

    The state is rounded to the first factor of its product, in registers. P = q k^T times weights is shared: each warpgroup makes its
    columns of it, writes them to shared memory, and all meet. o^T leaves through the memory of v, transposed on its way, while the state's
    product runs; the tiles of a chunk are given back together.
    """

    rounded: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Maps that round the state."""
    weights: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Maps over pairs of positions."""
    late: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Products of q and the state, which begin behind those of pairs."""
    leaving: list[ir.Operation] = field(default_factory=list)
    """Stores of rows of o, which come behind the state's product."""

    def _read_products(self, state: ir.RankedTensorType) -> None:
        dots = find_all(self.chunks, *DOTS)
        self.advances = [op for op in dots if flag(op, "transpose_a")]
        if len(self.advances) != 1 or len(self.outputs()) != 1:
            raise Refused("a scan gives one tensor of rows, and has one product with the state, without residuals of rounding")
        first, second = list(self.advances[0].operands)[-2:]
        self.turned, self.changed = is_scaled(second), {}
        scaled = second if self.turned else first
        self.block, self.columns = state.shape[::-1] if self.turned else state.shape
        carried, self.side_by_side = block_of(self.chunks).arguments[1], self._sequences() is not None
        for op in find_all(self.chunks, "tile.map"):
            reads = {read.operands[0] for read in find_all(op, "tensor.extract")}
            makers = [maker(tile) for tile in reads]
            if len(op.operands) != len("ij"):
                continue
            if reads == {carried}:
                self.rounded[op.results[0]] = op
            elif any(made is not None and (made.name in DOTS or made.results[0] in self.weights) for made in makers):
                self.weights[op.results[0]] = op
            elif op.results[0] != scaled and [made.name for made in makers if made is not None] == ["tile.load"]:
                self.changed[op.results[0]] = makers[0].results[0]
        if self.side_by_side and self.changed:
            raise Refused("tiles that reach into the next sequence are changed before")

    def outputs(self) -> list[ir.Operation]:
        """The stores of rows."""
        states = {self.chunks.results[0], block_of(self.chunks).arguments[1], self.advances[0].results[0]}
        return [op for op in find_all(self.function, "tile.store") if op.operands[0] not in states]

    def _most_blocks(self) -> int:
        """As many as registers and, with few stages, shared memory hold."""
        consumer = self.columns // 2 + thresholds.ROWS_REGISTERS
        registers = THREADS * (self.warpgroups * consumer + thresholds.TRANSPOSING_REGISTERS)
        found = min(MOST_BLOCKS, max(1, self.target.registers // registers))
        while found > 1 and self.target.share(found)[1] < _STAGES * self._stage_bytes() + self._exchanged():
            found -= 1
        return found

    def _exchanged(self) -> int:
        return _STAGES * sum(bytes_of(ir.RankedTensorType(tile.type)) for tile in self.weights)

    def _is_of_state(self, numbers: ir.Value) -> bool:
        return any(use.owner.operation in self.advances and use.operand_number == 1 for use in numbers.uses)

    def _factors(self) -> list[ir.Value]:
        """What the state's part of rows is multiplied by."""
        found = [op.operands[1] for op in find_all(self.chunks, "tile.dot_rescale") if op not in self.advances]
        return [numbers for numbers in found if not _is_one(numbers)]

    def _memory_of_states(self) -> list[ir.Value]:
        return [op.operands[1] for op in find_all(self.function, "tile.store") if op not in self.outputs()]

    def _make_rings(self) -> None:
        """Also the buffer of weights, and the memory of the initial state."""
        super()._make_rings()
        for memory in (op.operands[0] for op in find_all(self.function, "tile.load") if op.results[0] == self.chunks.operands[3]):
            whole, _ = self._memory(memory)
            self.states[memory] = self._turned(self._value(whole)) if self.turned else self._value(whole)
        types = {str(tile.type): ir.RankedTensorType(tile.type) for tile in self.weights}
        if len(types) != 1:
            raise Refused("weights of pairs have one type")
        (type_,) = types.values()
        with build.named("weights"):
            shared = build.shared_type([1, *type_.shape], type_.element_type, rings.SWIZZLE)
            self.exchange = build.op("alloc", results=[shared]).result

    def _reads(self, load: ir.Operation) -> set[ir.Value]:
        """The initial state goes to registers."""
        return set() if load.results[0] == self.chunks.operands[3] else super()._reads(load)

    def _ends(self, ops: list[ir.Operation]) -> dict[ir.Operation, list[ir.Value]]:
        """All tiles of a chunk are given back behind the state's product and the rows, which leave through the memory of one of them."""
        found = super()._ends(ops)
        return {self.advances[0]: [tile for tiles in found.values() for tile in tiles]} if found else {}

    def _tiles(self, *frame: object) -> None:
        """A role ends when its copies are done."""
        super()._tiles(*frame)  # type: ignore[arg-type]
        with ir.InsertionPoint(build.elect()):
            build.op("store_wait", pending=0, read=False)

    # ---- ops

    def _op(self, op: ir.Operation) -> None:
        if op.name == "tile.map" and op.results[0] in self.rounded:
            return
        if op.name == "tile.map" and op.results[0] in self.weights:
            self.known[op.results[0]] = self._weights(op)
        elif op.name == "tile.load" and op.results[0] == self.chunks.operands[3]:
            self._initial(op)
        elif op.name == "tile.store" and op in self.outputs():
            self.leaving.append(op)
        else:
            super()._op(op)

    def _initial(self, op: ir.Operation) -> None:
        """The initial state, turned."""
        memory, batch, head, row, _ = op.operands
        _, column = self._memory(memory)
        if (self.turned and constant(row) != 0) or (column is not None and not self.turned):
            raise Refused("a program loads all rows of an initial state that it has")
        first = arith.AddIOp(self._value(row if column is None else column), self.first).result
        places = [self.states[memory], self._value(batch), self._value(head), first]
        self.known[op.results[0]] = build.op("load", places, [self._state()]).result

    def _product(self, op: ir.Operation) -> None:
        *before, a, b = op.operands
        if op in self.advances:
            super()._product(op)
            for store in self.leaving:
                self._leave(store)
            self.leaving = []
        elif b in self.rounded and a in self.loaded and not before and flag(op, "transpose_b") != self.turned:
            self.late[op.results[0]] = op
        elif a in self.loaded and b in self.loaded and not before and flag(op, "transpose_b"):
            self._cut(b)
            self.known[op.results[0]] = self._pairs(self.loaded[a], self.loaded[b])
            if self.occupancy < MOST_BLOCKS and self.columns < 256:
                self._from_states()
        elif a in self.weights and b in self.loaded and not flag(op, "transpose_b"):
            self.known[op.results[0]] = self._from_pairs(op)
        else:
            raise Refused("a scan multiplies q with k and the state, and weights of pairs with v")

    def _cut(self, keys: ir.Value) -> None:
        """Rows of k and v that belong to the next sequence become zeros: its infinities must not meet the zeros of weights."""
        if not self.side_by_side:
            return
        count = self._value(maker(keys, "tile.load").operands[4])  # type: ignore[union-attr]
        branch = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.slt, count, build.index(ROWS)).result)
        with ir.InsertionPoint(branch.then_block):
            first = scf.IfOp(self.leads)
            with ir.InsertionPoint(first.then_block):
                build.op("clear_rows", [self.loaded[keys].memory, count])
                scf.YieldOp([])
            build.op("clear_rows", [self._own_columns(self.loaded[self._values()]), count])
            # wgmma reads what all warps have written.
            build.op("fence_async")
            build.op("named_sync", [build.index(EXCHANGE + 1)], threads=THREADS * self.warpgroups)
            scf.YieldOp([])

    def _share(self) -> int:
        """The columns of pairs that a warpgroup makes."""
        return ROWS // self.warpgroups

    def _own_share(self) -> ir.Value:
        """The first of them."""
        return arith.MulIOp(self.warpgroup, build.index(self._share())).result

    def _pairs(self, q: Loaded, k: Loaded) -> ir.Value:
        """The warpgroup's columns of q k^T."""
        buffer, stage, _, column = k.memory.owner.operation.operands
        type_ = ir.MemRefType(k.memory.type)
        if ir.MemRefType(q.memory.type).shape[0] != ROWS or type_.shape[0] != ROWS or ROWS % self.warpgroups:
            raise Refused(f"chunks of {ROWS} positions are multiplied, whose columns all warpgroups share")
        own = ir.MemRefType.get([self._share(), type_.shape[1]], type_.element_type, memory_space=type_.memory_space)
        right = build.op("view", [buffer, stage, self._own_share(), column], [own]).result
        made = build.fragment_type(INSTRUCTION, "tile", [ROWS, self._share()], ir.F32Type.get())
        return self._multiply(None, q.memory, right, True, made)

    def _from_states(self) -> None:
        """Begins what waits for products of pairs: while weights are made, or, where registers are few, behind them."""
        for late in self.late.values():
            self.known[late.results[0]] = self._from_state(late)
        self.late = {}

    def _from_state(self, op: ir.Operation) -> ir.Value:
        """S^T q^T; of wide states some columns are rounded at a time, so that fewer registers hold what was rounded."""
        a, b = op.operands
        state, q = self._value(block_of(self.chunks).arguments[1]), self.loaded[a].memory
        if self.columns <= _TOGETHER:
            return self._multiply(None, self._rounded(b, state, 0), q, True, self._rows_of_o())
        buffer, stage, row, _ = q.owner.operation.operands
        type_ = ir.MemRefType(q.type)
        own = ir.MemRefType.get([type_.shape[0], _PIECE], type_.element_type, memory_space=type_.memory_space)
        part = build.fragment_type(INSTRUCTION, "tile", [ROWS, _PIECE], ir.F32Type.get())
        sums = None
        for first in range(0, self.columns, _PIECE):
            left = self._rounded(b, build.op("columns", [state], [part], first=first).result, first)
            right = build.op("view", [buffer, stage, row, build.index(first)], [own]).result
            sums = self._multiply(sums, left, right, True, self._rows_of_o())
        return sums

    def _rounded(self, tile: ir.Value, state: ir.Value, first: int) -> ir.Value:
        """Columns of the state, from number `first` on, as a map rounds them to elements of a tile."""
        rounding, shape = block_of(self.rounded[tile]), ir.RankedTensorType(state.type).shape

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            def read(inner: ir.Operation) -> ir.Value:
                if list(inner.operands)[1:] != list(rounding.arguments):
                    raise Refused("a map reads the state at another place than its own")
                return ir.Operation.create("tensor.extract", results=[inner.results[0].type], operands=[state, i, j]).result

            places = [arith.AddIOp(build.index(first), j).result, arith.AddIOp(self.first, i).result][:: 1 if self.turned else -1]
            return [self._clone(rounding, dict(zip(rounding.arguments, places, strict=True)), read)]

        type_ = build.fragment_type(INSTRUCTION, "tile", shape, ir.RankedTensorType(tile.type).element_type)
        return build.map_(shape, [type_], [""], body)[0]

    def _rows_of_o(self) -> ir.Type:
        """The type of the warpgroup's o^T."""
        return build.fragment_type(INSTRUCTION, "tile", [ROWS, ROWS], ir.F32Type.get())

    def _weights(self, op: ir.Operation) -> ir.Value:
        """The warpgroup's columns of a map over pairs of positions."""
        block, shape = block_of(op), [ROWS, self._share()]
        if len(op.results) != 1 or op.opview.kinds():
            raise Refused("a map over pairs makes one tile of others")
        share = self._own_share()

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            known = {block.arguments[0]: i, block.arguments[1]: arith.AddIOp(share, j).result}

            def read(inner: ir.Operation) -> ir.Value:
                source, *places = inner.operands
                if len(places) == 1:
                    return self._number(source, known[places[0]])
                if places != list(block.arguments):
                    raise Refused("a map over pairs reads a tile at another place than its own")
                operands = [self._value(source), i, j]
                return ir.Operation.create("tensor.extract", results=[inner.results[0].type], operands=operands).result

            return [self._clone(block, known, read)]

        type_ = build.fragment_type(INSTRUCTION, "tile", shape, ir.RankedTensorType(op.results[0].type).element_type)
        return build.map_(shape, [type_], [""], body)[0]

    def _from_pairs(self, op: ir.Operation) -> ir.Value:
        """What the state gives, times factors, + v^T P^T."""
        sums, *factors, weights, values = op.operands
        zero, shared = build.index(0), ir.MemRefType(self.exchange.type)

        def part(column: ir.Value, columns: int) -> ir.Value:
            type_ = ir.MemRefType.get([ROWS, columns], shared.element_type, memory_space=shared.memory_space)
            return build.op("view", [self.exchange, zero, zero, column], [type_]).result

        meeting = build.index(EXCHANGE)
        build.op("named_sync", [meeting], threads=THREADS * self.warpgroups)
        build.op("write", [self._value(weights), part(self._own_share(), self._share())])
        # wgmma reads what all warps have written.
        build.op("fence_async")
        self._from_states()
        build.op("named_sync", [meeting], threads=THREADS * self.warpgroups)
        before = self._value(sums)
        if factors and not _is_one(factors[0]):
            before = self._by_columns(before, factors[0])
        keep = arith.ConstantOp(ir.IntegerType.get_signless(1), 1).result
        left, right = self._own_columns(self.loaded[values]), part(zero, ROWS)
        build.op("mma_begin")
        pending = build.mma_async(before, left, right, keep, (True, True))
        build.op("mma_commit")
        return build.mma_wait(pending, self._rows_of_o(), 0)

    def _by_columns(self, tile: ir.Value, factors: ir.Value) -> ir.Value:
        """A fragment whose columns, which are positions, are multiplied by a number each."""

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            element = ir.Operation.create("tensor.extract", results=[ir.F32Type.get()], operands=[tile, i, j]).result
            return [arith.MulFOp(element, self._number(factors, j)).result]

        return build.map_([ROWS, ROWS], [self._rows_of_o()], [""], body)[0]

    def _leave(self, op: ir.Operation) -> None:
        """Rows of o, through the warpgroup's columns of v; the thread that starts their copy gives the stage back when it has read it."""
        tile, target, batch, head, row, count = op.operands
        whole, column = self._memory(target)
        element = ir.MemRefType(target.type).element_type
        values = self.loaded[self._values()]
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
        """One thread stores rows, and waits until they have been read."""
        with ir.InsertionPoint(build.elect()):
            build.op("store_async", place)
            build.op("store_commit")
            build.op("store_wait", pending=0, read=True)

    def _values(self) -> ir.Value:
        """The tile of v."""
        return next(op.operands[-1] for op in find_all(self.chunks, *DOTS) if op.operands[-2] in self.weights)


def _is_one(numbers: ir.Value) -> bool:
    """Whether a map makes nothing but ones."""
    op = maker(numbers, "tile.map")
    made = maker(yielded(block_of(op))[0], "arith.constant") if op is not None else None
    return made is not None and ir.FloatAttr(made.attributes["value"]).value == 1.0


def gives_rows(function: ir.Operation) -> bool:
    """Whether a tiled function that scans chunks multiplies pairs of positions."""
    return any(not flag(op, "transpose_a") for op in find_all(function, *DOTS))
