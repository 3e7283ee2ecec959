"""Numbers of the positions of a chunk: a producer makes them, and sums of them, beside the copies of tiles."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import yielded
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.kernel import Former
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import RingBuffer, SharedRing
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import stages_and_arrivals
from attn_mlir.mlir import ir, memref
from attn_mlir.passes.regions import block_of, find_all


@dataclass
class NumbersFormer(Former):
    """Numbers of positions that are summed up along a chunk (`tile.cumsum`) come to shared memory with the first tile that is loaded after
    them (`warp.make_rows`), at the same barrier, and so do those that maps over positions and columns read; maps read them there.
    """

    chunks: ir.Operation = field(init=False)
    """The loop over chunks."""
    buffers: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Those of sums."""
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

    def _make_rings(self) -> None:
        """Also buffers of numbers, whose makers arrive where a tile's copy does."""
        super()._make_rings()
        for op in find_all(self.function, "tile.cumsum"):
            type_ = ir.RankedTensorType(op.results[0].type)
            if type_.rank != 1 or str(type_.element_type) != "f32" or flag(op, "reverse") or op.operands[0] not in self.of_positions:
                raise Refused("sums along a chunk are of one number of f32 for each position, the first one first")
            ring = self._brings(op)
            self.buffers[op.results[0]] = self._buffer("sums", type_)
            self._awaits(ring)
        self._make_factors()

    def _buffer(self, name: str, numbers: ir.RankedTensorType) -> ir.Value:
        with build.named(name):
            return build.op("alloc", results=[build.shared_type([1, *numbers.shape], numbers.element_type, 0)]).result

    def _awaits(self, ring: SharedRing) -> None:
        """One more arrival when a tile is there."""
        assert isinstance(ring, RingBuffer)
        stages, arrivals = stages_and_arrivals(ring.full.type)
        ring.full.set_type(ir.Type.parse(f"!warp.barrier<{stages} : i64, {arrivals + 1} : i64>"))

    def _make_factors(self) -> None:
        """Buffers of numbers that maps read which make factors of products: they come with the first tile of a chunk, too."""
        loads = [op for op in find_all(self.chunks, "tile.load") if op.results[0] not in self.same and self._reads(op)]
        maps_ = [op for op in find_all(self.chunks, "tile.map") if len(block_of(op).arguments) == 2]
        reads = [read.operands[0] for op in maps_ for read in find_all(op, "tensor.extract")]
        for tile in dict.fromkeys(tile for tile in reads if tile in self.of_positions):
            type_ = ir.RankedTensorType(tile.type)
            if str(type_.element_type) != "f32" or not loads:
                raise Refused("factors of positions are numbers of f32, and come with a tile")
            self.factors[tile] = self._buffer("factors", type_)
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

    def _op(self, op: ir.Operation) -> None:
        """Numbers are made where they are needed."""
        if op.name == "tile.cumsum" or (op.name == "tensor.extract" and op.operands[0] in self.buffers):
            self.waiting.append(op)
        elif not (len(op.results) and op.results[0] in self.of_positions):
            super()._op(op)

    def _filled(self, ring: SharedRing, place: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """Also what waits for this tile: sums are made behind its copy, and numbers of them are read when it is there."""
        assert isinstance(ring, RingBuffer)
        waiting, self.waiting = self.waiting, []
        reads = [op for op in waiting if op.name != "tile.cumsum"]

        def beside(stage: ir.Value) -> None:
            for op in waiting:
                if op.name == "tile.cumsum":
                    self._make(op.operands[0], self.buffers[op.results[0]], (ring.full, stage), [])
                    self.sums[op.results[0]] = (self.buffers[op.results[0]], stage)
            for tile, buffer in self.factors.items() if ring == self.brings else ():
                self._make(tile, buffer, (ring.full, stage), reads)
                self.sums[tile] = (buffer, stage)

        memory, stage = rings.fill(ring, place, self.counts[ring.count], self.leads, beside)
        for op in reads:
            with op.location:
                self.known[op.results[0]] = self._element(op.operands[0], self._value(op.operands[1]))
        return memory, stage

    def _make(self, tile: ir.Value, buffer: ir.Value, at: tuple[ir.Value, ir.Value], reads: list[ir.Operation]) -> None:
        """Numbers of positions, which are sums where no sums are read (`reads`), at a barrier and stage."""
        attributes = {"summed": ir.BoolAttr.get(tile not in self.factors)}
        made = ir.Operation.create("warp.make_rows", operands=[buffer, *at], attributes=attributes, regions=1)
        block = made.regions[0].blocks.append(ir.IndexType.get(), arg_locs=[build.named("place")])
        with ir.InsertionPoint(block):
            self.read_here = {op.results[0]: self._element(op.operands[0], self._value(op.operands[1])) for op in reads}
            build.yield_([self._number(tile, block.arguments[0])])
            self.read_here = {}

    def _element(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """A number that has come to shared memory."""
        buffer, stage = self.sums[tile]
        return memref.LoadOp(buffer, [stage, place]).result

    def _number(self, tile: ir.Value, place: ir.Value) -> ir.Value:
        """The number of a position: an element of sums of the chunk, or what a map makes, computed here."""
        if tile in self.sums:
            return self._element(tile, place)
        if tile not in self.of_positions:
            raise Refused(f"a number of each position is asked for of {tile.type}")
        block = block_of(self.of_positions[tile])
        known = {block.arguments[0]: place}
        return self._clone(block, known, lambda read: self._number(read.operands[0], known[read.operands[1]]))

    def _clone(self, block: ir.Block, known: dict[ir.Value, ir.Value], element: Callable[[ir.Operation], ir.Value]) -> ir.Value:
        """Computes what a map's region does, `element` what it reads of tiles. What it yields."""
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
        (value,) = yielded(block)
        return known.get(value) or self._value(value)
