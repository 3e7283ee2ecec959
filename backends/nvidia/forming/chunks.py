"""A `warp.kernel` from a tiled function that scans chunks and gives no rows of o: what they add to a state, and states on the way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE as OF_TILES
from attn_mlir.backends.gpu.structure import constant, yielded
from attn_mlir.backends.nvidia.forming.kernel import INSTRUCTION, ROWS, Former, Loaded
from attn_mlir.backends.nvidia.forming.packed import TileNumbers
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import RingBuffer, SharedRing
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import bytes_of, stages_and_arrivals
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.regions import block_of, find_all, maker

_NUMBERS, _RESERVED, _MOST_STAGES = 1024, 2048, 8
"""Bytes of a stage beside tiles and of shared memory beside stages, and the most stages."""
_DOTS = ("tile.dot", "tile.dot_add", "tile.dot_rescale")


@dataclass
class ChunksFormer(Former):
    """A tile of the grid is a scan, of one head and sequence or segment. The rows of fragments are those of the state or, where a map makes
    the second factor of products, its columns (`turned`): 64 for each warpgroup.

    A product sums over positions, which are rows of both tiles: what a map makes of one is read transposed, and is the first factor, in
    registers; the other one is read from shared memory as it was loaded. Numbers of positions that are summed up along a chunk
    (`tile.cumsum`) come to shared memory with the first tile that is loaded after them (`warp.make_rows`), at the same barrier; maps read
    them there.
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
    states: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """Memory of states, by what it is for the function, with a row for each row of a fragment."""

    def _share_rows(self) -> None:
        loops = [op for op in find_all(self.function, "scf.for") if list(op.results)]
        if len(loops) != 1 or len(loops[0].results) != 1:
            raise Refused("a scan has one loop over chunks, which carries its state")
        state = ir.RankedTensorType(loops[0].results[0].type)
        if state.rank != 2 or "sequences" in ir.DictAttr(self.function.attributes["tile.kernel"]):
            raise Refused("a scan of sequences side by side, or without a state")
        self.chunks = loops[0]
        seconds = [maker(list(op.operands)[-1]) for op in find_all(self.chunks, *_DOTS)]
        self.turned = all(op is not None and op.name == "tile.map" for op in seconds)
        self.block, self.columns = state.shape[::-1] if self.turned else state.shape
        super()._share_rows()
        self.resident = 2 if self.warpgroups == 1 else 1
        for op in find_all(self.function, "tile.map"):
            if len(block_of(op).arguments) == 1 and not self._is_of_state(op.results[0]):
                self.of_positions[op.results[0]] = op

    def _schedule(self) -> ir.Attribute:
        """As many stages as shared memory holds: a scan waits for memory."""
        fields, chosen = (attributes.read(self.function, name) for name in (OF_TILES, attributes.CHOICES))
        loads = [ir.RankedTensorType(op.results[0].type) for op in find_all(self.chunks, "tile.load")]
        stage = sum(bytes_of(type_) for type_ in loads) + _NUMBERS
        most = min(_MOST_STAGES, (self.shared_bytes - _RESERVED) // max(1, stage))
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
        blocks = build.index(ir.IntegerAttr(facts["blocks"]).value if "blocks" in facts else 1)
        with build.named("tiles"):
            return TileNumbers(arith.MulIOp(arith.MulIOp(heads, scans).result, blocks).result, blocks, heads)

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
        """Those of tiles that the loop loads; states go to and come from registers."""
        super()._make_rings()
        self.buffers: dict[ir.Value, ir.Value] = {}
        for op in find_all(self.function, "tile.cumsum"):
            type_ = ir.RankedTensorType(op.results[0].type)
            if type_.rank != 1 or str(type_.element_type) != "f32" or flag(op, "reverse") or op.operands[0] not in self.of_positions:
                raise Refused("sums along a chunk are of one number of f32 for each position, the first one first")
            ring = self._brings(op)
            self.buffers[op.results[0]] = self._buffer("sums", type_)
            self._awaits(ring)
        self._make_factors()
        initial = [op.operands[0] for op in find_all(self.function, "tile.load") if self._is_initial(op)]
        for memory in dict.fromkeys([*initial, *(op.operands[1] for op in find_all(self.function, "tile.store"))]):
            whole, column = self._memory(memory)
            if column is not None and not self.turned:
                raise Refused("columns of states are rows of fragments only where they are turned")
            self.states[memory] = self._turned(self._value(whole)) if self.turned else self._value(whole)

    def _turned(self, memory: ir.Value) -> ir.Value:
        """A view whose rows are the columns of states in memory."""
        type_ = ir.MemRefType(memory.type)
        *outer, rows, columns = type_.shape
        made = ir.MemRefType.get([*outer, columns, rows], type_.element_type, type_.layout)
        order = ir.AffineMapAttr.get(ir.AffineMap.get_permutation([0, 1, 3, 2]))
        return ir.Operation.create("memref.transpose", results=[made], operands=[memory], attributes={"permutation": order}).result

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
            self.known[op.results[0]] = build.op("load", self._from(*list(op.operands)[:4]), [self._state()]).result
        elif op.name == "memref.subview":
            return
        elif op.name == "tile.map" and self._is_of_state(op.results[0]):
            self.known[op.results[0]] = self._of_chunk(op)
        elif op.name == "tile.map":
            self._read(op)
            if any(use.owner.operation.name in _DOTS for use in op.results[0].uses):
                self.known[op.results[0]] = self._transposed(op)
        else:
            super()._op(op)

    def _state(self) -> ir.Type:
        """The warpgroup's part of a state."""
        return build.fragment_type(INSTRUCTION, "tile", [ROWS, self.columns], ir.F32Type.get())

    def _from(self, memory: ir.Value, *place: ir.Value) -> list[ir.Value]:
        """The memory of states, batch, head, and the warpgroup's first row there; all rows of a state exist."""
        (batch, head, row), (_, column) = map(self._value, place), self._memory(memory)
        if self.turned and constant(place[2]) != 0:
            raise Refused("a program has all rows of a state")
        first = row if column is None else self._value(column)
        return [self.states[memory], batch, head, arith.AddIOp(first, self.first).result]

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
                before = maker(source, "tile.map")
                if places != list(block.arguments) or (before is None and source not in self.loaded):
                    raise Refused("a map reads a tile at another place than its own")
                if before is not None:
                    return element(i, j, before)
                operands = [self.loaded[source].fragment, i, j]
                return ir.Operation.create("tensor.extract", results=[inner.results[0].type], operands=operands).result

            return self._clone(block, known, read)

        made = build.fragment_type(INSTRUCTION, "tile", [ROWS, type_.shape[0]], type_.element_type)
        return build.map_([ROWS, type_.shape[0]], [made], [""], lambda i, j: [element(i, j, op)])[0]

    def _start(self, op: ir.Operation) -> None:
        value = self._value(op.operands[0])
        self.known[op.results[0]] = build.map_([ROWS, self.columns], [self._state()], [""], lambda *places: [value])[0]

    def _product(self, op: ir.Operation) -> None:
        *before, a, b = op.operands
        first, second = (b, a) if self.turned else (a, b)
        if not flag(op, "transpose_a") or flag(op, "transpose_b") or second not in self.loaded:
            raise Refused("products of scans without rows of o sum over positions, with a loaded tile as one factor")
        left = self._own_columns(self.loaded[first]) if first in self.loaded else self._value(first)
        start = self._scaled(*map(self._value, before)) if before else build.op("registers", results=[self._state()]).result
        keep = arith.ConstantOp(ir.IntegerType.get_signless(1), int(bool(before))).result
        build.op("mma_begin")
        pending = build.mma_async(start, left, self.loaded[second].memory, keep, (first in self.loaded, False))
        build.op("mma_commit")
        self.known[op.results[0]] = build.mma_wait(pending, self._state(), 0)

    def _scaled(self, sums: ir.Value, factor: ir.Value | None = None) -> ir.Value:
        """A state, times its factor if there is one that is not 1."""
        one = maker(factor, "arith.constant") if factor is not None else None
        if factor is None or (one is not None and ir.FloatAttr(one.attributes["value"]).value == 1.0):
            return sums

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            element = ir.Operation.create("tensor.extract", results=[factor.type], operands=[sums, i, j]).result
            return [arith.MulFOp(element, factor).result]

        return build.map_([ROWS, self.columns], [self._state()], [""], body)[0]

    def _store(self, op: ir.Operation) -> None:
        """A state."""
        tile, target, batch, head, row, count = op.operands
        if constant(count) is None or ir.RankedTensorType(tile.type) != ir.RankedTensorType(self.chunks.results[0].type):
            raise Refused("a scan without rows of o stores states alone")
        build.op("store", [self._value(tile), *self._from(target, batch, head, row)])


def adds_to_state(function: ir.Operation) -> bool:
    """Whether a tiled function scans chunks of 16 bits for their states alone: it multiplies, and stores nothing else."""
    loops = [op for op in find_all(function, "scf.for") if list(op.results)]
    if len(loops) != 1 or len(loops[0].results) != 1 or not find_all(loops[0], *_DOTS):
        return False
    states = [loops[0].results[0], block_of(loops[0]).arguments[1], *yielded(block_of(loops[0]))]
    kinds = {ir.RankedTensorType(op.results[0].type).element_type.width for op in find_all(loops[0], "tile.load")}
    return kinds == {16} and all(op.operands[0] in states for op in find_all(function, "tile.store"))
