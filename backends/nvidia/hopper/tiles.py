"""Where the tiles of a Hopper kernel live: in registers of a warpgroup, two rows a thread, or in shared memory.

A warpgroup holds 64 rows. In thread t of it (w = t / 32 % 4, l = t % 32) register 4 c + 2 h + e of a fragment is the element in row
16 w + l / 4 + 8 h and column 8 c + 2 (l % 4) + e. The C++ names of these are `row` (that of h = 0, counted in the whole tile), `column`
(that of c = e = 0), `h`, `c` and `e`.
"""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS, ROW_BYTES, STEP

ROWS = 64
"""Rows of a warpgroup."""


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class RegTile:
    """A tile [64 rows of each warpgroup, columns] in registers: `float name[columns / 2]`.

    `element`: "f32", or "f16"/"bf16" for values that are rounded when they are packed as operand A of a product.
    `kept`: the words of `dropout.print_rows` that tell what becomes 0 when they are packed, or "".
    """

    name: str
    columns: int
    element: str = "f32"
    kept: str = ""

    @property
    def registers(self) -> int:
        return self.columns // 2


@dataclass(frozen=True)
class RegRow:
    """One value for each row: `float name[2]`, the same in the four threads of a row.

    A `partial` one holds in each of the four threads a part of a sum.
    """

    name: str
    partial: bool = False


@dataclass(frozen=True)
class SharedTile:
    """A tile of 16-bit elements in shared memory, in swizzle atoms of 64 columns.

    `address`: a C++ expression of its 32-bit address. `rows` are those in memory; the tile is [rows, columns] with `columns` that mean
    something, and zeros behind them up to a multiple of 64.
    """

    address: str
    rows: int
    columns: int
    element: str

    @property
    def atom_bytes(self) -> int:
        return self.rows * ROW_BYTES

    @property
    def atoms(self) -> int:
        return atoms(self.columns)

    @property
    def depth(self) -> int:
        """Extent along K when the columns are summed over."""
        return round_up(self.columns, STEP)


@dataclass(frozen=True)
class WindowTile:
    """A window of a captured tensor, or a number for each of its diagonals, in shared memory.

    `start`: a C++ expression, where the window begins, or where this thread's diagonal of h = c = e = 0 lies; `atom`: bytes from one
    swizzle atom of 128 bytes of columns to the next, 0 for diagonals.
    """

    start: str
    atom: int
    element: str


Tile = RegTile | RegRow | SharedTile | WindowTile


def atoms(columns: int) -> int:
    """How many swizzle atoms hold this many columns."""
    return -(-columns // COLUMNS)


def tile_bytes(rows: int, columns: int) -> int:
    """Bytes of a tile of 16-bit elements in shared memory; a multiple of 1024 for rows that are a multiple of 8."""
    return rows * ROW_BYTES * atoms(columns)
