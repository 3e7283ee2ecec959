"""What every printer of a chunk scan works with: its tiles, their copies in shared memory, and views of its arguments."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from attn_mlir.backends.amd.chunks.layout import ChunkLayout, wants
from attn_mlir.backends.amd.chunks.memory import LdsBuffer, LdsMemory
from attn_mlir.backends.amd.chunks.tiles import (
    FACTORS,
    FLOATS,
    HALVES,
    SIZES,
    ChunkFragment,
    ChunkVector,
    Grid,
    Held,
    PartialSum,
    Tile,
    Uniform,
    Wide,
    chunks_of,
    round_up,
)
from attn_mlir.backends.gpu.residuals import residuals
from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.gpu.views import ViewCore
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_TAKEN = "lane wave memory head batch block next n r t e c i j row column piece attn own first pair at_row at_column rows left".split()
"""Names that the printed code uses for itself."""


@dataclass(frozen=True)
class Place:
    """Where a map is: the C++ expressions of its indices, and, for tiles of one layout, of an element in registers."""

    indices: tuple[str, ...]
    layout: Grid | Held | int | None
    element: str = ""


class ChunkCore(ViewCore[Tile]):
    """Prints the parts that all scans have.

    Further C++ variables that the body relies on: `lane` and `wave` (of this thread), `own` and `first` (see `attn::Block`), `memory`.
    """

    emitter = "amd"

    def __init__(self, kernel: ir.Operation, chunk: int, reuse: int, split: int) -> None:
        """`reuse`: see `Memory`; `split`: in how many parts the factors of large products come to shared memory."""
        super().__init__(kernel, chunk, _TAKEN)
        self.chunk, self.split = chunk, split
        self.layout = ChunkLayout(kernel)
        self.residuals = residuals(kernel)
        """Factors of products that are kept 2^11 times as large as they are."""
        self.memory = LdsMemory(self.writer, reuse)
        self.copies: dict[tuple[str, str], LdsBuffer] = {}
        """Copies of tiles in shared memory, by the tile's name and form: "rows", "columns" (its transpose), "floats" or "vector"."""
        self.place: Place | None = None
        """Where the map is that is printed now."""
        self.aligned: dict[int, int] = {}
        self.element = next(iter(HALVES))

    # ---- text

    @contextmanager
    def repeated(self, index: str, count: int) -> Iterator[str]:
        """A loop over registers of a lane, or none for a single one; gives the index."""
        with self.unrolled(index, count) if count > 1 else self.scope(""):
            yield index if count > 1 else "0"

    # ---- sizes

    @property
    def size(self) -> int:
        """Rows and columns of the blocks that matrix instructions make: small ones where a chunk's pairs would be a single large one, and
        where systems are solved."""
        return 32 if self.chunk % 32 == 0 and self.chunk > 32 and not self.layout.solves else 16

    def padded(self, extent: int) -> int:
        """An extent of a tile in blocks of matrix products, or of its copy in shared memory."""
        return round_up(extent, self.size if extent == self.chunk else 32)

    def grid(self, value: ir.Value) -> Grid:
        """That of a tile in the layout of matrix products."""
        rows, columns = ir.RankedTensorType(value.type).shape
        return Grid(self.size, self.padded(rows), self.padded(columns), self.layout.by_columns(value), self.layout.whole_columns(value))

    # ---- arguments

    def item(self, value: ir.Value, indices: list[str]) -> str:
        """C++: an element of a memref."""
        base, _, offset = self.address(value, indices).partition(" + ")
        return f"{base}[{offset or '0'}]"

    def address(self, value: ir.Value, indices: list[str]) -> str:
        """C++: a pointer to an element of a memref, given the first indices; the others are 0."""
        view = self.view(value)
        given, terms = dict(zip(view.dims, indices, strict=False)), []
        for dim, offset in enumerate(view.offsets):
            index = given.get(dim, "0")
            text = " + ".join(x for x in (offset, index) if x != "0")
            if text:
                whole = text.isidentifier() or (text.startswith("(") and _closes(text))
                terms.append(f"{text if whole else f'({text})'} * {self.arguments.stride(view.argument, dim)}")
        return " + ".join([self.arguments.pointer(view.argument), *terms])

    def load(self, op: ir.Operation, indices: list[str]) -> str:
        return self.item(op.operands[0], indices)

    def align(self, value: ir.Value) -> int:
        """Of how many elements rows of a tensor start at multiples, up to 16 bytes. The driver sees to it."""
        view, type_ = self.view(value), ir.MemRefType(value.type)
        columns, most = (type_.shape[-1], ir.MemRefType(view.argument.type).shape[-1]), 16 // SIZES[str(type_.element_type)]
        align = next(size for size in (8, 4, 2, 1) if size <= most and all(c % size == 0 for c in columns))
        number = self.arguments.number(view.argument)
        self.aligned[number] = min(align, self.aligned.get(number, most))
        return align

    # ---- elements of tiles

    def extract(self, op: ir.Operation, indices: list[str]) -> str:
        tile = self.tiles.get(op.operands[0])
        kind = str(op.results[0].type)
        if isinstance(tile, Uniform):
            return tile.name
        if isinstance(tile, PartialSum) and tile.groups == 1:
            return f"((const float *)({self.copies[tile.name, 'parts'].at}))[{tile.slot} + {indices[0]}]"
        if isinstance(tile, ChunkVector):
            return self._of_vector(op, tile, indices[0])
        if isinstance(tile, (ChunkFragment, Held, Wide)):
            own = self.place is not None and self.own(op) == [0, 1] and tuple(indices) == self.place.indices
            if own and self.place is not None and self.place.layout is not None and layout_of(tile) == self.place.layout:
                return self.narrowed(f"{tile.name}{self.place.element}", kind)
            form = self.readable_form(op.operands[0])
            buffer = self.copies[tile.name, form]
            if form == "floats":
                return f"((const {FLOATS[kind]} *)({buffer.at}))[{indices[0]} * {self.float_stride(tile)} + {indices[1]}]"
            place = f"<{chunks_of(self.padded(tile.columns), kind)}>({buffer.at}, {indices[0]}, {indices[1]})"
            return f"attn::float_at{place}" if kind == "f32" else f"attn::bits<{FACTORS[kind]}>(attn::half_at{place})"
        raise UnsupportedError(f"amd: the kernel reads {op.operands[0]}, which has no place ({op.location})")

    def _of_vector(self, op: ir.Operation, tile: ChunkVector, index: str) -> str:
        place = self.place
        if place is not None and place.layout == tile.length and index == place.indices[0]:
            return f"{tile.name}[{place.element}]"
        number = constant(op.operands[1])
        if number is not None:
            return f"attn::of_lane({tile.name}[{int(number) // 64}], {int(number) % 64})"
        return f"((const {FLOATS[tile.element]} *)({self.copies[tile.name, 'vector'].at}))[wave * {self.vector_stride(tile)} + {index}]"

    def readable_form(self, value: ir.Value) -> str:
        """The form in which the elements of a tile of two dimensions are read at any place: one that products take, where it is needed."""
        element = str(ir.RankedTensorType(value.type).element_type)
        return "rows" if element in HALVES or (element in FACTORS and "rows" in wants(value)) else "floats"

    def narrowed(self, text: str, kind: str) -> str:
        """An element in registers as a C++ value of its type."""
        return f"attn::bits<{HALVES[kind]}>((unsigned short){text})" if kind in HALVES else text

    def float_stride(self, tile: ChunkFragment | Held | Wide) -> int:
        """Elements from row to row of a copy in shared memory."""
        # Rows of few columns are read by lanes of different rows: then they begin in different banks.
        return round_up(tile.columns, 32) + (16 // SIZES[tile.element] if tile.columns <= 64 else 0)

    def vector_stride(self, tile: ChunkVector | PartialSum) -> int:
        """Elements from wave to wave of a copy in shared memory: with padding, as blocks of products read it."""
        return max(self.padded(tile.length), 32)


def layout_of(tile: Tile) -> Grid | Held | int | None:
    """What tiles must have in common for a map to go through them together."""
    if isinstance(tile, ChunkFragment):
        return tile.grid
    if isinstance(tile, Held):
        return replace(tile, name="", element="")
    return tile.length if isinstance(tile, ChunkVector) else None


def _closes(text: str) -> bool:
    """Whether the parenthesis that begins a text ends with it."""
    depth = 0
    for number, character in enumerate(text):
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth == 0:
            return number == len(text) - 1
    return False
