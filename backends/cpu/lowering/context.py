"""What the rules share: the target, where buffers are, and what each tile has become."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.long_blocks import Length
from attn_mlir.backends.cpu.target import CpuTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir


@dataclass(frozen=True)
class MemRef:
    """A memref argument: address, element type, and sizes and strides (in elements) as i64 values."""

    address: ir.Value
    element: ir.Type
    sizes: tuple[ir.Value, ...]
    strides: tuple[ir.Value, ...]


@dataclass(frozen=True)
class LaneTile:
    """A tile with query rows, transposed: vector `column` holds that column of all rows.

    Elements of f16 and bf16 tiles are kept as f32, already rounded.
    """

    address: ir.Value


@dataclass(frozen=True)
class ColumnTile:
    """What lanes read of a captured tensor: column j is a vector of elements `kept`, j times `stride` (i64) of them after the first."""

    address: ir.Value
    stride: ir.Value
    kept: ir.Type

    def at(self, column: ir.Value) -> ir.Value:
        """Address of a column."""
        return emit.element_pointer(self.address, emit.mul(emit.to_i64(column), self.stride), self.kept)


@dataclass(frozen=True)
class RowTile:
    """A tile of keys or values, row by row; `stride` counts elements (i64), columns are contiguous.

    Where it is also needed two rows at a time, `pairs` has it so. Elements are scores, or of the type `narrow`, as they lie in memory.
    """

    address: ir.Value
    stride: ir.Value
    pairs: "RowPairs | ColumnPairs | None" = None
    narrow: ir.Type | None = None


@dataclass(frozen=True)
class LanePairs:
    """A bf16 tile with query rows, two columns at a time: 32-bit word (pair, row) holds columns 2 pair and 2 pair + 1.

    That of a map also lies at `columns`, as bf16, column by column: there word (column, pair) holds rows 2 pair and 2 pair + 1.
    """

    address: ir.Value
    columns: ir.Value | None = None


@dataclass(frozen=True)
class RowPairs:
    """A bf16 tile of values, two rows at a time: 32-bit word (pair, column) holds rows 2 pair and 2 pair + 1."""

    address: ir.Value
    columns: int


@dataclass(frozen=True)
class ColumnPairs:
    """The same column by column: tiles of 16 pairs of all `columns`, at most `width`, with zeros behind the last up to a `group`."""

    address: ir.Value
    columns: int
    width: int

    @property
    def group(self) -> int:
        """Pairs that are multiplied for one read and write of the sums: two tiles, where the width allows."""
        return 32 if self.width % 32 == 0 else 16

    def groups(self, count: ir.Value) -> ir.Value:
        """How many groups hold the pairs of `count` rows."""
        rows = 2 * self.group
        return arith.DivUIOp(emit.add(count, emit.index(rows - 1)), emit.index(rows)).result

    def offset(self, column: ir.Value, pair: ir.Value) -> ir.Value:
        """Where the words of a column begin, from `pair` on, a multiple of 16."""
        return emit.add(emit.mul(emit.to_i64(pair), emit.integer(self.columns)), emit.mul(emit.to_i64(column), emit.integer(16)))


@dataclass(frozen=True)
class RowMajor:
    """A tile [rows, columns] (or [columns], one row); `kept` is the element type in the buffer, where rows are `width` elements apart.

    One that may lie in memory has rows that are `stride` elements (i64) apart, aligned as its elements only. One in bands of `band`
    columns, a power of two, has `height` rows of the first band behind one another, then those of the next.
    """

    address: ir.Value
    kept: ir.Type
    rows: int
    columns: int
    width: int
    stride: ir.Value | None = None
    band: int = 0
    height: int = 0

    def at(self, row: ir.Value | None, column: ir.Value) -> ir.Value:
        """Address of an element."""
        offset = emit.to_i64(column)
        if row is not None and self.band:
            inside = arith.AndIOp(offset, emit.integer(self.band - 1)).result
            before = emit.mul(arith.SubIOp(offset, inside).result, emit.integer(self.height))
            offset = emit.add(emit.add(before, emit.mul(emit.to_i64(row), emit.integer(self.band))), inside)
        elif row is not None:
            apart = emit.integer(self.width) if self.stride is None else self.stride
            offset = emit.add(emit.mul(emit.to_i64(row), apart), offset)
        return emit.element_pointer(self.address, offset, self.kept)


@dataclass(frozen=True)
class Upcoming:
    """Rows of memory from `address` on, `stride` bytes (i64) apart, each with so many cache lines."""

    address: ir.Value
    stride: ir.Value
    rows: int
    lines: int
    written: bool


Lowered = ir.Value | MemRef | LaneTile | ColumnTile | RowTile | LanePairs | RowPairs | ColumnPairs | RowMajor
Rule = Callable[["Lowering", ir.Operation], None]


@dataclass
class Lowering:
    """State of one kernel's lowering.

    The last buffer has room for one value per lane, `places` for one address per lane; `nowhere` takes a value that nobody reads.
    `random` has room for the random words of a map. `by_keys` tells that lanes are keys or columns, not query rows.
    """

    target: CpuTarget
    lanes: int
    score: ir.Type
    buffers: list[ir.Value]
    program: tuple[ir.Value, ir.Value, ir.Value]
    places: ir.Value
    nowhere: ir.Value
    by_keys: bool
    random: ir.Value
    values: dict[ir.Value, Lowered] = field(default_factory=dict)
    rules: dict[str, Rule] = field(default_factory=dict)
    upcoming: list[Upcoming] = field(default_factory=list)
    """What the next iteration of the loop reads and writes; see `prefetch`."""
    transposed: list[ir.Value] = field(default_factory=list)
    """The tile of the current block that lies, with rows and columns exchanged, in the last buffer but one."""
    length: Length = field(default_factory=Length)
    unrounded: dict[ir.Value, ir.Value] = field(default_factory=dict)
    """16-bit numbers of column tiles as they are kept."""
    tiles: bool = False
    """Whether products use matrix tiles."""

    @property
    def row_type(self) -> ir.VectorType:
        """One value per query row."""
        return ir.VectorType.get([self.lanes], self.score)

    @property
    def score_bytes(self) -> int:
        """Size of one score."""
        return emit.bytes_of(self.score)

    @property
    def _alignment(self) -> int:
        """What columns of lane tiles are aligned to: buffers are to 64 bytes, a column to its size's power of two."""
        size = self.lanes * self.score_bytes
        return min(64, size & -size)

    def get(self, value: ir.Value) -> Lowered:
        """What `value` has become."""
        return self.values[value]

    def scalar(self, value: ir.Value) -> ir.Value:
        """What a scalar or a tile of rank 1 has become."""
        found = self.values[value]
        if not isinstance(found, ir.Value):
            raise UnsupportedError(f"{value} is not a scalar here")
        return found

    def buffer(self, op: ir.Operation, result: int = 0) -> ir.Value:
        """Address of the buffer that the schedule gave to a result."""
        return self.buffers[ir.IntegerAttr(ir.ArrayAttr(op.attributes["buffer"])[result]).value]

    def layout(self, op: ir.Operation, result: int = 0) -> str:
        """The layout that the schedule gave to a result."""
        return ir.StringAttr(ir.ArrayAttr(op.attributes["layout"])[result]).value

    def column(self, tile: LaneTile, column: ir.Value) -> ir.Value:
        """Address of one column of a lane tile."""
        return emit.element_pointer(tile.address, emit.mul(emit.to_i64(column), emit.integer(self.lanes)), self.score)

    def load_column(self, tile: LaneTile, column: ir.Value) -> ir.Value:
        """One column of a lane tile."""
        return emit.load(self.row_type, self.column(tile, column), alignment=self._alignment)

    def store_column(self, value: ir.Value, tile: LaneTile, column: ir.Value) -> None:
        """Writes one column of a lane tile."""
        emit.store(value, self.column(tile, column), alignment=self._alignment)

    def lower_block(self, block: ir.Block) -> None:
        """Applies the rules to every op of a block but its terminator."""
        self.transposed = []
        for view in list(block.operations)[:-1]:
            op = view.operation
            rule = self.rules.get(op.name, self.rules["scalar"])
            with op.location:
                rule(self, op)
        self.transposed = []
