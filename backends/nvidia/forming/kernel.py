"""A `warp.kernel` from a tiled function: one role whose warpgroups have 64 rows each, rings of one stage, products that are waited for."""

from dataclasses import dataclass, field
from typing import ClassVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import SCHEDULE as OF_TILES
from attn_mlir.backends.nvidia.forming import maps, rings
from attn_mlir.backends.nvidia.forming.facts import SCHEDULE, launch_registers, occupancy_of
from attn_mlir.backends.nvidia.forming.maps import INSTRUCTION, FragmentMap
from attn_mlir.backends.nvidia.forming.packed import LONGEST_FIRST, Packed, TileNumbers, dense_grid
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.forming.rings import RingBuffer, SharedRing
from attn_mlir.backends.nvidia.forming.tiled import equal_loads, grid_of, is_rest, stored_element, used_in, where_turned
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.dialects.elements import ELEMENTS
from attn_mlir.dialects.numbers import flag, i64
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir, scf
from attn_mlir.passes.regions import find_all, maker, walk
from attn_mlir.passes.tiling.frame import argument_names

ROWS = 64
"""Of a warpgroup: those of its matrix instruction."""
_MULTIPLIED = ("f16", "bf16", *(name for name, element in ELEMENTS.items() if element.taken_by("ocp")))


@dataclass
class Loaded:
    """A tile in shared memory: its ring, stage, and, once something computes with it, its fragment."""

    ring: SharedRing
    memory: ir.Value
    stage: ir.Value
    fragment: ir.Value | None = None


@dataclass
class Former:
    """Forms the kernel of a tiled function. `counts` holds how often each ring has been used; `known` what stands for a value.

    `same`: of loads that read once more what an earlier one of their block has read, the tile of that one.
    """

    GRIDS: ClassVar[tuple[str, ...]] = ("rows", "elements")
    """Programs are blocks of rows, those of the fragments, of the tensor that `tile.kernel` names."""
    STEP: ClassVar[int] = 8  # elements of 16 bits that TMA copies at least

    function: ir.Operation
    target: NvidiaTarget
    known: dict[ir.Value, ir.Value] = field(default_factory=dict)
    loaded: dict[ir.Value, Loaded] = field(default_factory=dict)
    rings: dict[tuple[ir.Value, int], SharedRing] = field(default_factory=dict)
    counts: list[ir.Value] = field(default_factory=list)
    program: list[ir.Value] = field(default_factory=list)
    same: dict[ir.Value, ir.Value] = field(default_factory=dict)
    rows: int = ROWS
    instruction: str = INSTRUCTION
    occupancy: int = 1
    """Thread blocks that share a multiprocessor, its registers and its shared memory."""

    def form(self) -> ir.Operation:
        """The kernel, before the function. Raises Refused, with what was made so far erased."""
        facts = ir.DictAttr(self.function.attributes["tile.kernel"])
        if grid_of(self.function) not in self.GRIDS:
            raise Refused(f"its programs are {grid_of(self.function)}, not blocks of rows")
        if "paged" in facts and not self.target.bulk_copies:
            raise Refused("its kernels read no keys in pages (block_table): gather the pages, or use the CPU")
        if missing := [name for name in ("block_q", "block_kv") if name not in facts]:
            raise Refused(f"`tile.kernel` of this function lacks {', '.join(missing)}")
        self.block, self.columns = (ir.IntegerAttr(facts[name]).value for name in ("block_q", "block_kv"))
        self._share_rows()
        arguments, over = list(self.function.regions[0].blocks[0].arguments), ir.IntegerAttr(facts["over"]).value if "over" in facts else 0
        if over >= len(arguments):
            raise Refused(f"it has no argument number {over}, whose rows its programs are")
        self.over, self.same, self.packed = arguments[over], equal_loads(self.function), Packed.of(self.function)
        with self.function.location, ir.InsertionPoint(self.function):
            kernel = self._frame()
        try:
            with self.function.location:
                self._fill(kernel)
        except Refused:
            kernel.erase()
            raise
        return kernel

    def _share_rows(self) -> None:
        """How many warpgroups there are, with `rows` each."""
        self.warpgroups, left = divmod(self.block, self.rows)
        if left or not 1 <= self.warpgroups <= 3:
            raise Refused(f"a block has 64, 128 or 192 rows, 64 for each warpgroup, not {self.block}")

    def _frame(self) -> ir.Operation:
        name = ir.StringAttr(self.function.attributes["sym_name"]).value
        file, self.shared_bytes = self.target.share(occupancy_of(self.function, self.occupancy))
        self.registers = launch_registers(file, self.warpgroups)
        numbers = {"registers": self.registers, "lanes": 32, "register_file": file, "shared_limit": self.shared_bytes}
        told: dict[str, ir.Attribute] = {key: i64(value) for key, value in numbers.items()}
        told |= {key: ir.StringAttr.get(name) for key in ("sym_name", "function")}
        if OF_TILES in self.function.attributes:
            told[SCHEDULE] = self._schedule()
        if self.packed is not None:  # printers ask which arguments are views, and which are lengths
            told["tile.kernel"] = self.function.attributes["tile.kernel"]
        return ir.Operation.create("warp.kernel", attributes=told, regions=1)

    def _schedule(self) -> ir.Attribute:
        """What was chosen for the kernel, as later passes read it; lists of work begin with the longest tiles."""
        return attributes.write({**attributes.read(self.function, OF_TILES), **(LONGEST_FIRST if self.packed else {})})

    def _fill(self, kernel: ir.Operation) -> None:
        entry = self.function.regions[0].blocks[0]
        arguments = list(entry.arguments)
        own = self._own_arguments()
        places = [*(a.location for a in arguments), *(ir.Location.name("semaphores") for _ in own)]
        block = kernel.regions[0].blocks.append(*[a.type for a in arguments], *own, arg_locs=places)
        self.known.update(zip(arguments, block.arguments, strict=False))
        self.own = list(block.arguments)[len(arguments) :]
        self.names = argument_names(entry)
        self.outer = self._of_all(entry)
        with ir.InsertionPoint(block):
            for op in self.outer:
                self._scalar(op)
            self._make_rings()
            grid = self._grid()
            role = ir.Operation.create("warp.role", attributes=self._role_attributes(), regions=1)
        inside = role.regions[0].blocks.append(ir.IndexType.get(), arg_locs=[ir.Location.name("warpgroup")])
        with ir.InsertionPoint(inside):
            self._tiles(entry, inside.arguments[0], grid)

    def _grid(self) -> TileNumbers:
        over = self.known[self.over]
        return dense_grid(over, self.block) if self.packed is None else self.packed.grid(over, self.known[self.packed.work])

    def _own_arguments(self) -> list[ir.Type]:
        """The types of counters that the kernel takes behind the function's arguments."""
        return []

    def _role_attributes(self) -> dict[str, ir.Attribute]:
        numbers = {"warpgroups": self.warpgroups, "warps": rings.WARPS, "registers": self.registers}
        return {"sym_name": ir.StringAttr.get("all"), **{key: i64(value) for key, value in numbers.items()}}

    def _of_all(self, entry: ir.Block) -> list[ir.Operation]:
        """Scalars that are the same for all tiles."""
        found: list[ir.Operation] = []
        made: set[ir.Value] = set(entry.arguments)
        for op in (view.operation for view in entry.operations):
            if op.name.startswith(("arith.", "math.", "memref.")) and all(v in made for v in op.operands):
                found.append(op)
                made |= set(op.results)
        return found

    def _make_rings(self) -> None:
        for op in find_all(self.function, "tile.load"):
            source, rows = op.operands[0], self._rows_of(op)
            if (source, rows) in self.rings or op.results[0] in self.same or not self._reads(op):
                continue
            type_, made = ir.MemRefType(source.type), ir.RankedTensorType(op.results[0].type).element_type
            if made != type_.element_type:
                raise Refused(f"a load makes {made} of {type_.element_type}, as mods and wider q need them, and copies change nothing")
            if str(made) not in _MULTIPLIED:
                raise Refused(f"matrix products take {', '.join(_MULTIPLIED)}, not {made}")
            rings.check_columns(type_, self.target.bulk_copies, self.STEP)
            argument, _ = self._memory(source)
            name, turned = self.names[ir.BlockArgument(argument).arg_number], where_turned(op, self._reads(op), rows)
            self.rings[source, rows] = self._ring(name, self.known[argument], [rows, rings.padded(type_.shape[3])], turned)

    def _ring(self, name: str, source: ir.Value, shape: list[int], turned: str) -> SharedRing:
        pages = self.packed and self.packed.pages_of(source, self.known)
        return rings.make(name, source, shape, len(self.rings), self.warpgroups, turned, pages)

    def _memory(self, source: ir.Value) -> tuple[ir.Value, ir.Value | None]:
        """The argument that a tensor is, or is some columns of, and the first of these; None for 0."""
        return source, None

    def _reads(self, load: ir.Operation) -> set[ir.Value]:
        """The tiles that a load makes and something uses: its own, and those of loads of the same."""
        tiles = [load.results[0], *(tile for tile, first in self.same.items() if first == load.results[0])]
        return {tile for tile in tiles if list(tile.uses)}

    def _rows_of(self, load: ir.Operation) -> int:
        """The rows of a load's tile: as many as a block of keys has where their number is not static."""
        rows = ir.RankedTensorType(load.results[0].type).shape[0]
        return self.columns if rows < 0 else rows

    def _tiles(self, entry: ir.Block, warpgroup: ir.Value, grid: TileNumbers) -> None:
        """The loop over the tiles of this thread block."""
        zero, self.warpgroup = build.index(0), warpgroup
        with build.named("first_row"):
            self.first = arith.MulIOp(warpgroup, build.index(self.rows)).result
        self.leads = arith.CmpIOp(arith.CmpIPredicate.eq, warpgroup, zero).result
        begin, step = build.op("block_id", results=[zero.type]).result, build.op("block_count", results=[zero.type]).result
        names = ["tile", *(f"{ring.name}_count" for ring in rings.counted(self.rings.values()).values())]
        body = build.loop(begin, grid.tiles, step, [zero] * (len(names) - 1), list(map(build.named, names))).regions[0].blocks[0]
        tile, *self.counts = body.arguments
        with ir.InsertionPoint(body):
            blocks, heads = grid.blocks, grid.heads
            rest = arith.DivSIOp(tile, blocks).result
            numbers = (arith.RemSIOp, "block", tile, blocks), (arith.RemSIOp, "head", rest, heads), (arith.DivSIOp, "batch", rest, heads)
            for op, name, of, by in numbers:
                with build.named(name):
                    self.program.append(op(of, by).result)
            self._block(entry)
            scf.YieldOp(self.counts)

    # ---- ops

    def _block(self, block: ir.Block) -> list[ir.Value]:
        """Forms the ops of a block; the values that it hands on."""
        ops = [view.operation for view in block.operations]
        ends = self._ends(ops)
        for op in ops:
            if op in self.outer:
                continue
            if op.name in ("func.return", "scf.yield"):
                return [self._value(v) for v in op.operands]
            with op.location:
                self._op(op)
                for tile in ends.get(op, ()):
                    self._give_back(self.loaded[tile])
        return []

    def _ends(self, ops: list[ir.Operation]) -> dict[ir.Operation, list[ir.Value]]:
        """Which tiles that a block loads are done with behind which op. Raises Refused where a ring of one stage does not do."""
        found: dict[ir.Operation, list[ir.Value]] = {}
        for number, load in enumerate(ops):
            if load.name != "tile.load" or load.results[0] in self.same or not self._reads(load):
                continue
            users = [n for n, op in enumerate(ops) if n > number and self._reads(load) & used_in(op)]
            if any(ops[n].name == "scf.yield" for n in users):
                raise Refused("a loop hands a loaded tile on")
            between = [inner for op in ops[number + 1 : users[-1] + 1] for inner in (op, *walk(op)) if inner.name == "tile.load"]
            between = [inner for inner in between if inner.results[0] not in self.same]
            key = (load.operands[0], self._rows_of(load))
            if any((inner.operands[0], self._rows_of(inner)) == key for inner in between):
                raise Refused("a tile of a tensor is loaded while another one of it is in use")
            found.setdefault(ops[users[-1]], []).append(load.results[0])
        return found

    def _op(self, op: ir.Operation) -> None:
        match op.name:
            case "tile.program_id":
                self.known[op.results[0]] = self.program[ir.IntegerAttr(op.attributes["axis"]).value]
            case "tile.load":
                self._load(op)
            case "tile.map":
                self.known.update(zip(op.results, maps.form(op, self._where()), strict=True))
            case "tile.fill":
                self._start(op)
            case "tile.dot" | "tile.dot_add" | "tile.dot_rescale":
                self._product(op)
            case "tile.store":
                self._store(op)
            case "scf.for":
                self._for(op)
            case "scf.if":
                self._if(op)
            case _ if op.name.startswith(("arith.", "math.", "memref.")) or op.name == "attn.range":
                self._scalar(op)
            case _:
                raise Refused(f"'{op.name}' has no form on fragments yet")

    def _value(self, value: ir.Value) -> ir.Value:
        if value not in self.known:
            raise Refused(f"a tile in shared memory is used where a fragment is asked for: {value.type}")
        return self.known[value]

    def _tile(self, value: ir.Value) -> ir.Value:
        """The fragment that a tile is; a loaded one is read from shared memory, once."""
        if value not in self.loaded:
            return self._value(value)
        tile, users = self.loaded[value], [(use.owner.operation, use.operand_number) for use in value.uses]
        if any(op.name in DOTS and number == len(op.operands) - 1 for op, number in users):
            raise Refused("computes with a tile that is also the second factor of a product")
        if tile.fragment is None:
            type_ = self._where().type_of(value.type)
            tile.fragment = build.op("read", [self._own_rows(tile.memory)], [type_]).result
        return tile.fragment

    def _where(self) -> FragmentMap:
        return FragmentMap(self.block, self.rows, self.columns, self.instruction, self.first, self._value, self._tile)

    def _scalar(self, op: ir.Operation) -> None:
        clone = op.clone()
        for n, value in enumerate(op.operands):
            clone.operands[n] = self._value(value)
        self.known.update(zip(op.results, clone.results, strict=True))

    def _load(self, op: ir.Operation) -> None:
        if not self._reads(op):
            return
        if op.results[0] in self.same:
            self.loaded[op.results[0]] = self.loaded[self.same[op.results[0]]]
            return
        ring = self.rings[op.operands[0], self._rows_of(op)]
        paged = self.packed if self.packed is not None and op.operands[0] in self.packed.paged else None
        last = self._memory(op.operands[0])[1] if paged is None else paged.length(self.function, of_keys=True)
        place = [*map(self._value, list(op.operands)[1:4]), build.index(0) if last is None else self._value(last)]
        self.loaded[op.results[0]] = Loaded(ring, *self._filled(ring, place))
        self.counts[ring.count] = arith.AddIOp(self.counts[ring.count], build.index(1)).result

    def _filled(self, ring: SharedRing, place: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
        """The tile at a place (see `rings.fill`), once it has been copied, and its stage."""
        assert isinstance(ring, RingBuffer)
        return rings.fill(ring, place, self.counts[ring.count], self.leads)

    def _give_back(self, tile: Loaded) -> None:
        assert isinstance(tile.ring, RingBuffer)
        rings.give_back(tile.ring, tile.stage)

    def _own_rows(self, memory: ir.Value) -> ir.Value:
        """The warpgroup's rows of a tile of the block's rows."""
        type_ = ir.MemRefType(memory.type)
        if type_.shape[0] != self.block:
            raise Refused(f"a tile of {type_.shape[0]} rows stands for the {self.block} of a block")
        buffer, stage, _, column = memory.owner.operation.operands
        own = ir.MemRefType.get([self.rows, type_.shape[1]], type_.element_type, memory_space=type_.memory_space)
        return build.op("view", [buffer, stage, self.first, column], [own]).result

    def _start(self, op: ir.Operation) -> None:
        type_, value = self._where().type_of(op.results[0].type), self._value(op.operands[0])
        self.known[op.results[0]] = build.map_(ir.RankedTensorType(type_).shape, [type_], [""], lambda *places: [value])[0]

    def _product(self, op: ir.Operation) -> None:
        """A product; a sum is rescaled before."""
        *before, a, b = op.operands
        if flag(op, "transpose_a") or b not in self.loaded:
            raise Refused("the second factor of a product is a loaded tile, the first one has the rows of a block")
        type_ = self._where().type_of(op.results[0].type)
        left = self._own_rows(self.loaded[a].memory) if a in self.loaded and self.loaded[a].fragment is None else self._tile(a)
        sums = maps.scaled(*map(self._value, before)) if before else None
        transpose_b = self.loaded[b].ring.turned or ir.BoolAttr(op.attributes["transpose_b"]).value
        self.known[op.results[0]] = self._multiply(sums, left, self.loaded[b].memory, transpose_b, type_)

    def _multiply(self, sums: ir.Value | None, left: ir.Value, right: ir.Value, transpose_b: bool, type_: ir.Type) -> ir.Value:
        """A product that is waited for, added to sums if there are some."""
        start = sums if sums is not None else build.op("registers", results=[type_]).result
        keep = arith.ConstantOp(ir.IntegerType.get_signless(1), int(sums is not None)).result
        build.op("mma_begin")
        pending = build.mma_async(start, left, right, keep, (False, transpose_b))
        build.op("mma_commit")
        return build.mma_wait(pending, type_, 0)

    def _store(self, op: ir.Operation) -> None:
        tile, target, batch, head, row, count = op.operands
        whole = self.packed is not None and self.packed.is_rest(target, row, count, self.block)
        if not whole and not is_rest(row, count, self.block, self._exists):
            raise Refused("a store writes fewer rows than exist of the block")
        fragment = maps.narrowed(self._tile(tile), stored_element(tile.type, ir.MemRefType(target.type), self._where().columns_for))
        first = arith.AddIOp(self._value(row), self.first).result
        build.op("store", [fragment, self._value(target), self._value(batch), self._value(head), first])

    def _exists(self, value: ir.Value) -> bool:
        """Whether a number is that of the rows that exist."""
        size = maker(value, "memref.dim")
        return size is not None and size.operands[0] == self.over

    def _for(self, op: ir.Operation) -> None:
        """A loop, which also carries how often the rings are used that are filled in it."""
        block, used = op.regions[0].blocks[0], self._filled_in(op)
        begin, end, step, *starts = (self._value(v) for v in op.operands)
        counted = rings.counted(self.rings.values())
        names = [*(a.location for a in block.arguments), *(build.named(f"{counted[n].name}_count") for n in used)]
        loop = build.loop(begin, end, step, [*starts, *(self.counts[n] for n in used)], names)
        body = loop.regions[0].blocks[0]
        index, *carried = body.arguments
        self.known.update(zip(block.arguments, [index, *carried], strict=False))
        self._inside(body, block, used, carried[len(starts) :])
        self._known_after(op, list(loop.results), used)

    def _if(self, op: ir.Operation) -> None:
        """A condition, which also gives how often the rings are used that are filled in one of its branches."""
        used = self._filled_in(op)
        types = [self._where().type_of(r.type) if isinstance(r.type, ir.RankedTensorType) else r.type for r in op.results]
        branch = scf.IfOp(self._value(op.operands[0]), [*types, *[ir.IndexType.get()] * len(used)], has_else=len(op.regions[1].blocks) > 0)
        for region, made in zip(op.regions, (branch.then_block, branch.else_block), strict=True):
            if made is not None:
                self._inside(made, region.blocks[0], used, [self.counts[n] for n in used])
        self._known_after(op, list(branch.results_), used)

    def _filled_in(self, op: ir.Operation) -> list[int]:
        """Which rings an op's regions fill."""
        loads = [load for load in find_all(op, "tile.load") if load.results[0] not in self.same and self._reads(load)]
        return sorted({self.rings[load.operands[0], self._rows_of(load)].count for load in loads})

    def _inside(self, made: ir.Block, block: ir.Block, used: list[int], counts: list[ir.Value]) -> None:
        """Forms a block inside of another one, with what rings count there; what was loaded outside stays known."""
        outer, read = list(self.counts), {value: tile.fragment for value, tile in self.loaded.items()}
        for n, value in zip(used, counts, strict=True):
            self.counts[n] = value
        with ir.InsertionPoint(made):
            scf.YieldOp([*self._block(block), *(self.counts[n] for n in used)])
        self.counts = outer
        for value, tile in self.loaded.items():
            tile.fragment = read.get(value)

    def _known_after(self, op: ir.Operation, results: list[ir.Value], used: list[int]) -> None:
        self.known.update(zip(op.results, results, strict=False))
        for n, value in zip(used, results[len(op.results) :], strict=True):
            self.counts[n] = value
