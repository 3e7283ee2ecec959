"""A `warp.kernel` from a tiled function that scans chunks and gives no rows of o: what they add to a state, and states on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE as OF_TILES
from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.nvidia.forming import maps
from attn_mlir.backends.nvidia.forming.kernel import INSTRUCTION, ROWS, Former, Loaded
from attn_mlir.backends.nvidia.forming.packed import TileNumbers
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import RingBuffer, SharedRing
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of, stages_and_arrivals
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.regions import block_of, find_all, walk

_NUMBERS, _RESERVED, _MOST_STAGES = 1024, 2048, 8
"""Bytes of a stage beside tiles and of shared memory beside stages, and the most stages."""


@dataclass
class ChunksFormer(Former):
    """Fragments have the rows of a state, 64 for each warpgroup; a tile of the grid is a scan, of one head and sequence or segment.

    A product sums over positions, which are rows of both tiles: the first one, or what a map makes of it, is read transposed. Numbers of
    positions that are summed up along a chunk (`tile.cumsum`) come to shared memory with the first tile that is loaded after them
    (`warp.make_rows`), at the same barrier; maps read them there.
    """

    GRIDS: ClassVar[tuple[str, ...]] = ("chunks",)

    sums: dict[ir.Value, tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    """Of sums of a chunk: the buffer and its stage."""
    waiting: list[ir.Operation] = field(default_factory=list)
    """Sums, and numbers of them, that come with the next tile."""
    factors: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Buffers of numbers that maps make of positions and factors of products read."""
    read_here: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Of a region that makes numbers: what it has read of those that were made before."""
    brings: SharedRing | None = None
    """The ring with whose tiles they come."""
    of_positions: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Maps that make a number for each position, by their results: they are computed where they are needed."""

    def _share_rows(self) -> None:
        loops = [op for op in find_all(self.function, "scf.for") if list(op.results)]
        if len(loops) != 1 or len(loops[0].results) != 1:
            raise Refused("a scan has one loop over chunks, which carries its state")
        state = ir.RankedTensorType(loops[0].results[0].type)
        if state.rank != 2 or "sequences" in ir.DictAttr(self.function.attributes["tile.kernel"]):
            raise Refused("a scan of sequences side by side, or without a state")
        self.block, self.columns = state.shape[0], state.shape[1]
        self.chunks = loops[0]
        super()._share_rows()
        for op in find_all(self.function, "tile.map"):
            if len(block_of(op).arguments) == 1 and not self._is_of_state(op.results[0]):
                self.of_positions[op.results[0]] = op

    def _schedule(self) -> ir.Attribute:
        """As many stages as shared memory holds: a scan waits for memory."""
        fields, chosen = (attributes.read(self.function, name) for name in (OF_TILES, attributes.CHOICES))
        loads = [ir.RankedTensorType(op.results[0].type) for op in find_all(self.chunks, "tile.load")]
        stage = sum(bytes_of(type_) for type_ in loads) + _NUMBERS
        most = min(_MOST_STAGES, (self.target.shared_bytes - _RESERVED) // max(1, stage))
        return attributes.write({**fields, "stages": chosen.get("stages", max(1, most))})

    def _is_of_state(self, numbers: ir.Value) -> bool:
        """Whether a product's sums are scaled by these."""
        return any(use.owner.operation.name == "tile.dot_rescale" and use.operand_number == 1 for use in numbers.uses)

    def _grid(self) -> TileNumbers:
        over, facts = self.known[self.over], ir.DictAttr(self.function.attributes["tile.kernel"])
        heads, scans = (memref.DimOp(over, build.index(n)).result for n in (1, 0))
        if "segment" in facts:
            size = build.index(ir.IntegerAttr(facts["segment"]).value)
            scans = arith.MulIOp(scans, arith.CeilDivSIOp(memref.DimOp(over, build.index(2)).result, size).result).result
        with build.named("tiles"):
            return TileNumbers(arith.MulIOp(heads, scans).result, build.index(1), heads)

    def _make_rings(self) -> None:
        """Those of tiles that the loop loads; an initial state goes to registers."""
        super()._make_rings()
        self.buffers: dict[ir.Value, ir.Value] = {}
        for op in find_all(self.function, "tile.cumsum"):
            type_ = ir.RankedTensorType(op.results[0].type)
            if type_.rank != 1 or str(type_.element_type) != "f32" or flag(op, "reverse") or op.operands[0] not in self.of_positions:
                raise Refused("sums along a chunk are of one number of f32 for each position, the first one first")
            ring = self._brings(op)
            with build.named("sums"):
                self.buffers[op.results[0]] = build.op(
                    "alloc", results=[build.shared_type([1, type_.shape[0]], type_.element_type, 0)]
                ).result
            self._awaits(ring)
        self._make_factors()

    def _awaits(self, ring: SharedRing) -> None:
        """One more arrival when a tile is there."""
        assert isinstance(ring, RingBuffer)
        stages, arrivals = stages_and_arrivals(ring.full.type)
        ring.full.set_type(ir.Type.parse(f"!warp.barrier<{stages} : i64, {arrivals + 1} : i64>"))

    def _make_factors(self) -> None:
        """Buffers of numbers that maps read which make factors of products: they come with the first tile of a chunk, too."""
        loads = [op for op in find_all(self.chunks, "tile.load") if op.results[0] not in self.same and self._reads(op)]
        maps_ = [op for op in find_all(self.chunks, "tile.map") if len(block_of(op).arguments) == 2 and self._is_transposed(op)]
        reads = [read.operands[0] for op in maps_ for read in find_all(op, "tensor.extract")]
        for tile in dict.fromkeys(tile for tile in reads if tile in self.of_positions):
            type_ = ir.RankedTensorType(tile.type)
            if str(type_.element_type) != "f32" or not loads:
                raise Refused("factors of positions are numbers of f32, and come with a tile")
            with build.named("factors"):
                self.factors[tile] = build.op("alloc", results=[build.shared_type([1, *type_.shape], type_.element_type, 0)]).result
            self.brings = self.rings[loads[0].operands[0], self._rows_of(loads[0])]
            self._awaits(self.brings)

    def _brings(self, op: ir.Operation) -> SharedRing:
        """The ring of the tile that sums come with: the first one that is loaded behind them."""
        ops = [view.operation for view in op.block.operations]
        loads = [
            each for each in ops[ops.index(op) :] if each.name == "tile.load" and each.results[0] not in self.same and self._reads(each)
        ]
        if not loads:
            raise Refused("no tile is loaded behind sums along a chunk")
        return self.rings[loads[0].operands[0], self._rows_of(loads[0])]

    def _is_initial(self, load: ir.Operation) -> bool:
        """Whether it loads the state that the loop begins with."""
        return all(use.owner.operation == self.chunks for use in load.results[0].uses)

    def _reads(self, load: ir.Operation) -> set[ir.Value]:
        return set() if self._is_initial(load) else super()._reads(load)

    # ---- ops

    def _op(self, op: ir.Operation) -> None:
        result = op.results[0] if len(op.results) else None
        if op.name == "tile.cumsum" or (op.name == "tensor.extract" and op.operands[0] in self.buffers):
            self.waiting.append(op)
        elif result in self.of_positions:
            return
        elif op.name == "tile.load" and self._is_initial(op):
            place = [self._value(v) for v in list(op.operands)[1:4]]
            type_ = self._where().type_of(op.results[0].type)
            self.known[op.results[0]] = build.op("load", [self._value(op.operands[0]), *place], [type_]).result
        elif op.name == "tile.map" and self._is_transposed(op):
            self.known[op.results[0]] = self._transposed(op)
        else:
            super()._op(op)

    def _filled(self, ring: SharedRing, place: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """Also what waits for this tile: sums are made behind its copy, and numbers of them are read when it is there."""
        memory, stage = super()._filled(ring, place)
        waiting, self.waiting = self.waiting, []
        reads = [op for op in waiting if op.name != "tile.cumsum"]
        for op in waiting:
            if op.name == "tile.cumsum":
                with op.location:
                    self.sums[op.results[0]] = (self.buffers[op.results[0]], stage)
                    self._make(op.operands[0], self.buffers[op.results[0]], stage, reads, summed=True)
        for tile, buffer in self.factors.items() if ring == self.brings else ():
            self._make(tile, buffer, stage, reads, summed=False)
            self.sums[tile] = (buffer, stage)
        for op in reads:
            with op.location:
                self.known[op.results[0]] = self._element(op.operands[0], self._value(op.operands[1]))
        return memory, stage

    def _make(self, tile: ir.Value, buffer: ir.Value, stage: ir.Value, reads: list[ir.Operation], summed: bool) -> None:
        """Numbers of positions in the first warpgroup's copy of a tile, behind it; `reads` of sums are read there once more."""
        copies = [each for each in find_all(self._kernel_of(stage), "warp.copy_async") if each.operands[7] == stage]
        copying = copies[-1].parent.operation.block if copies and copies[-1].parent is not None else None
        if copying is None:
            raise Refused("the tile that numbers come with is not copied by one thread")
        with ir.InsertionPoint(copying.operations[-1]):
            operands = [buffer, copies[-1].operands[6], stage]
            made = ir.Operation.create("warp.make_rows", operands=operands, attributes={"summed": ir.BoolAttr.get(summed)}, regions=1)
            with build.named("place"):
                here = ir.Location.current
            block = made.regions[0].blocks.append(ir.IndexType.get(), arg_locs=[here])
            with ir.InsertionPoint(block):
                needed = [op for op in reads if op.operands[0] in self.sums] if not summed else []
                self.read_here = {op.results[0]: self._element(op.operands[0], self._value(op.operands[1])) for op in needed}
                build.yield_([self._number(tile, block.arguments[0])])
                self.read_here = {}

    def _element(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """A number that has come to shared memory."""
        buffer, stage = self.sums[tile]
        return memref.LoadOp(buffer, [stage, place]).result

    def _kernel_of(self, value: ir.Value) -> ir.Operation:
        above = value.owner.operation
        while above.name != "warp.kernel" and above.parent is not None:
            above = above.parent.operation
        return above

    def _number(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """The number of a position: an element of sums of the chunk, or what a map makes, computed here."""
        if tile in self.sums:
            return self._element(tile, place)
        if tile not in self.of_positions:
            raise Refused(f"a number of each position is asked for of {tile.type}")
        block = block_of(self.of_positions[tile])
        known = {block.arguments[0]: place}
        self._clone(block, known, lambda read: self._number(read.operands[0], known[read.operands[1]]))
        last = block.operations[-1].operation
        return known.get(last.operands[0]) or self._value(last.operands[0])

    def _clone(self, block: ir.Block, known: dict[ir.Value, ir.Value], element: Callable[[ir.Operation], ir.Value]) -> None:
        """Computes what a map's region does, `element` what it reads of tiles."""
        for op in [view.operation for view in list(block.operations)[:-1]]:
            if op.name == "tensor.extract":
                known[op.results[0]] = element(op)
                continue
            if not op.name.startswith(("arith.", "math.", "memref.load", "memref.dim")):
                raise Refused(f"'{op.name}' stands in a map")
            clone = op.clone()
            for n, value in enumerate(op.operands):
                clone.operands[n] = known.get(value) or self.read_here.get(value) or self._value(value)
            known.update(zip(op.results, clone.results, strict=True))

    # ---- products over positions

    def _is_transposed(self, op: ir.Operation) -> bool:
        """Whether a map makes the first factor of products over positions."""
        uses = [(use.owner.operation, use.operand_number) for result in op.results for use in result.uses]
        firsts = [flag(user, "transpose_a") and n == len(list(user.operands)) - 2 for user, n in uses if user.name.startswith("tile.dot")]
        return bool(firsts) and all(firsts) and len(firsts) == len(uses)

    def _own_columns(self, tile: Loaded) -> ir.Value:
        """The warpgroup's columns of a tile of positions, which are rows of the state."""
        type_ = ir.MemRefType(tile.memory.type)
        if type_.shape[1] != self.block:
            raise Refused(f"a tile of {type_.shape[1]} columns stands for the {self.block} rows of a state")
        buffer, stage, row, _ = tile.memory.owner.operation.operands
        own = ir.MemRefType.get([type_.shape[0], ROWS], type_.element_type, memory_space=type_.memory_space)
        return build.op("view", [buffer, stage, row, self.first], [own]).result

    def _transposed(self, op: ir.Operation) -> ir.Value:
        """A map over positions and columns as a fragment of columns and positions."""
        block, (type_,) = block_of(op), [ir.RankedTensorType(result.type) for result in op.results]
        tiles = {inner.operands[0] for inner in walk(op) if inner.name == "tensor.extract" and inner.operands[0] in self.loaded}
        if op.opview.kinds() or any(ir.RankedTensorType(tile.type).shape != type_.shape for tile in tiles):
            raise Refused("a map over positions makes one tile of the loaded ones that it reads")
        read: dict[ir.Value, ir.Value] = {}
        for tile in tiles:
            element = ir.RankedTensorType(tile.type).element_type
            fragment = build.fragment_type(INSTRUCTION, "tile", [ROWS, type_.shape[0]], element)
            read[tile] = build.op("read_transposed", [self._own_columns(self.loaded[tile])], [fragment]).result

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            column = arith.AddIOp(self.first, i).result
            known = {block.arguments[0]: j, block.arguments[1]: column}

            def element(inner: ir.Operation) -> ir.Value:
                source, *places = inner.operands
                if source in read and places == list(block.arguments):
                    return ir.Operation.create("tensor.extract", results=[inner.results[0].type], operands=[read[source], i, j]).result
                if len(places) != 1 or places[0] != block.arguments[0]:
                    raise Refused("a map reads a tile at another place than its own")
                return self._number(source, j)

            self._clone(block, known, element)
            value = block.operations[-1].operation.operands[0]
            return [known.get(value) or self._value(value)]

        made = build.fragment_type(INSTRUCTION, "tile", [ROWS, type_.shape[0]], type_.element_type)
        return build.map_([ROWS, type_.shape[0]], [made], [""], body)[0]

    def _product(self, op: ir.Operation) -> None:
        *before, a, b = op.operands
        if not flag(op, "transpose_a") or flag(op, "transpose_b") or b not in self.loaded:
            raise Refused("products of scans without rows of o sum over positions, with a loaded tile as their second factor")
        left = self._own_columns(self.loaded[a]) if a in self.loaded else self._value(a)
        type_ = self._where().type_of(op.results[0].type)
        sums = maps.scaled(*map(self._value, before)) if before else None
        start = sums if sums is not None else build.op("registers", results=[type_]).result
        keep = arith.ConstantOp(ir.IntegerType.get_signless(1), int(sums is not None)).result
        build.op("mma_begin")
        pending = build.mma_async(start, left, self.loaded[b].memory, keep, (a in self.loaded, False))
        build.op("mma_commit")
        self.known[op.results[0]] = build.mma_wait(pending, type_, 0)

    def _store(self, op: ir.Operation) -> None:
        """All rows of a state exist."""
        tile, target, batch, head, row, count = op.operands
        if constant(count) != self.block:
            raise Refused("a scan without rows of o stores states alone")
        first = arith.AddIOp(self._value(row), self.first).result
        build.op("store", [self._tile(tile), self._value(target), self._value(batch), self._value(head), first])
