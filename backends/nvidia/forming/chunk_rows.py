"""A `warp.kernel` from a tiled function that scans chunks and gives rows of o: what the state and the chunk's own pairs give to them."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import constant, widened, yielded
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.chunk_state import ChunkStateFormer
from attn_mlir.backends.nvidia.forming.chunks import (
    BARRIERS,
    MOST_BLOCKS,
    chained,
    element_of,
    is_scaled,
)
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE, THREADS
from attn_mlir.backends.nvidia.forming.kernel import ROWS, Loaded
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION
from attn_mlir.backends.nvidia.forming.packed import TileNumbers
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import block_of, find_all, maker

_STAGES = 2
"""The fewest stages of tiles, and those of weights that warpgroups exchange."""


@dataclass
class ChunkRowsFormer(ChunkStateFormer):
    """Rows of fragments are columns of v, 64 for each warpgroup: those of the state, turned where v is the second factor of what is added
    to it, and of o^T = S^T q^T times factors + v^T P^T. For rows of dq, keys stand for v.

    The state is rounded to the first factor of its product, in registers. P = q k^T times weights is shared: each warpgroup makes its
    columns of it, writes them to shared memory, and all meet. o^T leaves through the memory of v, transposed on its way, while the state's
    product runs; the tiles of a chunk are given back together.
    """

    weights: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Maps over pairs of positions that v is multiplied by."""
    diagonals: list[ir.Operation] = field(default_factory=list)
    """Sums over pairs, of a position with itself."""
    exact: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Weights of which residuals are made, by what they were rounded to."""
    of_rows: set[ir.Value] = field(default_factory=set)
    """Results of maps over positions and columns of v."""

    def _read_products(self, state: ir.RankedTensorType) -> None:
        dots = find_all(self.chunks, *DOTS)
        self.advances = [op for op in dots if flag(op, "transpose_a")]
        rows = [op for op in self.outputs() if ir.RankedTensorType(op.operands[0].type).rank == len("ij")]
        if not 1 <= len(self.advances) <= len("hi lo".split()) or len(rows) != 1:
            raise Refused("a scan gives one tensor of rows, and has one product with the state, or one with residuals beside")
        second = list(self.advances[0].operands)[-1]
        self.turned, self.changed = is_scaled(second), {}
        entering = {list(op.operands)[-1 if self.turned else -2] for op in self.advances}
        self.block, self.columns = state.shape[::-1] if self.turned else state.shape
        self.carried, self.side_by_side = block_of(self.chunks).arguments[1], self._sequences() is not None
        for op in find_all(self.chunks, "tile.map"):
            if len(op.operands) == len("ij") and op.results[0] not in entering:
                self._read_map(op)
        values = {op.operands[-1] for op in dots if op.operands[-2] in self.weights}
        if len(values) != 1:
            raise Refused("weights of pairs are multiplied with one tile")
        (self.values,) = values
        self._read_residuals()

    def _read_map(self, op: ir.Operation) -> None:
        """What a map over two places is."""
        reads = {read.operands[0] for read in find_all(op, "tensor.extract")}
        sums, dots = op.opview.kinds() == ["sum"], [made for made in map(maker, reads) if made is not None and made.name in DOTS]
        if reads == {self.carried}:
            self.rounded[op.results[0]] = op
        elif reads & self.weights.keys() or any(self._multiplies_pairs(made) for made in dots):
            if sums:
                self.diagonals.append(op)
            else:
                self.weights[op.results[0]] = op
        elif dots or sums:
            self.of_rows.add(op.results[0])
        else:
            loads = [tile for tile in reads if maker(tile, "tile.load") is not None]
            if len(loads) == len(reads) == 1:
                self.changed[op.results[0]] = loads[0]

    def _multiplies_pairs(self, dot: ir.Operation) -> bool:
        """Whether a product is q k^T, not of the state or of weights."""
        a, b = list(dot.operands)[-2:]
        return dot.name == "tile.dot" and flag(dot, "transpose_b") and b not in self.rounded and a not in self.weights

    def outputs(self) -> list[ir.Operation]:
        """The stores of rows, and of numbers of rows."""
        states = {self.chunks.results[0], block_of(self.chunks).arguments[1], *(op.results[0] for op in self.advances)}
        return [op for op in find_all(self.function, "tile.store") if op.operands[0] not in states]

    def _most_blocks(self) -> int:
        """As many as registers and, with few stages, shared memory hold."""
        consumer = self.columns // 2 + thresholds.ROWS_REGISTERS
        registers = THREADS * (self.warpgroups * consumer + thresholds.TRANSPOSING_REGISTERS)
        found = min(MOST_BLOCKS, max(1, self.target.registers // registers))
        while found > 1 and self.target.share(found)[1] < _STAGES * self._stage_bytes() + self._beside():
            found -= 1
        return found

    def _beside(self) -> int:
        """Bytes of shared memory beside stages of tiles."""
        return BARRIERS + self._exchanged() + self._number_bytes()

    def _exchanged(self) -> int:
        """Weights, and numbers of products: those of each warp."""
        numbers = sum(ir.RankedTensorType(op.operands[0].type).rank == 1 for op in self.outputs())
        weights = (1 if numbers else _STAGES) * sum(bytes_of(ir.RankedTensorType(tile.type)) for tile in self.weights)
        return weights + numbers * self.warpgroups * rings.WARPS * ROWS * 4 + len(self.diagonals) * ROWS * 4

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
        self.exchanges: dict[ir.Value, ir.Value] = {}
        for tile in self.weights:
            type_ = ir.RankedTensorType(tile.type)
            with build.named("weights"):
                shared = build.shared_type([1, *type_.shape], type_.element_type, rings.SWIZZLE)
                self.exchanges[tile] = build.op("alloc", results=[shared]).result
        self.numbers = {op.results[0]: self._numbers("own", 1) for op in self.diagonals}
        stored = [op.operands[0] for op in self.outputs() if ir.RankedTensorType(op.operands[0].type).rank == 1]
        self.products = {tile: self._numbers("products", self.warpgroups * rings.WARPS) for tile in stored}

    def _reads(self, load: ir.Operation) -> set[ir.Value]:
        """The initial state goes to registers."""
        return set() if load.results[0] == self.chunks.operands[3] else super()._reads(load)

    def _ends(self, ops: list[ir.Operation]) -> dict[ir.Operation, list[ir.Value]]:
        """Tiles of a chunk are given back together, behind the state's product, but that through whose memory rows leave (`_give_last`)."""
        return {self.advances[-1]: [self._base()]} if super()._ends(ops) else {}

    def _tiles(self, entry: ir.Block, warpgroup: ir.Value, grid: TileNumbers) -> None:
        """A role ends when its copies are done."""
        super()._tiles(entry, warpgroup, grid)
        with ir.InsertionPoint(build.elect()):
            build.op("store_wait", pending=0, read=False)

    # ---- ops

    def _op(self, op: ir.Operation) -> None:
        if op.name == "tile.map" and (op.results[0] in self.rounded or op in self.diagonals):
            return
        if op.name == "tile.map" and op.results[0] in self.weights:
            self.known[op.results[0]] = self._of_pairs(op)
        elif op.name == "tile.load" and op.results[0] == self.chunks.operands[3]:
            self._initial(op)
        elif (op.name == "tile.store" and op in self.outputs()) or (len(op.results) and op.results[0] in self.of_rows):
            self.leaving.append(op)
        else:
            super()._op(op)
            if len(op.results) and op.results[0] == self.values and op.results[0] in self.changed:
                self._cut({op.results[0]: self._own_columns(self.loaded[op.results[0]])})

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
            if op == self.advances[-1]:
                self._leave()
        elif b in self.rounded and a in self.loaded and flag(op, "transpose_b") != self.turned:
            self.late.append(op)
        elif a in self.loaded and b in self.loaded and not before and flag(op, "transpose_b"):
            behind = {self.values: self._own_columns(self.loaded[self.values])} if self.values in self.loaded else {}
            self._cut({b: self.loaded[b].memory, **behind})
            self.known[op.results[0]] = self._pairs(self.loaded[a], self.loaded[b])
            if self._flies():
                self._from_states()
            self._await_numbers()
        elif a in self.weights and b in self.loaded and not flag(op, "transpose_b"):
            self.known[op.results[0]] = self._from_pairs(op)
        else:
            raise Refused("a scan multiplies q with k and the state, and weights of pairs with v")

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

    def _of_pairs(self, op: ir.Operation) -> ir.Value:
        """The warpgroup's columns of a map over pairs of positions."""
        block, shape = block_of(op), [ROWS, self._share()]
        if len(op.results) != 1:
            raise Refused("a map over pairs makes one tile of others")
        if op.results[0] in self.rests:
            return self._rest_of_pairs(op)
        share, result = self._own_share(), op.results[0]

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            known = {block.arguments[0]: i, block.arguments[1]: arith.AddIOp(share, j).result}

            def read(inner: ir.Operation) -> ir.Value:
                source, *places = inner.operands
                if len(places) == 1:
                    return self._number(source, known[places[0]])
                if places != list(block.arguments):
                    raise Refused("a map over pairs reads a tile at another place than its own")
                return element_of(self._value(source), i, j)

            made = self._clone(block, known, read)
            if op in self.diagonals:
                made = _on_diagonal(made, [known[argument] for argument in block.arguments])
            return [made, widened(made)][: len(types)]

        elements = [ir.RankedTensorType(result.type).element_type, *[ir.F32Type.get()] * any(of == op for of in self.rests.values())]
        types = [build.fragment_type(INSTRUCTION, "tile", shape, element) for element in elements]
        made, *exact = build.map_(shape, types, [""] * len(types), body)
        self.exact.update(dict.fromkeys([result], *exact) if exact else {})
        return made

    def _rest_of_pairs(self, op: ir.Operation) -> ir.Value:
        """What rounding has left of the weights that were made before: exponentials are computed once."""
        high, type_ = self.rests[op.results[0]].results[0], ir.RankedTensorType(op.results[0].type)
        exact, rounded = self.exact[high], self._value(high)

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            again = arith.ExtFOp(ir.F32Type.get(), element_of(rounded, i, j)).result
            return [arith.TruncFOp(type_.element_type, arith.SubFOp(element_of(exact, i, j), again).result).result]

        shape = [ROWS, self._share()]
        return build.map_(shape, [build.fragment_type(INSTRUCTION, "tile", shape, type_.element_type)], [""], body)[0]

    def _from_pairs(self, op: ir.Operation) -> ir.Value:
        """What the state gives, times factors, + v^T P^T."""
        sums, *factors, weights, values = op.operands
        if op.name == "tile.dot_rescale":
            self._share_weights()
        before = self._value(sums)
        if factors and not _is_one(factors[0]):
            before = self._by_columns(before, factors[0])
        left, right = self._own_columns(self.loaded[values]), self._part(weights, build.index(0), ROWS)
        return chained(before, left, right, (True, True))

    def _part(self, tile: ir.Value, column: ir.Value, columns: int) -> ir.Value:
        """Columns of weights in shared memory."""
        zero, shared = build.index(0), ir.MemRefType(self.exchanges[tile].type)
        type_ = ir.MemRefType.get([ROWS, columns], shared.element_type, memory_space=shared.memory_space)
        return build.op("view", [self.exchanges[tile], zero, zero, column], [type_]).result

    def _meet(self) -> None:
        """All warpgroups do."""
        build.op("named_sync", [build.index(EXCHANGE)], threads=THREADS * self.warpgroups)

    def _share_weights(self) -> None:
        """Each warpgroup writes its columns of weights, and what it has of diagonals, to shared memory; all meet.

        They meet before, too, where they do not behind what rows are multiplied by: weights of the chunk before have been read then.
        """
        if not self.products:
            self._meet()
        for tile in self.weights:
            build.op("write", [self._value(tile), self._part(tile, self._own_share(), self._share())])
        for op in self.diagonals:
            build.op("write_diagonal", [self._of_pairs(op), self.numbers[op.results[0]], self._own_share()])
            self.sums[op.results[0]] = (self.numbers[op.results[0]], build.index(0))
        # wgmma reads what all warps have written.
        build.op("fence_async")
        self._from_states()
        self._give_last()
        self._await_values()
        self._meet()

    def _by_columns(self, tile: ir.Value, factors: ir.Value) -> ir.Value:
        """A fragment whose columns, which are positions, are multiplied by a number each."""

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            return [arith.MulFOp(element_of(tile, i, j), self._number(factors, j)).result]

        return build.map_([ROWS, ROWS], [self._rows_of_o()], [""], body)[0]


def _on_diagonal(value: ir.Value, places: list[ir.Value]) -> ir.Value:
    """What a number is where the two places are one: elsewhere `warp.write_diagonal` leaves it out."""
    select = maker(value, "arith.select")
    compared = maker(select.operands[0], "arith.cmpi") if select is not None else None
    if select is None or compared is None or ir.IntegerAttr(compared.attributes["predicate"]).value != arith.CmpIPredicate.eq:
        return value
    return select.operands[1] if set(compared.operands) == set(places) else value


def _is_one(numbers: ir.Value) -> bool:
    """Whether a map makes nothing but ones."""
    op = maker(numbers, "tile.map")
    made = maker(yielded(block_of(op))[0], "arith.constant") if op is not None else None
    return made is not None and ir.FloatAttr(made.attributes["value"]).value == 1.0


def gives_rows(function: ir.Operation) -> bool:
    """Whether a tiled function that scans chunks multiplies pairs of positions."""
    return any(not flag(op, "transpose_a") for op in find_all(function, *DOTS))


def gives_products(function: ir.Operation) -> bool:
    """Whether a tiled function that scans chunks stores a number for each position, sums of products."""
    return any(ir.RankedTensorType(op.operands[0].type).rank == 1 for op in find_all(function, "tile.store"))


def rows_and_state(function: ir.Operation) -> tuple[int, ...]:
    """The columns of fragments and their rows of the state of a tiled function that scans chunks of 16 bits, and gives rows.

    Empty for other functions.
    """
    loops = [op for op in find_all(function, "scf.for") if list(op.results)]
    if len(loops) != 1 or len(loops[0].results) != 1 or find_all(function, "tile.decay_channels", "tile.decay_values"):
        return ()
    loads = [ir.RankedTensorType(op.results[0].type) for op in find_all(loops[0], "tile.load")]
    advances = [op for op in find_all(loops[0], *DOTS) if flag(op, "transpose_a")]
    fits = {type_.element_type.width for type_ in loads} == {16} and all(type_.shape[0] == ROWS for type_ in loads)
    if not fits or not advances or not gives_rows(function):
        return ()
    shape = ir.RankedTensorType(loops[0].results[0].type).shape
    return tuple(shape if is_scaled(list(advances[0].operands)[-1]) else shape[::-1])
