"""Where the tiles of a kernel live: in registers, one row a lane, or in shared memory.

A wave has 32 rows. Lane l of it has row l % 32, and of every 32 columns the 16 that begin at 16 (l / 32). The C++ names of these are `row`
(counted in the whole tile) and `column`; element [n][r] of a fragment is in column `column` + 32 n + r. This is what the matrix
instruction with 32 x 32 results makes of permuted rows of operand A, and what it takes as operand B: results become operands as they are.
"""

from dataclasses import dataclass

from attn_mlir.dialects.elements import ELEMENTS

WAVES = 4
ROWS = 32
"""Rows of a wave."""
STEP = 32
"""Columns of a fragment come in multiples of this."""


def round_up(value: int, multiple: int) -> int:
    """The next multiple."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True)
class MatrixElement:
    """How matrix instructions take elements of a type.

    `suffix` of the names of functions in C++; `words`: the registers of eight elements. The instruction takes their bits for `part` of what
    they stand for.
    """

    suffix: str
    bytes: int
    words: str
    part: float = 1.0

    def chunks(self, columns: int) -> int:
        """Of 16 bytes."""
        return columns * self.bytes // 16


MATRIX = {
    "f16": MatrixElement("f16", 2, "Bits4"),
    "bf16": MatrixElement("bf16", 2, "Bits4"),
    **{
        name: MatrixElement("fp8" if element.exponent == 4 else "bf8", 1, "Bits2", 1.0 if element == element.twin else 0.5)
        for name, element in ELEMENTS.items()
        if element.taken_by("nuz")
    },
}
"""By the names of types."""


@dataclass(frozen=True)
class MfmaFragment:
    """A tile [32 rows of each wave, columns] of f32 in registers: `attn::Float16x name[columns / 32]`."""

    name: str
    columns: int

    @property
    def parts(self) -> int:
        return self.columns // STEP


@dataclass(frozen=True)
class PackedTile:
    """A tile of `MATRIX` elements in registers, as operand B takes it: `words name[columns / 16]`, 8 columns each.

    Word [2 n + g] has columns `column` + 32 n + 8 g and the seven after it.
    """

    name: str
    columns: int
    element: str


@dataclass(frozen=True)
class MfmaRow:
    """One value for each row, `float name`, the same in both lanes of a row. Of a `partial` one each has a part of a sum."""

    name: str
    partial: bool = False


@dataclass(frozen=True)
class LdsTile:
    """A tile of `MATRIX` elements in shared memory, [rows, columns] with columns padded by zeros to a multiple of 32.

    `rows_at` is the byte where its rows begin, None where it is not kept so, `columns_at` that of its transpose. Chunks of 16 bytes are
    swizzled in their row.
    """

    rows: int
    columns: int
    element: str
    rows_at: int | None
    columns_at: int | None


Tile = MfmaFragment | PackedTile | MfmaRow | LdsTile
