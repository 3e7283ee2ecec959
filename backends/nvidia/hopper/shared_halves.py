"""What two warpgroups do that share 64 rows, each with half of the columns of the sums; see `shared_values`.

The leader computes scores and weights, and hands the weights, rounded, and the factors of the sums to the follower through shared memory,
and, where all keys are one part, what ends the rows. In loops over whole blocks they take turns (`shared_alternating`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.structure import body, operations, yielded
from attn_mlir.backends.nvidia.hopper.consumer import Consumer
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.memory import SECTION, SharedMemory, TileRing
from attn_mlir.backends.nvidia.hopper.shared_maps import Changes
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, SharedTile, Tile
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES, SharedOperand
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

KEYS = COLUMNS
"""Keys of a block: their weights are one swizzle atom."""
SUMS = ("tile.dot_add", "tile.dot_rescale")
FULL, FREE = 2, 3
"""Named barriers: weights are there; they have been read."""
BOTH = 256
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


class Turns(Protocol):
    """See `shared_alternating.Alternation`: loops whose blocks are led in turn, and where what is left of them begins."""

    def first(self, leader: "Leader", op: ir.Operation, carried: Sequence[Tile], bounds: tuple[str, str]) -> str: ...
    def second(self, follower: "Follower", op: ir.Operation, bounds: tuple[str, str]) -> str: ...


def is_same(op: ir.Operation) -> bool:
    """Whether a map gives a tile as it is."""
    if op.name != "tile.map" or len(op.results) != 1:
        return False
    inner = operations(body(op))
    return len(inner) == 2 and inner[0].name == "tensor.extract" and list(inner[0].operands)[1:] == list(body(op).arguments)


class Half(Consumer):
    """What both warpgroups do: each has the columns of the sums from `first` on."""

    second = False

    def __init__(
        self, form: SharedForm, turns: Turns | None, core: Core, memory: SharedMemory, stores: Stores, changes: Changes, stages: int
    ) -> None:
        super().__init__(core, memory, stores, changes, stages)
        self.form, self.turns = form, turns

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
        elif op.name in SUMS:
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

    def follow(self, op: ir.Operation, tile: SharedTile, full: int, rows: Callable[[], None] | None = None) -> RegTile:
        """Starts the product of what the other warpgroup has handed over, and told by the barrier `full`, with values in a tile.

        `rows` prints what reads further values of rows.
        """
        core, products = self.core, self.products
        target = self.fragment(op.operands[0])
        core.writer.line(f"attn::named_sync({full}, {BOTH});")
        factor = None if op.name == "tile.dot_add" else self.handed_over("factor")
        if rows is not None:
            rows()
        if factor is not None:
            products.rescale(target, factor, vote=True)
        products.begin()
        weights = SharedOperand("attn::uniform(shared + kWeights)", ROWS * ROW_BYTES)
        products.start(target, weights, self.half_of(tile), KEYS, False, False, tile.element)
        products.commit()
        core.tiles[op.results[0]] = target
        return target

    def handed_over(self, name: str) -> RegRow:
        """What the other warpgroup has stored for each row."""
        row = self.core.row(name)
        with self.core.writer.unrolled("h", 2):
            self.core.writer.line(f"{row.name}[h] = attn::load_shared(shared + kFactors + (row + 8 * h) * 4);")
        return row

    def half_of(self, tile: SharedTile) -> SharedTile:
        """This warpgroup's columns of values."""
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


class Leader(Half):
    """The warpgroup that computes weights; it has the first columns, unless it is the `second`."""

    def __init__(self, *parts: Any, second: bool = False) -> None:
        super().__init__(*parts)
        self.second = second

    def first_blocks(self, op: ir.Operation, carried: Sequence[Tile], bounds: tuple[str, str]) -> str:
        return bounds[0] if self.turns is None else self.turns.first(self, op, carried, bounds)

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
        self.lead(op, f"attn::named_sync({FREE}, {BOTH});", FULL)

    def lead(self, op: ir.Operation, free: str, full: int, rows: Callable[[], None] | None = None) -> None:
        """Hands weights and factors over, for which memory is `free` then, tells so by the barrier `full`, and starts its own product.

        `rows` prints what hands over further values of rows.
        """
        core, writer, products = self.core, self.core.writer, self.products
        target, weights = self.fragment(op.operands[0]), self.fragment(op.operands[-2])
        packed, right = products.pack(weights), self.half_of(self.shared(op.operands[-1]))
        writer.line(free)
        writer.line("const uint32_t place = (threadIdx.x / 32 % 4 * 16 + lane % 16) * 128 + lane / 16 * 16;")
        with writer.unrolled("c", KEYS // 16):
            four = ", ".join(f"{packed}[4 * c{f' + {i}' if i else ''}]" for i in range(4))
            writer.line(f"attn::store_matrices(shared + kWeights + attn::swizzle_128(place + c * 32), {four});")
        factor = self._factor(op)
        if factor is not None:
            self._hand_over(factor)
        if rows is not None:
            rows()
        # The follower's wgmma reads what all threads have written.
        writer.line("attn::fence_proxy_async();", f"attn::named_arrive({full}, {BOTH});")
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
        writer.line(f"attn::named_sync({FREE}, {BOTH});")
        self._hand_over(row)
        writer.line(f"attn::named_arrive({FULL}, {BOTH});")

    def _hand_over(self, rows: RegRow) -> None:
        with self.core.writer.block("if (column == 0)"), self.core.writer.unrolled("h", 2):
            self.core.writer.line(f"attn::store_shared(shared + kFactors + (row + 8 * h) * 4, {rows.name}[h]);")


class Follower(Half):
    """The warpgroup that takes the weights; it has the last columns."""

    second = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.leading = None if self.turns is None else Leader(*parts, second=True)
        """What it does as a leader."""
        self._in_loop = False

    def other(self, op: ir.Operation, rings: list[TileRing]) -> None:
        if op.name == "tile.load" or op.name == "scf.for":
            super().other(op, rings)
        elif self.leading is not None and not self._in_loop and op.name != "tile.store" and self._knows(op):
            self.leading.other(op, rings)

    def _knows(self, op: ir.Operation) -> bool:
        """Whether it has all tiles that an op reads: loops of a leader give it none."""
        read = [value for inner in walk(op) for value in inner.operands if isinstance(value.type, ir.RankedTensorType)]
        return all(value in self.core.tiles for value in read)

    def loop(self, op: ir.Operation, partial: set[ir.Value]) -> None:
        """The same loop; of what it carries, the sums alone."""
        core, arguments = self.core, list(body(op).arguments)
        sums = [n for n, value in enumerate(op.results) if isinstance(core.tiles.get(op.operands[3 + n]), RegTile) and self._is_sum(value)]
        for n in sums:
            core.tiles[arguments[1 + n]] = core.tiles[op.operands[3 + n]]
        begin, end, step = (core.value(value) for value in list(op.operands)[:3])
        if self.turns is not None:
            begin = self.turns.second(self, op, (begin, end))
        index = core.names.fresh("kv")
        self._in_loop = True
        with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {step})"):
            core.scalars.bind(arguments[0], index)
            self.block(body(op))
        self._in_loop = False
        for n in sums:
            if core.tiles[yielded(body(op))[n]] != core.tiles[op.operands[3 + n]]:
                raise UnsupportedError("hopper: sums are carried in place", op)
            core.tiles[op.results[n]] = core.tiles[op.operands[3 + n]]

    def _is_sum(self, value: ir.Value) -> bool:
        return isinstance(value.type, ir.RankedTensorType) and self.form.is_wide(value.type)

    def sums(self, op: ir.Operation) -> None:
        target = self.follow(op, self.shared(op.operands[-1]), FULL)
        self.products.wait(0, target)
        self.core.writer.line(f"attn::named_arrive({FREE}, {BOTH});")

    def row_of_both(self, value: ir.Value) -> None:
        self.core.writer.line(f"attn::named_sync({FULL}, {BOTH});")
        self.core.tiles[value] = self.handed_over("ending")
        self.core.writer.line(f"attn::named_arrive({FREE}, {BOTH});")
