"""A `warp.kernel` from a tiled function that scans chunks and gives no rows of o: what they add to a state, and states on the way."""

from dataclasses import dataclass, field
from typing import ClassVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE as OF_TILES
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.structure import constant, widened, yielded
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import maps
from attn_mlir.backends.nvidia.forming.chunk_numbers import NUMBERS_STAGES, NumbersFormer
from attn_mlir.backends.nvidia.forming.facts import EXCHANGE, THREADS, occupancy_of
from attn_mlir.backends.nvidia.forming.kernel import ROWS, Loaded
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION, FragmentMap
from attn_mlir.backends.nvidia.forming.packed import TileNumbers
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.tiled import equal_loads
from attn_mlir.backends.nvidia.hopper.scan_patterns import is_rest
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir, memref, scf
from attn_mlir.passes.regions import block_of, find_all, maker

BARRIERS, _MOST_STAGES, MOST_BLOCKS = 2048, 8, 3
"""Bytes of shared memory beside stages, the most stages, and the most thread blocks on a multiprocessor."""
SCALE = 2.0**11


@dataclass
class ChunksFormer(NumbersFormer):
    """A tile of the grid is a scan, of one head and sequence or segment. The rows of fragments are those of the state or, where a map makes
    the second factor of products, its columns (`turned`): 64 for each warpgroup.

    A product sums over positions, which are rows of both tiles: what a map makes of one is read transposed, and is the first factor, in
    registers; the other one is read from shared memory as it was loaded, or as a map has changed it there.
    """

    GRIDS: ClassVar[tuple[str, ...]] = ("chunks",)

    residuals: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Residuals of rounding to f16, most of which would be subnormal, and the product of what was rounded that comes before theirs."""
    rests: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """All residuals of rounding, and the maps that round: theirs read what these have made, and round nothing once more."""
    states: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Memory of states, by what it is for the function, with a row for each row of a fragment."""

    def _share_rows(self) -> None:
        loops = [op for op in find_all(self.function, "scf.for") if list(op.results)]
        if len(loops) != 1 or len(loops[0].results) != 1:
            raise Refused("a scan has one loop over chunks, which carries its state")
        state = ir.RankedTensorType(loops[0].results[0].type)
        if state.rank != 2:
            raise Refused("a scan without a state")
        self.chunks = loops[0]
        self._read_products(state)
        super()._share_rows()
        for op in find_all(self.function, "tile.map"):
            if len(block_of(op).arguments) == 1 and not (self._is_of_state(op.results[0]) and len(list(op.results[0].uses)) == 1):
                self.of_positions[op.results[0]] = op
        self.occupancy = occupancy_of(self.function, self._most_blocks())

    def _read_products(self, state: ir.RankedTensorType) -> None:
        """Which tile has the rows of fragments, what residuals are, and what is changed in its place."""
        if self._sequences() is not None:
            raise Refused("a scan of sequences side by side gives rows")
        dots = [list(op.operands)[-2:] for op in find_all(self.chunks, *DOTS)]
        if not dots:
            raise Refused("nothing is multiplied")
        self.turned = all(is_scaled(second) for _, second in dots)
        seconds = [maker(factors[not self.turned], "tile.map") for factors in dots]
        self.changed = {op.results[0]: _only_tile(op) for op in seconds if op is not None}
        self.block, self.columns = state.shape[::-1] if self.turned else state.shape
        self._read_residuals()

    def _read_residuals(self) -> None:
        """Which maps make residuals, and which products with the state multiply those of f16. Raises Refused where a tile that is
        changed in its place is also read as it was loaded.
        """
        same = equal_loads(self.function)
        for op in find_all(self.chunks, "tile.map", *DOTS):
            read = {same.get(tile, tile) for tile in (*op.operands, *(each.operands[0] for each in find_all(op, "tensor.extract")))}
            if any(same.get(tile, tile) in read and made not in op.results for made, tile in self.changed.items()):
                raise Refused("a map changes a tile in its place that others read as it was loaded")
        maps_ = [op for op in find_all(self.chunks, "tile.map") if len(op.results) == 1 and len(op.operands) == len("ij")]
        self.rests = {low.results[0]: of for low in maps_ for of in maps_ if of != low and is_rest(low, of)}
        for op in find_all(self.chunks, "tile.dot_add"):
            if not flag(op, "transpose_a"):
                continue
            rounded = maker(op.operands[0], "tile.dot_rescale")
            low, high = (maker(each.operands[n + self.turned], "tile.map") for n, each in ((1, op), (2, rounded or op)))
            if rounded is not None and low is not None and high is not None and is_rest(low, high):
                self.residuals |= {low.results[0]: rounded} if str(low.results[0].type.element_type) == "f16" else {}

    def _most_blocks(self) -> int:
        """The thread blocks that share a multiprocessor, as far as registers hold their states."""
        registers = THREADS * (self.warpgroups + 1) * (self.columns // 2 + thresholds.STATE_REGISTERS)
        return min(MOST_BLOCKS, max(1, self.target.registers // registers))

    def _schedule(self) -> ir.Attribute:
        """As many stages as shared memory holds, as a scan waits for memory; heads that share k come one after another as they are."""
        fields = attributes.read(self.function, OF_TILES)
        return attributes.write({**self._usual(), **fields, "group": 0, "stages": self._stages()})

    def _stages(self) -> int:
        """Those of tiles: as many as shared memory holds."""
        chosen = attributes.read(self.function, attributes.CHOICES)
        most = (self.shared_bytes - BARRIERS - self._number_bytes() - self._exchanged()) // max(1, self._stage_bytes())
        return int(chosen.get("stages", max(1, min(_MOST_STAGES, most))))

    def _usual(self) -> Fields:
        """Choices that a scan of this form has where none were made."""
        return {}

    def _stage_bytes(self) -> int:
        """Of the tiles of a chunk."""
        return sum(bytes_of(ir.RankedTensorType(op.results[0].type)) for op in find_all(self.chunks, "tile.load"))

    def _number_bytes(self) -> int:
        """At most, of numbers of positions."""
        return NUMBERS_STAGES * 4 * sum(ir.RankedTensorType(tile.type).shape[0] for tile in self._numbers_of_chunks())

    def _exchanged(self) -> int:
        """Bytes by which warpgroups exchange something."""
        return 0

    def _is_of_state(self, numbers: ir.Value) -> bool:
        """Whether a product's sums are scaled by these."""
        return any(use.owner.operation.name == "tile.dot_rescale" and use.operand_number == 1 for use in numbers.uses)

    def _grid(self) -> TileNumbers:
        over, facts = self.known[self.over], ir.DictAttr(self.function.attributes["tile.kernel"])
        heads, scans = (memref.DimOp(over, build.index(n)).result for n in (1, 0))
        if (offsets := self._sequences()) is not None:
            scans = arith.SubIOp(memref.DimOp(self.known[offsets], build.index(0)).result, build.index(1)).result
        if "segment" in facts:
            size = build.index(ir.IntegerAttr(facts["segment"]).value)
            scans = arith.MulIOp(scans, arith.CeilDivSIOp(memref.DimOp(over, build.index(2)).result, size).result).result
        blocks = build.index(ir.IntegerAttr(facts["blocks"]).value if "blocks" in facts else 1)
        with build.named("tiles"):
            return TileNumbers(arith.MulIOp(arith.MulIOp(heads, scans).result, blocks).result, blocks, heads)

    def _sequences(self) -> ir.Value | None:
        """Where sequences that lie side by side begin and end, if they do."""
        facts = ir.DictAttr(self.function.attributes["tile.kernel"])
        number = ir.IntegerAttr(facts["sequences"]).value if "sequences" in facts else None
        return None if number is None else self.function.regions[0].blocks[0].arguments[number]

    def _memory(self, source: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """Of what a program has some columns of, its own."""
        view = maker(source, "memref.subview")
        if view is None:
            return source, None
        memory, *offsets = view.operands
        static = list(ir.DenseI64ArrayAttr(view.attributes["static_offsets"]))
        if len(static) != 4 or any(static[:3]) or not ir.ShapedType.is_dynamic_size(static[3]) or maker(memory) is not None:
            raise Refused("a program reads and writes some columns of a tensor, and all of its rows")
        return memory, offsets[0]

    def _make_rings(self) -> None:
        """Also the memory of states, which come from registers."""
        super()._make_rings()
        for memory in dict.fromkeys(self._memory_of_states()):
            whole, column = self._memory(memory)
            if column is not None and not self.turned:
                raise Refused("columns of states are rows of fragments only where they are turned")
            self.states[memory] = self._turned(self._value(whole)) if self.turned else self._value(whole)

    def _memory_of_states(self) -> list[ir.Value]:
        """What states are stored to."""
        return [op.operands[1] for op in find_all(self.function, "tile.store")]

    def _turned(self, memory: ir.Value) -> ir.Value:
        """A view whose rows are the columns of states in memory."""
        type_ = ir.MemRefType(memory.type)
        *outer, rows, columns = type_.shape
        made = ir.MemRefType.get([*outer, columns, rows], type_.element_type, type_.layout)
        order = ir.AffineMapAttr.get(ir.AffineMap.get_permutation([0, 1, 3, 2]))
        return ir.Operation.create("memref.transpose", results=[made], operands=[memory], attributes={"permutation": order}).result

    def _reads(self, load: ir.Operation) -> set[ir.Value]:
        """Also what is changed in its place."""
        return super()._reads(load) | {made for made, tile in self.changed.items() if tile == load.results[0]}

    # ---- ops

    def _op(self, op: ir.Operation) -> None:
        if op.name == "memref.subview":
            return
        if op.name == "tile.map" and len(op.operands) == 1 and self._is_of_state(op.results[0]):
            self.known[op.results[0]] = self._of_chunk(op)
        elif op.name == "tile.map" and op.results[0] in self.changed:
            self._change(op)
        elif op.name == "tile.map" and len(op.operands) == 2:
            self._read(op)
            if any(use.owner.operation.name in DOTS for use in op.results[0].uses):
                self.known[op.results[0]] = self._transposed(op)
        else:
            super()._op(op)

    def _state(self) -> ir.Type:
        """The warpgroup's part of a state."""
        return build.fragment_type(INSTRUCTION, "tile", [ROWS, self.columns], ir.F32Type.get())

    # ---- products over positions

    def _of_chunk(self, op: ir.Operation) -> ir.Value:
        """The factor of a state: one number for all of its rows."""
        block = block_of(op)
        if len(op.results) != 1 or list(block.arguments[0].uses) or find_all(op, "tensor.extract"):
            raise Refused("rows of a state have factors of their own")
        return self._clone(block, {}, lambda read: read.results[0])

    def _own_columns(self, tile: Loaded) -> ir.Value:
        """The warpgroup's columns of a tile of positions, which are rows of its fragment."""
        type_ = ir.MemRefType(tile.memory.type)
        if type_.shape[1] != self.block:
            raise Refused(f"a tile of {type_.shape[1]} columns stands for the {self.block} of all warpgroups")
        buffer, stage, row, _ = tile.memory.owner.operation.operands
        own = ir.MemRefType.get([type_.shape[0], ROWS], type_.element_type, memory_space=type_.memory_space)
        return build.op("view", [buffer, stage, row, self.first], [own]).result

    def _read(self, op: ir.Operation) -> None:
        """Reads the loaded tiles that a map over positions and columns reads, transposed, those that no map has read before."""
        shape = ir.RankedTensorType(op.results[0].type).shape
        if len(op.results) != 1 or op.opview.kinds() or len(shape) != 2:
            raise Refused("a map over positions makes one tile of others")
        for tile in dict.fromkeys(inner.operands[0] for inner in find_all(op, "tensor.extract") if inner.operands[0] in self.loaded):
            if self.loaded[tile].fragment is None:
                fragment = build.fragment_type(INSTRUCTION, "tile", [ROWS, shape[0]], ir.RankedTensorType(tile.type).element_type)
                self.loaded[tile].fragment = build.op("read_transposed", [self._own_columns(self.loaded[tile])], [fragment]).result

    def _transposed(self, op: ir.Operation) -> ir.Value:
        """A map over positions and columns as a fragment of columns and positions; the maps whose tiles it reads are part of it."""
        type_ = ir.RankedTensorType(op.results[0].type)

        def element(i: ir.Value, j: ir.Value, of: ir.Operation) -> ir.Value:
            block = block_of(of)
            known = {block.arguments[0]: j, block.arguments[1]: arith.AddIOp(self.first, i).result}

            def read(inner: ir.Operation) -> ir.Value:
                source, *places = inner.operands
                if places == list(block.arguments[:1]):
                    return self._number(source, j)
                # A tile that was changed in its place is read from there, as others.
                before = None if source in self.changed else maker(source, "tile.map")
                if places != list(block.arguments) or (before is None and source not in self.loaded):
                    raise Refused("a map reads a tile at another place than its own")
                if before is not None:
                    return element(i, j, before)
                return element_of(self.loaded[source].fragment, i, j)

            if of == op and rounded is not None:
                known[rounding_of(op)] = element_of(rounded, i, j)
            return self._clone(block, known, read)

        high = self.rests.get(op.results[0])
        rounded = self.known.get(high.results[0]) if high is not None else None

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            value = element(i, j, op)
            if op.results[0] in self.residuals:
                exact = arith.MulFOp(value.owner.operation.operands[0], number_of(SCALE)).result
                value = arith.TruncFOp(type_.element_type, exact).result
            return [value]

        made = build.fragment_type(INSTRUCTION, "tile", [ROWS, type_.shape[0]], type_.element_type)
        return build.map_([ROWS, type_.shape[0]], [made], [""], body)[0]

    def _change(self, op: ir.Operation) -> None:
        """A map that makes a second factor changes its tile in shared memory: one warpgroup does, and all meet."""
        tile = self.loaded[self.changed[op.results[0]]]
        type_ = build.fragment_type(INSTRUCTION, "tile", tile.ring.tile.shape, tile.ring.tile.element_type)
        branch = scf.IfOp(self.leads)
        with ir.InsertionPoint(branch.then_block):
            whole = build.op("read", [tile.memory], [type_]).result
            where = FragmentMap(ROWS, ROWS, type_.shape[1], INSTRUCTION, build.index(0), self._value, lambda value: whole)
            build.op("write", [maps.form(op, where)[0], tile.memory])
            build.op("fence_async")
            scf.YieldOp([])
        build.op("named_sync", [build.index(EXCHANGE)], threads=THREADS * self.warpgroups)
        self.loaded[op.results[0]] = tile

    def _start(self, op: ir.Operation) -> None:
        value = self._value(op.operands[0])
        self.known[op.results[0]] = build.map_([ROWS, self.columns], [self._state()], [""], lambda *places: [value])[0]

    def _product(self, op: ir.Operation) -> None:
        """A product that adds to a state. A residual's is 2^11 times as large, and goes before that of what was rounded:
        f S + hi b + lo b is 2^-11 (2^11 f S + (2^11 lo) b) + hi b.
        """
        if op in self.residuals.values():
            return
        *before, a, b = op.operands
        first, second = (b, a) if self.turned else (a, b)
        if not flag(op, "transpose_a") or flag(op, "transpose_b") or second not in self.loaded:
            raise Refused("products of scans without rows of o sum over positions, with a loaded tile as one factor")
        rounded, right, state = self.residuals.get(first), self.loaded[second].memory, self._state()
        if rounded is None:
            sums = times(*map(self._value, before)) if before else None
            left = self._value(first)
            self.known[op.results[0]] = self._multiply(None, left, right, False, state) if sums is None else chained(sums, left, right)
            return
        start, factor = (self._value(each) for each in list(rounded.operands)[:2])
        sums = times(start, arith.MulFOp(factor, number_of(SCALE)).result)
        sums = times(self._multiply(sums, self._value(first), right, False, state), number_of(1 / SCALE))
        self.known[op.results[0]] = self._multiply(sums, self._value(rounded.operands[2 + self.turned]), right, False, state)

    def _store(self, op: ir.Operation) -> None:
        """A state, all of whose rows exist."""
        tile, target, batch, head, row, count = op.operands
        _, column = self._memory(target)
        if constant(count) is None or tile.type != self.chunks.results[0].type or (self.turned and constant(row) != 0):
            raise Refused("a scan without rows of o stores states alone, and all rows that a program has of them")
        first = arith.AddIOp(self._value(row if column is None else column), self.first).result
        build.op("store", [self._value(tile), self.states[target], self._value(batch), self._value(head), first])


def number_of(value: float) -> ir.Value:
    """A constant of f32."""
    return arith.ConstantOp(ir.F32Type.get(), value).result


def chained(sums: ir.Value, left: ir.Value, right: ir.Value, transpose: tuple[bool, bool] = (False, False)) -> ir.Value:
    """Adds a product to sums, and waits for it. Where they are a product's that was waited for just now, both are on their way together."""
    keep, type_ = arith.ConstantOp(ir.IntegerType.get_signless(1), 1).result, sums.type
    wait, block = maker(sums, "warp.mma_wait"), ir.InsertionPoint.current.block
    ops = [view.operation for view in block.operations]
    behind = ops[ops.index(wait) + 1 :] if wait is not None and wait in ops else ops
    if wait is not None and all(op.name in ("arith.constant", "warp.view") for op in behind):
        sums = wait.operands[0]
        commit = ops[ops.index(wait) - 1]
        wait.erase()
        commit.erase()
    else:
        build.op("mma_begin")
    pending = build.mma_async(sums, left, right, keep, transpose)
    build.op("mma_commit")
    return build.mma_wait(pending, type_, 0)


def element_of(tile: ir.Value, i: ir.Value, j: ir.Value) -> ir.Value:
    """An element of a fragment, in a map."""
    return ir.Operation.create("tensor.extract", results=[ir.RankedTensorType(tile.type).element_type], operands=[tile, i, j]).result


def rounding_of(residual: ir.Operation) -> ir.Value:
    """What the map of a residual has rounded once more, of the map of which it is the residual (`is_rest`)."""
    difference = widened(yielded(block_of(residual))[0]).owner.operation
    return difference.operands[1].owner.operation.operands[0]


def times(tile: ir.Value, factor: ir.Value | None = None) -> ir.Value:
    """A fragment times a number that is not 1."""
    one = maker(factor, "arith.constant") if factor is not None else None
    if factor is None or (one is not None and ir.FloatAttr(one.attributes["value"]).value == 1.0):
        return tile

    def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
        return [arith.MulFOp(element_of(tile, i, j), factor).result]

    type_ = ir.RankedTensorType(tile.type)
    return build.map_(type_.shape, [type_], [""], body)[0]


def is_scaled(tile: ir.Value) -> bool:
    """Whether a map makes it that reads numbers of positions."""
    op = maker(tile, "tile.map")
    return op is not None and any(ir.RankedTensorType(read.operands[0].type).rank == 1 for read in find_all(op, "tensor.extract"))


def _only_tile(op: ir.Operation) -> ir.Value:
    """The loaded tile that a map changes element by element. Raises Refused for another map."""
    tiles = {read.operands[0] for read in find_all(op, "tensor.extract")}
    if len(tiles) != 1 or [tile.type for tile in tiles if maker(tile, "tile.load") is not None] != [op.results[0].type]:
        raise Refused("a second factor is a loaded tile, or made of one element by element")
    return tiles.pop()


def adds_to_state(function: ir.Operation) -> tuple[int, ...]:
    """The shape of the state of a tiled function that scans chunks of 16 bits for their states alone: products sum over positions, and
    nothing else is stored; empty for other functions.
    """
    loops = [op for op in find_all(function, "scf.for") if list(op.results)]
    dots = find_all(function, *DOTS)
    if len(loops) != 1 or len(loops[0].results) != 1 or find_all(function, "tile.decay_channels", "tile.decay_values"):
        return ()
    states = [loops[0].results[0], block_of(loops[0]).arguments[1], *yielded(block_of(loops[0]))]
    kinds = {ir.RankedTensorType(op.results[0].type).element_type.width for op in find_all(loops[0], "tile.load")}
    stored = [op.operands[0] for op in find_all(function, "tile.store")]
    over_positions = [flag(op, "transpose_a") and not flag(op, "transpose_b") for op in dots]
    alone = kinds == {16} and bool(dots) and all(over_positions) and all(value in states for value in stored)
    return tuple(ir.RankedTensorType(states[0].type).shape) if alone else ()
