"""Layouts of fragments: which element is in which register of which thread.

Mixed-radix digits of register, lane and warp, each of which moves by (rows, columns): the form of CuTe's layouts. Layouts over bits would
not do, as 72, 80 or 96 columns are no powers of two.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache

from attn_mlir.dialects.elements import EIGHT_BIT, ELEMENTS
from attn_mlir.mlir import ir

FORMS = ("tile", "rows", "parts")
_BITS = {name: element.bits for name, element in ELEMENTS.items()} | {"i32": 32, "i1": 0}


@dataclass(frozen=True)
class Digit:
    """A digit with `size` values, each of which moves by so many rows and columns."""

    size: int
    row: int
    column: int


@dataclass(frozen=True)
class RegisterLayout:
    """The digits of registers, lanes and warps for a tile of so many columns, least significant first."""

    registers: tuple[Digit, ...]
    lanes: tuple[Digit, ...]
    warps: tuple[Digit, ...]

    @property
    def row_digits(self) -> tuple[Digit, ...]:
        """The digits of a thread's registers that tell its rows."""
        return tuple(d for d in self.registers if d.row)

    @property
    def parts(self) -> int:
        """How many threads hold a row together."""
        return _count(d for d in self.lanes if d.column)

    @property
    def rows(self) -> int:
        """Rows of all warps."""
        return _count(d for d in (*self.registers, *self.lanes, *self.warps) if d.row)

    @property
    def rows_of_warp(self) -> int:
        """Rows of one warp; those of the next one follow."""
        return _count(d for d in (*self.registers, *self.lanes) if d.row)

    def exchanges(self) -> list[int]:
        """The distances between lanes by which a reduction along a row meets all of its parts."""
        strides = [_count(self.lanes[:n]) for n in range(len(self.lanes))]
        return [s << bit for d, s in zip(self.lanes, strides, strict=True) if d.column for bit in range(d.size.bit_length() - 1)]

    def part_of(self, column: int) -> int:
        """Which of the threads of a row holds a column."""
        digits = [d for d in self.lanes if d.column]
        return sum(column // d.column % d.size * _count(digits[:n]) for n, d in enumerate(digits))


def _count(digits: Iterable[Digit]) -> int:
    return math.prod(d.size for d in digits)


def wgmma(columns: int) -> RegisterLayout:
    """The accumulator of wgmma m64nNk16, and of mma.sync m16n8k16 in each of four warps.

    Operand a in registers has the same places, two 16-bit elements a register.

    Where elements have 8 bits, four of a register are two neighbours of eight columns and two of the next eight, see `column_at`.
    """
    return _layout([(2, 0, 1), (2, 8, 0), (columns // 8, 0, 8)], [(4, 0, 2), (8, 1, 0)], [(4, 16, 0)])


def column_at(place: int) -> int:
    """The column of a fragment of 8-bit elements that is multiplied at a place of the sum of a product, where it is operand a.

    wgmma takes four places of a thread in turn, where an accumulator has two columns in each eight: place 4 t + 2 a + b of sixteen is
    column 8 a + 2 t + b. So operand b has its rows in this order (`warp.transpose`), and accumulators become operands as they are.
    """
    sixteen, thread, half, own = place // 16, place % 16 // 4, place % 4 // 2, place % 2
    return 16 * sixteen + 8 * half + 2 * thread + own


@cache
def turned_places(columns: int, keys: int, swizzle: int) -> list[list[int]]:
    """Where a tile [columns, keys] of 8-bit elements has what it has at a row and a place, in bytes behind its begin in shared memory.

    Rows are in swizzle atoms of so many bytes, one after another; keys have the order of `column_at`.
    """
    found = [[0] * keys for _ in range(columns)]
    for row in range(columns):
        for place in range(keys):
            at = place // swizzle * columns * swizzle + row * swizzle + place % swizzle
            found[row][place] = at ^ (at >> 3 & swizzle - 16)
    return found


def mma32(columns: int) -> RegisterLayout:
    """Twice the accumulator of m16n8k16: a warp has 32 rows, so that what it reads of the other factor serves two products."""
    return _layout([(2, 0, 1), (2, 8, 0), (columns // 8, 0, 8), (2, 16, 0)], [(4, 0, 2), (8, 1, 0)], [(4, 32, 0)])


def mfma32(columns: int) -> RegisterLayout:
    """The accumulator of v_mfma_f32_32x32x8f16 in four waves of 64 lanes."""
    return _layout([(4, 1, 0), (4, 8, 0), (columns // 32, 0, 32)], [(32, 0, 1), (2, 4, 0)], [(4, 32, 0)])


def _layout(*groups: Sequence[tuple[int, int, int]]) -> RegisterLayout:
    registers, lanes, warps = (tuple(Digit(*digit) for digit in group) for group in groups)
    return RegisterLayout(registers, lanes, warps)


EIGHT_BIT_STEP = 32
"""Places of the sum that one instruction takes of 8-bit elements."""
INSTRUCTIONS = {"wgmma": (wgmma, 8), "mma16": (wgmma, 8), "mma32": (mma32, 8), "mfma32": (mfma32, 32)}
"""By the name of a matrix instruction, its layout by columns, and what these are a multiple of."""


@dataclass(frozen=True)
class Fragment:
    """What the type of a fragment says: `form` "tile" [M, N], "rows" [M] or "parts" [M, threads of a row], and its element type."""

    instruction: str
    form: str
    shape: tuple[int, ...]
    element: str

    @property
    def layout(self) -> RegisterLayout:
        """Where its elements are; of rows and parts, where those of the narrowest tile are."""
        return _known(self.instruction, self.shape[1] if self.form == "tile" else 0)

    @property
    def is_eight_bit(self) -> bool:
        """Whether a register holds four elements, in the order of `column_at`."""
        return self.element in EIGHT_BIT

    @property
    def elements(self) -> int:
        """Elements that a thread holds."""
        layout = self.layout
        return _count(layout.registers if self.form == "tile" else layout.row_digits)

    @property
    def registers(self) -> int:
        """Registers of 32 bits that a thread holds; conditions live in predicates."""
        return self.elements * _BITS[self.element] // 32

    def misfit(self) -> str:
        """Why there is no such fragment; empty where there is."""
        make, multiple = INSTRUCTIONS[self.instruction]
        rank = 1 if self.form == "rows" else 2
        if len(self.shape) != rank or min(self.shape) < 1:
            return f"has {rank} static dimensions"
        if self.element not in _BITS:
            return f"has elements of {', '.join(_BITS)}"
        if self.form == "tile" and self.shape[1] % multiple:
            return f"has a multiple of {multiple} columns"
        layout = make(self.shape[1] if self.form == "tile" else multiple)
        wanted = {"tile": [layout.rows], "rows": [layout.rows], "parts": [layout.rows, layout.parts]}[self.form]
        if self.is_eight_bit and self.shape[-1] % EIGHT_BIT_STEP:
            return f"has a multiple of {EIGHT_BIT_STEP} columns where elements have 8 bits"
        return "" if list(self.shape[: len(wanted)]) == wanted else f"begins with {'x'.join(map(str, wanted))}"


@cache
def _known(instruction: str, columns: int) -> RegisterLayout:
    """The layout of a tile of so many columns, 0 for the narrowest."""
    make, multiple = INSTRUCTIONS[instruction]
    return make(columns or multiple)


_FRAGMENTS: dict[str, Fragment | None] = {}
"""What types say, by their text: evaluators and verifiers ask for those of each op."""


def fragment(type_: ir.Type) -> Fragment | None:
    """What the type of a fragment says, None for other types and unknown layouts."""
    if not isinstance(type_, ir.RankedTensorType):
        return None
    text = str(type_)
    if text not in _FRAGMENTS:
        _FRAGMENTS[text] = _read(type_)
    return _FRAGMENTS[text]


def _read(type_: ir.RankedTensorType) -> Fragment | None:
    if not str(type_.encoding).startswith("#warp.layout<"):
        return None
    instruction, form = (ir.StringAttr(p).value for p in ir.DynamicAttr(type_.encoding).params)
    known = instruction in INSTRUCTIONS and form in FORMS
    return Fragment(instruction, form, tuple(type_.shape), str(type_.element_type)) if known else None
