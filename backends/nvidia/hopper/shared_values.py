"""Kernels of parts whose values are the first columns of their keys, as MLA's: two warpgroups share 64 rows, each has half of the columns.

The leader computes scores and weights, and hands the weights, rounded, and the factors of the sums to the follower through shared memory,
and, where all keys are one part, what ends the rows.
So scores are computed once for up to 512 columns of v, and a block of keys is loaded once for scores and sums.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu import printed
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.gathered_rows import GATHERING
from attn_mlir.backends.nvidia.hopper.memory import SECTION, SharedMemory, TileRing
from attn_mlir.backends.nvidia.hopper.row_kernels import RowsKernel
from attn_mlir.backends.nvidia.hopper.shared_maps import Changes
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, SharedTile
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES, SharedOperand
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

KEYS = COLUMNS
"""Keys of a block: their weights are one swizzle atom."""
_SUMS = ("tile.dot_add", "tile.dot_rescale")
_FULL, _FREE = 2, 3
"""Named barriers: weights are there; they have been read."""
_BOTH = 256
"""Threads that meet there."""


@dataclass(frozen=True)
class SharedForm:
    """What a kernel has of one kind: the loads of values, those of the keys of the same rows, and the columns of the sums."""

    keys_of: Mapping[ir.Operation, ir.Operation]
    columns: int
    ends: Mapping[ir.Operation, tuple[ir.Value, ...]]
    """The maps that end the sums of one part, and the values of rows that they read."""

    @property
    def half(self) -> int:
        """Columns of a warpgroup."""
        return self.columns // 2

    def is_wide(self, type_: ir.Type) -> bool:
        """Whether a tile has those columns."""
        tile = ir.RankedTensorType(type_)
        return tile.rank == 2 and tile.shape[1] == self.columns and isinstance(tile.element_type, ir.F32Type)


def read_form(kernel: ir.Operation) -> SharedForm:
    """Raises UnsupportedError for kernels of another form."""
    sums = find_all(kernel, *_SUMS)
    columns = {ir.RankedTensorType(op.results[0].type).shape[1] for op in sums}
    if len(columns) != 1 or (wide := columns.pop()) % (2 * COLUMNS) or not MAX_COLUMNS < wide <= 2 * MAX_COLUMNS:
        raise UnsupportedError(f"hopper: two warpgroups share {MAX_COLUMNS} to {2 * MAX_COLUMNS} columns of v, a multiple of {2 * COLUMNS}")
    if find_all(kernel, "scf.if", "attn.kept"):
        raise UnsupportedError("hopper: two warpgroups share no weights of blocks that are classified, nor with dropout")
    loads = {op.results[0]: op for op in find_all(kernel, "tile.load")}
    keys_of: dict[ir.Operation, ir.Operation] = {}
    for op in sums:
        of_keys = [dot for view in op.block.operations if (dot := view.operation).name == "tile.dot"]
        tiles = [*of_keys[0].operands, op.operands[-1]] if len(of_keys) == 1 else []
        if len(tiles) != 3 or any(tile not in loads for tile in tiles):
            raise UnsupportedError("hopper: two warpgroups share weights of one product of tiles as they are in memory", op)
        k, v = loads[tiles[1]], loads[tiles[2]]
        if list(k.operands)[1:] != list(v.operands)[1:] or ir.RankedTensorType(tiles[1].type).shape[1] < wide:
            raise UnsupportedError("hopper: values are columns of the keys of the same rows", v)
        keys_of[v] = k
    ends = {op: rows for op in find_all(kernel, "tile.map") if (rows := _read_by_end(op, wide)) is not None}
    form = SharedForm(keys_of, wide, ends)
    for op in walk(kernel):
        reads = any(isinstance(value.type, ir.RankedTensorType) and form.is_wide(value.type) for value in op.operands)
        if reads and op.name not in (*_SUMS, "scf.for", "scf.yield", "tile.store", "tensor.extract") and not _is_same(op):
            raise UnsupportedError("hopper: two warpgroups share the sums of parts, which are stored as they are", op)
    return form


def _is_same(op: ir.Operation) -> bool:
    """Whether a map gives a tile as it is."""
    if op.name != "tile.map" or len(op.results) != 1:
        return False
    inner = operations(body(op))
    return len(inner) == 2 and inner[0].name == "tensor.extract" and list(inner[0].operands)[1:] == list(body(op).arguments)


def _read_by_end(op: ir.Operation, columns: int) -> tuple[ir.Value, ...] | None:
    """The values of rows that a map reads which ends sums of so many columns, element by element; None for other maps.

    Raises UnsupportedError for maps that read sums otherwise.
    """
    reads = [inner for inner in operations(body(op)) if inner.name == "tensor.extract"]
    types = [ir.RankedTensorType(read.operands[0].type) for read in reads]
    if _is_same(op) or not any(type_.rank == 2 and type_.shape[1] == columns for type_ in types):
        return None
    arguments = list(body(op).arguments)
    rows = [read.operands[0] for read, type_ in zip(reads, types, strict=True) if type_.rank == 1]
    own = all(list(read.operands)[1:] == arguments[: type_.rank] for read, type_ in zip(reads, types, strict=True))
    alone = len({read.operands[0] for read, type_ in zip(reads, types, strict=True) if type_.rank == 2}) == 1
    columns_only = sum(1 for use in arguments[1].uses) == len(reads) - len(rows)
    stored = len(op.results) == 1 and all(use.owner.operation.name == "tile.store" for use in op.results[0].uses)
    if not (own and alone and columns_only and stored and ir.RankedTensorType(op.results[0].type).rank == 2):
        raise UnsupportedError("hopper: two warpgroups share sums that are ended element by element, and stored", op)
    return tuple(dict.fromkeys(rows))


def plan_shared(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | Refusal:
    """The schedule of such a kernel."""
    consumer, producer = GATHERING[2] if choices.get("gather") else (232, 40)
    fields: Fields = {
        "values": "keys", "flow": "plain", "stages": 2, "staging": "own", "order": "dynamic", "group": 16, "reverse": 1, "ping_pong": 0,
        "vote": 1, "pin": 0, "queries": "shared", "consumer_registers": consumer, "producer_registers": producer,
    }  # fmt: skip
    fields |= {name: choices[name] for name in ("gather", "few", "order") if name in choices}
    try:
        needed = printed.tried(kernel, "hopper", fields, SharedValuesKernel(kernel, fields).emit()).shared_bytes
    except UnsupportedError as error:
        return Refusal.of(error)
    return fields if needed <= target.shared_bytes else Refusal(f"it needs {needed} bytes of shared memory, of {target.shared_bytes}")


class SharedValuesKernel(RowsKernel):
    """Prints one kernel."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        super().__init__(kernel, schedule)
        if self.warpgroups != 1 or self.core.width != KEYS:
            raise UnsupportedError(f"hopper: two warpgroups share weights of {ROWS} rows and {KEYS} keys")
        self.form = read_form(kernel)
        self.warpgroups = 2
        self.memory = SharedMemory(self.core, 8)
        self.memory.gather(schedule.get("gather", 0))
        self.memory.in_sections = True
        self.programs.warps = 8
        self.stores = Stores(self.core, self.memory, ROWS)

    def _place(self) -> None:
        super()._place()
        self.memory.layout.tile("kWeights", ROWS * ROW_BYTES)
        self.memory.layout.slot("kFactors", ROWS * 4)

    def _brings(self, load: ir.Operation) -> bool:
        return load not in self.form.keys_of

    def _consumers(self) -> None:
        core, writer, memory = self.core, self.core.writer, self.memory
        writer.line("const int lane = threadIdx.x % 32;")
        writer.line("const int row = threadIdx.x / 32 % 4 * 16 + lane / 4, column = lane % 4 * 2;")
        writer.all(memory.iterations())
        # In advance: the leader waits before it writes weights, the first time as well.
        writer.line(f"if (warpgroup == 1) attn::named_arrive({_FREE}, {_BOTH});")
        parts = (core, memory, self.stores, Changes(core, 128), self.stages)
        with self.programs.each(producer=False):
            memory.wait_program_tiles(self.programs.round)
            known = dict(core.tiles)
            for head, kind in (("if (warpgroup == 0)", _Leader), ("else", _Follower)):
                core.tiles.clear()
                core.tiles.update(known)
                with core.scope(head):
                    printer = kind(self.form, *parts)
                    for op in operations(body(self.kernel))[:-1]:
                        printer.operation(op, [])
            memory.free_program_tiles()


class _Half(Consumer):
    """What both warpgroups do: each has the columns of the sums from `first` on."""

    second = False

    def __init__(self, form: SharedForm, core: Core, memory: SharedMemory, stores: Stores, changes: Changes, stages: int) -> None:
        super().__init__(core, memory, stores, changes, stages)
        self.form = form

    @for_op
    def operation(self, op: ir.Operation, rings: list[TileRing]) -> None:
        core, form = self.core, self.form
        wide = [value for value in (*op.operands, *op.results) if isinstance(value.type, ir.RankedTensorType) and form.is_wide(value.type)]
        if op in form.ends:
            for value in form.ends[op]:
                self.row_of_both(value)
            self.map(op)
        elif op in form.keys_of:
            core.tiles[op.results[0]] = core.tiles[form.keys_of[op].results[0]]
        elif op.name == "tile.fill" and wide:
            core.tiles[op.results[0]] = core.fragment("o", form.half, "f32", core.value(op.operands[0]))
        elif op.name == "tile.map" and wide:
            core.tiles[op.results[0]] = core.tiles[operations(body(op))[0].operands[0]]
        elif op.name == "tile.store" and (wide or op.operands[0] in [end.results[0] for end in form.ends]):
            self._store_half(op)
        elif op.name in _SUMS:
            self.sums(op)
        else:
            self.other(op, rings)

    def other(self, op: ir.Operation, rings: list[TileRing]) -> None:
        """What is not about the sums."""
        super().operation(op, rings)

    def sums(self, op: ir.Operation) -> None:
        """A product of weights and values."""
        raise NotImplementedError

    def row_of_both(self, value: ir.Value) -> None:
        """A value of rows that the leader has, for both."""
        raise NotImplementedError

    def values(self, op: ir.Operation) -> SharedTile:
        """The values of this warpgroup's columns."""
        tile = self.shared(op.operands[-1])
        begin = f" + {self.form.half // COLUMNS * tile.atom_bytes}" if self.second else ""
        return SharedTile(tile.address + begin, tile.rows, self.form.half, tile.element)

    def _store_half(self, op: ir.Operation) -> None:
        core, tile = self.core, self.fragment(op.operands[0])
        batch, head, begin, count = (core.value(value) for value in list(op.operands)[2:])
        columns = f"({self.form.half} + column + 8 * c)" if self.second else "(column + 8 * c)"
        with core.unrolled("c", tile.columns // 8), core.unrolled("h", 2):
            element = core.arguments.element(op.operands[1], [batch, head, f"({begin} + row + 8 * h)", columns], align=2)
            function, type_ = ("make_float2", "float2") if tile.element == "f32" else (f"attn::{PACKS[tile.element]}", "uint32_t")
            pair = f"{function}({tile.name}[4 * c + 2 * h], {tile.name}[4 * c + 2 * h + 1])"
            core.writer.line(f"if (row + 8 * h < {count}) reinterpret_cast<{type_} &>({element}) = {pair};")


class _Leader(_Half):
    """The warpgroup that computes weights; it has the first columns."""

    def other(self, op: ir.Operation, rings: list[TileRing]) -> None:
        if op.name != "tile.load" or op.results[0] in self.core.tiles or self.memory.ring(op, self.stages).sections == 1:
            super().other(op, rings)
            return
        ring = self.memory.ring(op, self.stages)  # its sections are waited for where they are read
        rings.append(ring)
        self.core.tiles[op.results[0]] = SharedTile(ring.at(), ring.rows, ring.columns, ring.element)

    @for_op
    def dot(self, op: ir.Operation) -> None:
        """Scores: of each section of columns once it is there."""
        core, products = self.core, self.products
        left, right = (self.shared(value) for value in op.operands)
        ring = self.memory.ring(op.operands[1].owner, self.stages)
        if ring.sections == 1:
            super().dot(op)
            return
        target, operand = core.fragment("s", core.columns(op.results[0].type)), products.left(left)
        products.begin()
        for section in range(ring.sections):
            self.memory.wait_section(ring, section)
            begin, end = section * SECTION, min((section + 1) * SECTION, right.atoms)
            a = SharedOperand(f"{operand.address} + {begin * left.atom_bytes}", left.atom_bytes)
            columns = min(right.depth, end * COLUMNS) - begin * COLUMNS
            b = SharedTile(f"{right.address} + {begin * right.atom_bytes}", right.rows, columns, right.element)
            products.start(target, a, b, columns, True, section == 0, right.element)
        products.commit()
        self.flying.append(target)
        core.tiles[op.results[0]] = target

    def sums(self, op: ir.Operation) -> None:
        core, writer, products = self.core, self.core.writer, self.products
        target, weights = self.fragment(op.operands[0]), self.fragment(op.operands[-2])
        packed, right = products.pack(weights), self.values(op)
        writer.line(f"attn::named_sync({_FREE}, {_BOTH});")  # the follower has multiplied the weights before
        writer.line("const uint32_t place = (threadIdx.x / 32 % 4 * 16 + lane % 16) * 128 + lane / 16 * 16;")
        with writer.unrolled("c", KEYS // 16):
            four = ", ".join(f"{packed}[4 * c{f' + {i}' if i else ''}]" for i in range(4))
            writer.line(f"attn::store_matrices(shared + kWeights + attn::swizzle_128(place + c * 32), {four});")
        factor = self._factor(op)
        if factor is not None:
            self._hand_over(factor)
        # The follower's wgmma reads what all threads have written.
        writer.line("attn::fence_proxy_async();", f"attn::named_arrive({_FULL}, {_BOTH});")
        if factor is not None:
            products.rescale(target, factor, vote=True)
        products.begin()
        products.start(target, packed, right, KEYS, False, False, right.element)
        products.commit()
        self.flying.append(target)
        core.tiles[op.results[0]] = target

    def _factor(self, op: ir.Operation) -> RegRow | None:
        return None if op.name == "tile.dot_add" else self._row(op.operands[1], op)

    def _row(self, value: ir.Value, op: ir.Operation | None = None) -> RegRow:
        row = self.core.tiles.get(value)
        if not isinstance(row, RegRow):
            raise UnsupportedError(f"hopper: {value} is no value of rows", op)
        return row

    def row_of_both(self, value: ir.Value) -> None:
        row, writer = self._row(value), self.core.writer
        writer.line(f"attn::named_sync({_FREE}, {_BOTH});")  # it has read the factors before
        self._hand_over(row)
        writer.line(f"attn::named_arrive({_FULL}, {_BOTH});")

    def _hand_over(self, rows: RegRow) -> None:
        with self.core.writer.block("if (column == 0)"), self.core.writer.unrolled("h", 2):
            self.core.writer.line(f"attn::store_shared(shared + kFactors + (row + 8 * h) * 4, {rows.name}[h]);")


class _Follower(_Half):
    """The warpgroup that takes the weights; it has the last columns."""

    second = True

    def other(self, op: ir.Operation, rings: list[TileRing]) -> None:
        if op.name == "tile.load" or op.name == "scf.for":
            super().other(op, rings)

    def loop(self, op: ir.Operation, partial: set[ir.Value]) -> None:
        """The same loop; of what it carries, the sums alone."""
        core, arguments = self.core, list(body(op).arguments)
        sums = [n for n, value in enumerate(op.results) if isinstance(core.tiles.get(op.operands[3 + n]), RegTile) and self._is_sum(value)]
        for n in sums:
            core.tiles[arguments[1 + n]] = core.tiles[op.operands[3 + n]]
        begin, end, step = (core.value(value) for value in list(op.operands)[:3])
        index = core.names.fresh("kv")
        with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {step})"):
            core.scalars.bind(arguments[0], index)
            self.block(body(op))
        for n in sums:
            if core.tiles[yielded(body(op))[n]] != core.tiles[op.operands[3 + n]]:
                raise UnsupportedError("hopper: sums are carried in place", op)
            core.tiles[op.results[n]] = core.tiles[op.operands[3 + n]]

    def _is_sum(self, value: ir.Value) -> bool:
        return isinstance(value.type, ir.RankedTensorType) and self.form.is_wide(value.type)

    def sums(self, op: ir.Operation) -> None:
        core, writer, products = self.core, self.core.writer, self.products
        target, right = self.fragment(op.operands[0]), self.values(op)
        writer.line(f"attn::named_sync({_FULL}, {_BOTH});")  # the leader has written the weights of this block
        if op.name == "tile.dot_rescale":
            products.rescale(target, self._handed_over("factor"), vote=True)
        products.begin()
        weights = SharedOperand(products.uniform("shared + kWeights"), ROWS * ROW_BYTES)
        products.start(target, weights, right, KEYS, False, False, right.element)
        products.commit()
        products.wait(0, target)
        writer.line(f"attn::named_arrive({_FREE}, {_BOTH});")  # the product has read the weights: the leader may write the next ones
        core.tiles[op.results[0]] = target

    def row_of_both(self, value: ir.Value) -> None:
        self.core.writer.line(f"attn::named_sync({_FULL}, {_BOTH});")  # the leader has written them
        self.core.tiles[value] = self._handed_over("ending")
        self.core.writer.line(f"attn::named_arrive({_FREE}, {_BOTH});")  # and may write again

    def _handed_over(self, name: str) -> RegRow:
        row = self.core.row(name)
        with self.core.writer.unrolled("h", 2):
            self.core.writer.line(f"{row.name}[h] = attn::load_shared(shared + kFactors + (row + 8 * h) * 4);")
        return row
