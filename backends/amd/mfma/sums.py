"""Prints sums in memory: what all keys of a program add to queries, and what pairs add to captured tensors."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from attn_mlir.backends.amd.mfma.core import MfmaCore, check_element
from attn_mlir.backends.amd.mfma.tiles import ROWS, STEP, WAVES, PackedTile, round_up
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, yielded
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_KEYS = ROWS * WAVES


@dataclass(frozen=True)
class Columns:
    """A tile [128 keys, columns] whose columns are in the lanes of each wave: `attn::Bits4 name[tiles][8]`, 8 keys a word.

    Waves w and w + 4 / `groups` have different columns. `count` of its rows exist.
    """

    name: str
    columns: int
    element: str
    count: ir.Value

    @property
    def groups(self) -> int:
        """Waves that have the same columns, and share the queries instead."""
        return {1: 4, 2: 2}.get(round_up(self.columns, STEP) // STEP, 1)

    @property
    def others(self) -> int:
        """Waves with different columns."""
        return WAVES // self.groups

    @property
    def tiles(self) -> int:
        """Of 32 columns, in each wave."""
        return -(-self.columns // (STEP * self.others))


class MfmaSums:
    """Prints `tile.accumulate` and `tile.scatter_add`."""

    def __init__(self, core: MfmaCore, ordered: bool) -> None:
        """`ordered`: what programs add for captured tensors, each to a slot of its own, is added in the order of waves and lanes."""
        self.core, self.ordered = core, ordered
        self.bytes = 0
        """Where the shared memory that the sums use ends."""
        self.busy = False
        """Whether that memory may be in use still."""
        self._columns: dict[ir.Value, Columns] = {}

    # ---- sums over keys

    def load(self, op: ir.Operation) -> None:
        """Loads the columns of a tile of keys into registers, as operand B."""
        core, writer, arguments = self.core, self.core.writer, self.core.arguments
        source, batch, head, first, count = list(op.operands)
        columns = core.columns(op.results[0].type)
        name = core.names.fresh(f"{arguments.names[arguments.number(source)]}_columns")
        tile = self._columns[op.results[0]] = Columns(name, columns, check_element(op), count)
        place = [core.value(value) for value in (batch, head, first)]
        address = " + ".join(f"{at} * {arguments.stride(source, dim)}" for dim, at in enumerate(place))
        core.align(source)
        writer.line(f"attn::Bits4 {name}[{tile.tiles}][{_KEYS // 16}];")
        with core.scope(""):
            stride = arguments.stride(source, 2)
            rows = f"{arguments.pointer(source)} + {address}, {core.value(count)}, {stride}, {columns}"
            writer.line(f"const attn::Rows rows = attn::rows_of({rows});")
            with writer.unrolled("i", tile.tiles), writer.unrolled("t", _KEYS // 16):
                # An opaque column keeps clang from computing the addresses of all rows before a loop, where no registers are left for them.
                key = f"t / 2 * 32 + {'attn::opaque(column)' if core.recompute else 'column'} + t % 2 * 8"
                writer.line(f"{name}[i][t] = attn::load_column<{columns}>(rows, (int){stride}, {key}, {self._column(tile)});")

    def _column(self, tile: Columns) -> str:
        which = f"attn::thread() / 64 % {tile.others}" if tile.others > 1 else "0"
        return f"(({which}) + {tile.others} * i) * 32 + lane % 32"

    def accumulate(self, op: ir.Operation, base: int) -> None:
        """Adds to rows of a tensor. The weights change hands through shared memory from byte `base`: a lane gets all keys of a query."""
        core, writer = self.core, self.core.writer
        weights, keys, target, slot, batch, head, row, count = list(op.operands)
        tile, packed = self._columns.get(keys), core.tiles.get(weights)
        if tile is None or not isinstance(packed, PackedTile) or packed.element != tile.element:
            raise UnsupportedError(f"amd: sums over keys need weights and keys in registers ({source_line(op.location)}): use the CPU")
        queries, scale = packed.columns, core.factors.get(packed.name)
        factors = base + queries * _KEYS * 2
        self.bytes = max(self.bytes, factors + 16)
        place = [core.value(value) for value in (slot, batch, head)]
        first, exists, known = core.value(row), core.value(count), core.value(tile.count)
        writer.line("// Sums over keys: all weights of a query come together.")
        if self.busy:
            writer.line("attn::barrier();")  # the sums before have read the weights that lie here
        self.busy = True
        with writer.unrolled("n", queries // STEP), writer.unrolled("r", 16):
            word = f"attn::half_of({packed.name}[2 * n + r / 8][r / 2 % 4], r % 2)"
            writer.line(f"attn::keep_half<{_KEYS // 8}>(memory + {base}, column + 32 * n + r, row, row < {known} ? {word} : 0);")
        if scale is not None:
            writer.line(f"if (lane == 0) ((float *)(memory + {factors}))[attn::thread() / 64] = 1.0f / {scale};")
        writer.line("attn::barrier();")  # a query needs the weights of all waves, each of which has other keys
        blocks = queries // STEP
        turns = -(-blocks // tile.groups)
        with core.unrolled("i", tile.tiles), core.unrolled("j", turns):
            which = f"attn::thread() / 64 / {tile.others} + {tile.groups} * j" if tile.groups > 1 else "j"
            query, column = core.names.fresh("query"), core.names.fresh("column")
            writer.line(f"const int {query} = {which}, {column} = {self._column(tile)};")
            uneven = blocks % tile.groups != 0
            wide = round_up(tile.columns, STEP) % (STEP * tile.others) != 0
            conditions = [f"{query} < {blocks}"] * uneven + [f"attn::uniform({column} - lane % 32) < {round_up(tile.columns, STEP)}"] * wide
            with core.scope(f"if ({' && '.join(conditions)})" if conditions else ""):
                writer.line("attn::Float16x query_sum[1] = {(attn::Float16x)(0.0f)};")
                at = f"memory + {base} + {query} * {STEP * _KEYS * 2}"
                if scale is None:
                    writer.line(f"attn::product_{tile.element}<1, {_KEYS // 16}, {_KEYS // 8}>(query_sum, {at}, {tile.name}[i]);")
                else:
                    writer.line(f"attn::product_of_waves(query_sum[0], {at}, {tile.name}[i], (const float *)(memory + {factors}));")
                inside = f" && {column} < {tile.columns}" if tile.columns % STEP else ""
                number = f"{query} * 32 + half * 16"
                added = core.names.fresh("added")
                element = core.arguments.element(target, [*place, f"({first} + {number})", column])
                writer.line(f"float *const {added} = &{element};")
                with writer.unrolled("r", 16):
                    to = f"{added} + r * {core.arguments.stride(target, 3)}"
                    writer.line(f"if ({number} + r < {exists}{inside}) attn::atomic_add({to}, query_sum[0][r]);")

    # ---- sums for captured tensors

    def scatter(self, op: ir.Operation) -> None:
        """Adds what pairs or rows contribute; what meets in one place is added up in registers first."""
        core, writer, block = self.core, self.core.writer, body(op)
        target, *extents = list(op.operands)
        value, present, *place = yielded(block)
        depends = dependence(block)
        where = frozenset[int]().union(*(depends.get(index, frozenset()) for index in place))
        with core.scope(""):
            limits = [core.value(extent) for extent in extents]
            core.scalars.bind(block.arguments[0], "row")
            for known in [*frontier(block, depends, frozenset()), *frontier(block, depends, frozenset({0}))]:
                core.scalars.emit(known)
            if len(extents) == 1:
                with self._turns():
                    self._add(target, value, present, place, f"half == 0 && row < {limits[0]}")
                return
            together = 1 not in where
            if together:
                writer.line("float scatter_sum = 0.0f;")
            with (
                nullcontext() if together else self._turns(),
                core.unrolled("n", round_up(core.width, STEP) // STEP),
                core.unrolled("r", 16),
            ):
                core.scalars.bind(block.arguments[1], f"min(column + 32 * n + r, max({limits[1]} - 1, 0))")
                exists = f"row < {limits[0]} && column + 32 * n + r < {limits[1]}"
                if together:
                    text, condition = core.scalars.emit(value), core.scalars.emit(present)
                    writer.line(f"scatter_sum += {exists} && {condition} ? {text} : 0.0f;")
                else:
                    self._add(target, value, present, place, exists)
            if together:
                indices = [core.scalars.emit(index) for index in place]
                exists = f"row < {limits[0]}" if 0 in where else "lane == 0"
                if 0 not in where:
                    writer.line("scatter_sum = attn::wave_sum(scatter_sum);")
                with self._turns():
                    self._add_number(f"&{core.arguments.element(target, indices)}", "scatter_sum", exists)

    def _add(self, target: ir.Value, value: ir.Value, present: ir.Value, place: list[ir.Value], exists: str) -> None:
        core = self.core
        text, condition = core.scalars.emit(value), core.scalars.emit(present)
        element = core.arguments.element(target, [core.scalars.emit(index) for index in place])
        self._add_number(f"&{element}", text, f"{exists}{'' if condition == 'true' else f' && {condition}'}")

    def _add_number(self, address: str, number: str, exists: str) -> None:
        if self.ordered:
            self.core.writer.line(f"attn::add_in_order({address}, {number}, {exists});")
        else:
            self.core.writer.line(f"if ({exists}) attn::atomic_add({address}, {number});")

    @contextmanager
    def _turns(self) -> Iterator[None]:
        """The waves of a program one after another, where their order matters."""
        if not self.ordered:
            yield
            return
        with self.core.scope(f"for (int turn = 0; turn < {WAVES}; ++turn)"):
            with self.core.scope("if (attn::uniform(attn::thread() / 64) == turn)"):
                yield
            self.core.writer.line("attn::next_turn();")
