"""Numbers of the positions of a chunk: a producer makes them, and sums of them, beside the copies of tiles."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import yielded
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.kernel import Former, Loaded
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import RingBuffer, SharedRing
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.regions import block_of, find_all, maker

NUMBERS_STAGES = 6
"""As many as there are of numbers: more than of tiles."""


@dataclass
class NumbersFormer(Former):
    """Numbers of positions that are summed up along a chunk (`tile.cumsum`) come to shared memory before the first tile that is loaded
    after them (`warp.make_rows`), and so do those that maps over positions and columns read; maps read them there. They have stages of
    their own, more than tiles have: who makes them waits for memory longer than a copy takes.
    """

    chunks: ir.Operation = field(init=False)
    """The loop over chunks."""
    buffers: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Those of sums and of factors, in the order in which they are made."""
    sums: dict[ir.Value, tuple[ir.Value, ir.Value]] = field(default_factory=dict)
    """Of those that have come: the buffer and its stage."""
    waiting: list[ir.Operation] = field(default_factory=list)
    """What reads numbers that come with the next tile."""
    brings: SharedRing | None = None
    """The ring before whose tiles they come."""
    of_positions: dict[ir.Value, ir.Operation] = field(default_factory=dict)
    """Maps that make a number for each position, by their results: they are computed where they are needed."""

    def _numbers_of_chunks(self) -> list[ir.Value]:
        """The numbers that come to shared memory: sums, then those that maps and products read."""
        maps_ = [op for op in find_all(self.chunks, "tile.map") if len(op.operands) == 2]
        reads = [read.operands[0] for op in maps_ for read in find_all(op, "tensor.extract")]
        sums = [
            op.results[0] for op in find_all(self.chunks, "tile.cumsum") if op.operands[0] in self.of_positions and not flag(op, "reverse")
        ]
        return list(dict.fromkeys([*sums, *(tile for tile in [*reads, *self._factors()] if tile in self.of_positions)]))

    def _make_rings(self) -> None:
        """Also buffers of numbers, and their barriers."""
        super()._make_rings()
        loads = [op for op in find_all(self.chunks, "tile.load") if op.results[0] not in self.same and self._reads(op)]
        for tile in self._numbers_of_chunks():
            type_ = ir.RankedTensorType(tile.type)
            if str(type_.element_type) != "f32" or not loads:
                raise Refused("numbers of positions are of f32, and come with a tile")
            with build.named("sums" if maker(tile, "tile.cumsum") is not None else "factors"):
                shared = build.shared_type([NUMBERS_STAGES, *type_.shape], type_.element_type, 0)
                self.buffers[tile] = build.op("alloc", results=[shared]).result
        if self.buffers:
            ring = self.brings = self.rings[loads[0].operands[0], self._rows_of(loads[0])]
            assert isinstance(ring, RingBuffer)
            with build.named("numbers_full"):
                self.full = build.barrier(NUMBERS_STAGES, len(self.buffers))
            with build.named("numbers_free"):
                self.free = build.barrier(NUMBERS_STAGES, rings.WARPS * self.warpgroups)

    def _factors(self) -> list[ir.Value]:
        """Tiles of numbers that products are multiplied by."""
        return []

    def _op(self, op: ir.Operation) -> None:
        """Numbers are made where they are needed, and read when they are there."""
        if op.name == "tensor.extract" and op.operands[0] in self.buffers:
            self.waiting.append(op)
        elif not (len(op.results) and (op.results[0] in self.of_positions or op.results[0] in self.buffers)):
            super()._op(op)

    def _filled(self, ring: SharedRing, place: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """Also numbers, which come beside the first tile: they are made before its stage is waited for, as they wait for memory longer."""
        assert isinstance(ring, RingBuffer)
        count = self.counts[ring.count]
        if ring == self.brings:
            with build.named("numbers_stage"):
                stage, phase = build.stage(count, NUMBERS_STAGES)
            memory, of_tile = rings.fill(ring, place, count, self.leads, lambda: self._make_numbers(stage, phase))
            build.op("wait", [self.full, stage, phase])
            self.numbers_stage = stage
        else:
            memory, of_tile = rings.fill(ring, place, count, self.leads)
        self.known.update({op.results[0]: self._read_number(op) for op in self.waiting})
        self.waiting = []
        return memory, of_tile

    def _make_numbers(self, stage: ir.Value, phase: ir.Value) -> None:
        build.op("wait", [self.free, stage, arith.XOrIOp(phase, build.index(1)).result])
        for tile, buffer in self.buffers.items():
            summed = maker(tile, "tile.cumsum")
            attributes = {"summed": ir.BoolAttr.get(summed is not None)}
            made = ir.Operation.create("warp.make_rows", operands=[buffer, self.full, stage], attributes=attributes, regions=1)
            block = made.regions[0].blocks.append(ir.IndexType.get(), arg_locs=[build.named("place")])
            with ir.InsertionPoint(block):
                self.known.update({op.results[0]: self._read_number(op) for op in self.waiting if op.operands[0] in self.sums})
                build.yield_([self._number(tile if summed is None else summed.operands[0], block.arguments[0])])
            self.sums[tile] = (buffer, stage)

    def _give_back(self, tile: Loaded) -> None:
        """Also the numbers."""
        super()._give_back(tile)
        if tile.ring == self.brings:
            build.op("arrive", [self.free, self.numbers_stage])

    def _read_number(self, op: ir.Operation) -> ir.Value:
        """What reads a number by its place reads it in shared memory."""
        return self._element(op.operands[0], self._value(op.operands[1]))

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
        """Computes what a map's region does, but what is `known`; `element` what it reads of tiles. What it yields."""
        for op in [view.operation for view in list(block.operations)[:-1]]:
            if any(result in known for result in op.results):
                continue
            if op.name == "tensor.extract":
                known[op.results[0]] = element(op)
                continue
            if not op.name.startswith(("arith.", "math.", "memref.load", "memref.dim")):
                raise Refused(f"'{op.name}' stands in a map")
            clone = op.clone()
            for n, value in enumerate(op.operands):
                clone.operands[n] = known.get(value) or self._value(value)
            known.update(zip(op.results, clone.results, strict=True))
        (value,) = yielded(block)
        return known.get(value) or self._value(value)
