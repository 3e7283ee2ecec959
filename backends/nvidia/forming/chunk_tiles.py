"""Tiles of a chunk that come together: whoever multiplies them waits once, and gives them back at once."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.chunk_numbers import NUMBERS_STAGES
from attn_mlir.backends.nvidia.forming.chunks import ChunksFormer
from attn_mlir.backends.nvidia.forming.kernel import Loaded
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import RingBuffer, SharedRing
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import block_of, maker, walk

_AHEAD, _FEW = 3, 2
"""The most stages of wide tiles, and those of tiles of which one that comes late is waited for apart."""
_SCALARS = ("arith.", "math.", "memref.load")


@dataclass
class ChunkTilesFormer(ChunksFormer):
    """All rings of a chunk's tiles have one number of uses and one barrier on which their bytes count. They are given back together, too,
    but for that of `values`, through whose memory rows leave: a barrier of its own tells, a chunk later, that their copy has read it.

    Numbers of positions are waited for where the first products are on their way (`_await_numbers`).
    """

    values: ir.Value = field(init=False)
    arrived: set[ir.Value] = field(default_factory=set)
    """Tiles that have come with another one, and whose loads follow."""
    numbers_wait: ir.Operation | None = None
    values_wait: tuple[ir.Value, ir.Value, ir.Value] | None = None
    side_by_side: bool = False
    """Whether tiles may reach into the next sequence."""

    def _ring(self, name: str, source: ir.Value, shape: list[int], turned: str) -> SharedRing:
        if turned:
            raise Refused("tiles of a scan are multiplied as they lie in memory")
        if not self.rings:
            with build.named("chunk_full"):
                self.come = build.barrier(1, 1)
            with build.named("chunk_free"):
                self.gone = build.barrier(1, rings.WARPS * self.warpgroups)
        come, gone = self.come, self.gone
        if source == self.known[self._source_of_values()]:
            if self._waits_apart():
                with build.named(f"{name}_full"):
                    come = build.barrier(1, 1)
            with build.named(f"{name}_free"):
                gone = build.barrier(1, self.warpgroups)
        return RingBuffer(name, source, rings.shared(name, shape, ir.MemRefType(source.type).element_type), 0, None, False, come, gone)

    def _stages(self) -> int:
        """No more than three where tiles of a chunk are many bytes: what is on its way then waits for nothing but memory."""
        found, chosen = super()._stages(), attributes.read(self.function, attributes.CHOICES)
        return found if "stages" in chosen or self._stage_bytes() < thresholds.WIDE_CHUNK else min(found, _AHEAD)

    def _waits_apart(self) -> bool:
        """Whether `values` have a barrier of their own: beside wide states, of which two stages have room, they come late, as rows of the
        chunk before leave through them.
        """
        return not self.side_by_side and self._stages() <= _FEW and self.columns >= thresholds.LATE_VALUES

    def _usual(self) -> Fields:
        """All addresses follow from one number of uses, which compilers see to be uniform. Sequences, whose lengths differ, are drawn."""
        return {"uniform": 0, **({} if self._sequences() is None else {"draw": 1})}

    def _base(self) -> ir.Value:
        """The loaded tile that `values` is, or is made of."""
        return self.changed.get(self.values, self.values)

    def _source_of_values(self) -> ir.Value:
        load = maker(self._base(), "tile.load")
        if load is None:
            raise Refused("weights of pairs are multiplied with a loaded tile")
        return self._memory(load.operands[0])[0]

    def _before_tiles(self) -> None:
        """What is done before tiles of a chunk are waited for."""

    def _load(self, op: ir.Operation) -> None:
        if op.results[0] in self.same or not self._reads(op):
            super()._load(op)
        elif op.results[0] not in self.arrived:
            self._before_tiles()
            self._load_chunk()
        self.arrived.discard(op.results[0])

    def _load_chunk(self) -> None:
        """Loads all tiles of a chunk at its first one."""
        ops = [view.operation for view in block_of(self.chunks).operations]
        loads = [op for op in ops if op.name == "tile.load" and op.results[0] not in self.same and self._reads(op)]
        count, zero = self.counts[0], build.index(0)
        with build.named("chunk_stage"):
            stage, phase = build.stage(count, 1)
        copies: list[tuple[RingBuffer, list[ir.Value]]] = []
        for op in loads:
            ring = self.rings[op.operands[0], self._rows_of(op)]
            assert isinstance(ring, RingBuffer)
            _, column = self._memory(op.operands[0])
            place = [*map(self._early, list(op.operands)[1:4]), zero if column is None else self._early(column)]
            with build.named(f"{ring.name}_tile"):
                tile = build.op("view", [ring.buffer, stage, zero, zero], [ring.tile]).result
            copies.append((ring, [*place, tile, ring.full, stage]))
            self.loaded[op.results[0]] = Loaded(ring, tile, stage)
        self.arrived |= {op.results[0] for op in loads}
        other = arith.XOrIOp(phase, build.index(1)).result
        own = self.loaded[self._base()].ring
        total = sum(bytes_of(ring.tile) for ring, _ in copies if ring.full == self.come)
        with build.named("numbers_stage"):
            numbers = build.stage(count, NUMBERS_STAGES) if self.buffers else None
        branch = scf.IfOp(self.leads)
        with ir.InsertionPoint(branch.then_block):
            if numbers is not None:
                self._make_numbers(*numbers)
            build.op("wait", [self.gone, stage, other])
            with ir.InsertionPoint(build.elect()):
                build.op("arrive_expect", [self.come, stage], bytes=total)
                for ring, place in copies:
                    if ring != own:
                        build.op("copy_async", [ring.source, *place])
            for ring, place in copies:
                if ring == own:
                    build.op("wait", [ring.free, stage, other])
                    with ir.InsertionPoint(build.elect()):
                        if ring.full != self.come:
                            build.op("arrive_expect", [ring.full, stage], bytes=bytes_of(ring.tile))
                        build.op("copy_async", [ring.source, *place])
            scf.YieldOp([])
        build.op("wait", [self.come, stage, phase])
        self.values_wait = (own.full, stage, phase) if isinstance(own, RingBuffer) and own.full != self.come else None
        self.numbers_wait = None
        if numbers is not None:
            self.numbers_wait = build.op("wait", [self.full, *numbers])
            self.numbers_stage = numbers[0]
        self.known.update({op.results[0]: self._read_number(op) for op in self.waiting})
        self.waiting = []
        self.counts[0] = arith.AddIOp(count, build.index(1)).result

    def _early(self, value: ir.Value) -> ir.Value:
        """A number of a tile's place, of which what makes it in the chunk's block comes before."""
        op = maker(value)
        if value not in self.known and op is not None and op.name.startswith("arith."):
            for operand in op.operands:
                self._early(operand)
            self._scalar(op)
        return self._value(value)

    def _await_numbers(self) -> None:
        """Lets the wait for numbers of positions come here, with what scalars have read of them since; not where something else has."""
        wait, self.numbers_wait = self.numbers_wait, None
        if wait is None:
            return
        ops, numbers = [view.operation for view in wait.block.operations], list(self.buffers.values())
        behind = ops[ops.index(wait) + 1 :]
        moved, made = [wait], set[ir.Value]()
        for op in behind:
            reads = any(inner.name == "memref.load" and inner.operands[0] in numbers for inner in (op, *walk(op)))
            if not reads and not any(value in made for value in op.operands):
                continue
            if not op.name.startswith(_SCALARS):
                return
            moved.append(op)
            made |= set(op.results)
        last = ops[-1]
        for op in moved:
            op.move_after(last)
            last = op

    def _await_values(self) -> None:
        """Lets the wait for `values` come here, where they have a barrier of their own."""
        if self.values_wait is not None:
            build.op("wait", list(self.values_wait))
        self.values_wait = None

    def _give_back(self, tile: Loaded) -> None:
        """All tiles of a chunk at once, and its numbers."""
        build.op("arrive", [self.gone, tile.stage])
        if self.buffers:
            build.op("arrive", [self.free, self.numbers_stage])

    def _give_last(self) -> None:
        """Gives back the tile of v of the chunk before, through whose memory its rows left: their copy has read it by now.

        One thread of each warpgroup does, for its columns: it has started their copy when all of its warps had read them.
        """
        ring = self.loaded[self.values].ring
        assert isinstance(ring, RingBuffer)
        loaded = self.counts[0]  # this chunk's is counted already
        before = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.sgt, loaded, build.index(1)).result)
        with ir.InsertionPoint(before.then_block):
            stage, _ = build.stage(arith.SubIOp(loaded, build.index(2)).result, 1)
            with ir.InsertionPoint(build.elect()):
                build.op("store_wait", pending=0, read=True)
                build.op("arrive", [ring.free, stage])
            scf.YieldOp([])
