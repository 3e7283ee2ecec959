"""Where the tiles of a chunk scan live: results of products and pieces of loaded tiles in registers, single values a row in lanes.

What products take, and what is read at other places than a lane's own, has copies in shared memory besides (`copies`).
"""

from dataclasses import dataclass

from attn_mlir.mlir import ir

WAVES = 4
THREADS = 64 * WAVES
STEP = 32
"""Columns of tiles, and rows that are not positions of a chunk, are padded to multiples of this."""
HALVES = {"f16": "__half", "bf16": "__hip_bfloat16"}
FLOATS = {"f32": "float", "f64": "double"}
"""f64 only where log decays are summed up."""
FACTORS = {**HALVES, "f32": "float"}
"""What products multiply."""
SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}


def chunks_of(columns: int, element: str) -> int:
    """How many chunks of 16 bytes a row has, of a copy that products take."""
    return columns * SIZES[element] // 16


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class Grid:
    """How blocks of `size` x `size` elements of a tile are shared out to waves: `down` x `across` waves have as many blocks each.

    `rows` and `columns` are those of the tile, padded. `by_columns`: a lane has neighbouring rows of one column, not neighbouring columns
    of one row. Part n of a wave is number n // `wide` from above, and n % `wide` from the left.
    """

    size: int
    rows: int
    columns: int
    by_columns: bool
    whole: bool = False
    """Whether a wave has whole columns of the tile."""

    @property
    def down(self) -> int:
        """Waves along the rows."""
        return self._waves()[0]

    @property
    def across(self) -> int:
        """Waves along the columns."""
        return self._waves()[1]

    @property
    def high(self) -> int:
        """Blocks of a wave along the rows."""
        return self.rows // self.size // self.down

    @property
    def wide(self) -> int:
        """Blocks of a wave along the columns."""
        return self.columns // self.size // self.across

    @property
    def parts(self) -> int:
        """Blocks of a wave."""
        return self.high * self.wide

    @property
    def length(self) -> int:
        """Neighbouring elements that a lane has of a block."""
        return self.size // 2 if self.size == 32 else 4

    def _waves(self) -> tuple[int, int]:
        rows, columns = self.rows // self.size, self.columns // self.size
        fits = [
            (a, b)
            for a in ((1,) if self.whole else (1, 2, 4, 3))
            for b in (1, 2, 4, 3)
            if a * b <= WAVES and rows % a == 0 and columns % b == 0
        ]
        # As many waves as possible; then blocks of a wave that have most in common.
        return max(fits, key=lambda f: (f[0] * f[1], -(rows // f[0] + columns // f[1])))

    @property
    def all_waves(self) -> bool:
        """Whether every wave has blocks."""
        return self.down * self.across == WAVES

    def wave_row(self) -> str:
        """C++: the first row of this wave's blocks."""
        number = "0" if self.down == 1 else "wave" if self.across == 1 else f"wave / {self.across}"
        return "0" if number == "0" else f"{number} * {self.size * self.high}"

    def wave_column(self) -> str:
        """C++: the first column of this wave's blocks."""
        number = "0" if self.across == 1 else "wave" if self.down == 1 else f"wave % {self.across}"
        return "0" if number == "0" else f"{number} * {self.size * self.wide}"


@dataclass(frozen=True)
class ChunkFragment:
    """A tile in the layout of matrix products: `name[part][element]`."""

    name: str
    grid: Grid
    element: str
    rows: int
    columns: int
    """Without padding."""


@dataclass(frozen=True)
class Held:
    """A tile in registers of all threads, in pieces of 8 columns of a row, or (`patches`) of 8 rows and 4 columns.

    `name[piece][column]`, or `name[8 * piece + row][column]`. A thread has piece number thread + 256 piece; where there are fewer pieces,
    several threads have the same.
    """

    name: str
    rows: int
    columns: int
    element: str
    patches: bool
    padded_rows: int

    @property
    def padded(self) -> int:
        """Columns with padding."""
        return round_up(self.columns, STEP)

    @property
    def width(self) -> int:
        """Columns of a piece."""
        return 4 if self.patches else 8

    @property
    def height(self) -> int:
        """Rows of a piece."""
        return 8 if self.patches else 1

    @property
    def pieces(self) -> int:
        """Of the tile."""
        return self.padded_rows * self.padded // (self.width * self.height)

    @property
    def pieces_per_thread(self) -> int:
        """Pieces of a thread."""
        return -(-self.pieces // THREADS)


@dataclass(frozen=True)
class Terms:
    """The terms of a product, which lie along the rows of the copies of its factors: `count` from number `begin` on."""

    begin: int
    count: int
    partial: bool = False
    """Whether there are others."""

    def of(self, index: str) -> str:
        """C++: the number of a row or column of the tile among these."""
        return f"{index} - {self.begin}" if self.begin else index

    def condition(self, index: str) -> str | None:
        """C++: the head of a scope for those only."""
        return f"if ({index} >= {self.begin} && {index} < {self.begin + self.count})" if self.partial else None


@dataclass(frozen=True)
class Wide:
    """A tile of f32 or f64 in shared memory only: running sums along columns."""

    name: str
    rows: int
    columns: int
    element: str


@dataclass(frozen=True)
class ChunkVector:
    """One value a row, in every wave: element lane + 64 n is `name[n]`; lanes behind the last row have its value."""

    name: str
    length: int
    element: str = "f32"

    @property
    def parts(self) -> int:
        """Registers of a lane."""
        return -(-self.length // 64)


@dataclass(frozen=True)
class Uniform:
    """The same value for all rows: a C++ expression."""

    name: str
    length: int


@dataclass(frozen=True)
class PartialSum:
    """Sums along rows of which `groups` parts are in shared memory, `slot` floats behind where the parts begin."""

    name: str
    length: int
    groups: int
    slot: str = "0"


@dataclass(frozen=True)
class Deferred:
    """A large tile of which only single elements are ever made (see `streams`), by this op."""

    op: ir.Operation


Tile = ChunkFragment | Held | Wide | ChunkVector | Uniform | PartialSum | Deferred
