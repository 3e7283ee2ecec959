"""What the printers of a TileLang program share: the lines so far, and where each value of the kernel is."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from attn_mlir.backends.gpu.attributes import grid_kind
from attn_mlir.backends.gpu.residuals import residuals
from attn_mlir.backends.gpu.scalar_bounds import IntegerRanges
from attn_mlir.backends.nvidia.tilelang.expressions import Expressions
from attn_mlir.backends.nvidia.tilelang.memory import TileLangMemory
from attn_mlir.backends.nvidia.tilelang.names import TilelangNames
from attn_mlir.backends.nvidia.tilelang.tiles import TileBuffer, Tiles, padded
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

INDENT = "    "


class Context:
    """State while a kernel is printed.

    `where` has the tile that each value is in, `copies` a copy in shared memory of what is in a fragment; `homes` the tile that a value
    has to be made in. `later` are maps that are computed where their results are stored, `residuals` tiles that are kept
    scaled by 2^11.
    """

    def __init__(self, kernel: ir.Operation, threads: int, stages: int = 1, deterministic: bool = False) -> None:
        self.stages, self.deterministic = stages, deterministic
        self.names, self.ranges = TilelangNames(), IntegerRanges()
        self.memory = TileLangMemory(kernel, self.names, self.ranges)
        self.tiles = Tiles(self.names)
        self.threads = threads
        self.lines: list[str] = []
        self.where: dict[ir.Value, TileBuffer] = {}
        self.copies: dict[ir.Value, TileBuffer] = {}
        self.homes: dict[ir.Value, TileBuffer] = {}
        self.later: list[ir.Operation] = []
        self.multiplies = bool(find_all(kernel, *DOTS, "tile.accumulate"))
        self._sums = not self.multiplies and bool(find_all(kernel, "tile.cumsum"))
        self.scans = grid_kind(kernel) == "chunks"
        self.pieces = of_pieces(kernel)
        self.chunk = ir.IntegerAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["block_q"]).value
        self.residuals = residuals(kernel)
        self._loaded: list[list[ir.Operation]] = [[]]
        # Products with transposed tiles share columns between groups of warps.
        self._step = 32 if find_all(kernel, "tile.accumulate") else 16
        self.depth = 2
        self.scalars = self._scalars()

    def _scalars(self) -> Expressions:
        return Expressions(self.ranges, self.names, self.read, self.lines, INDENT * self.depth, variables=True)

    def line(self, text: str, deeper: int = 0) -> None:
        """Adds a line at the current depth."""
        self.lines.append(INDENT * (self.depth + deeper) + text)

    @contextmanager
    def block(self) -> Iterator[None]:
        """What is printed inside is a block of its own; its scalars and tiles are not known outside."""
        outer = self.scalars
        self.depth += 1
        self.scalars = outer.inside(self.read, self.lines, INDENT * self.depth, variables=True)
        self.tiles.enter()
        self._loaded.append([])
        yield
        self._loaded.pop()
        self.tiles.leave()
        self.depth -= 1
        self.scalars = outer

    def shape(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """The shape of the buffer that holds a tile of these sizes."""
        if self.scans or (self._sums and len(sizes) == 2):
            return tuple(self._share(size) for size in sizes)
        rows, *columns = sizes
        return padded(rows), *(padded(size, self._step) for size in columns)

    def _share(self, size: int) -> int:
        """What a size in a scan is padded to, as rows and as columns alike, so that four warps can share every product."""
        return size if size == self.chunk else padded(size, 64 if size > 32 else 32)

    def loaded(self) -> list[ir.Operation]:
        """The loads of the block that is open."""
        return self._loaded[-1]

    def read(self, op: ir.Operation, indices: list[str]) -> str:
        """The text of a `memref.load`."""
        if op.name == "tensor.extract":
            return self.shared(op.operands[0]).at(*indices)
        if op.name != "memref.load":
            raise UnsupportedError(f"tilelang: '{op.name}' outside of a map ({source_line(op.location)})")
        return self.memory.element(op.operands[0], indices)

    def text(self, value: ir.Value) -> str:
        """The expression of a scalar."""
        return self.scalars.emit(value)

    def tile(self, value: ir.Value) -> TileBuffer:
        """Where a tile is."""
        return self.where[value]

    def scatter(self, value: ir.Value) -> None:
        """Copies a tile of a fragment to shared memory where elements of it are read by other threads than those that hold them."""
        tile = self.tile(value)
        if tile.scope == "fragment" and value not in self.copies and any(_reads_across(use.owner.operation) for use in value.uses):
            copy = self.copies[value] = self.tiles.new(f"{tile.name}_shared", "shared", tile.shape, tile.dtype)
            self.line(f"T.copy({tile.name}, {copy.name})")

    def release(self, op: ir.Operation) -> None:
        """After an op is printed: what a map of the same block made for it alone needs no shared memory any more."""
        for value in dict.fromkeys(op.operands):
            maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if maker is None or maker.name != "tile.map" or maker.block != op.block:
                continue
            if self.shared(value).scope != "shared" or not self._is_last(value, op):
                continue
            places = self.copies if value in self.copies else self.where
            tile = places.pop(value)
            if tile not in self.where.values() and tile not in self.copies.values():
                self.tiles.release(tile)

    def _is_last(self, value: ir.Value, op: ir.Operation) -> bool:
        """Whether an op is the last of its block, which made a tile, that needs it."""
        users = [use.owner.operation for use in value.uses]
        if all(user == op for user in users):
            return True
        if any(user.block != op.block for user in users):
            return False
        following = [view.operation for view in op.block.operations]
        return all(following.index(user) <= following.index(op) for user in users)

    def meet(self) -> None:
        """Before shared memory is written: threads meet where others may still read it. Otherwise TileLang has them meet at every write."""
        if self.tiles.still_read:
            self.line("T.sync_threads()")
            self.tiles.still_read = False

    def rows_apart(self, rows: int) -> bool:
        """Whether every warp has rows of a product of its own."""
        return rows % (self.threads // 2) == 0

    def shared(self, value: ir.Value) -> TileBuffer:
        """Where a tile is in shared memory."""
        return self.copies.get(value) or self.where[value]


def _reads_across(op: ir.Operation) -> bool:
    """Whether an op reads an element of a tile at another place than its map's own."""
    return op.name == "tensor.extract" and list(op.operands)[1:] != list(op.block.arguments)[: len(list(op.operands)) - 1]


def of_pieces(kernel: ir.Operation) -> bool:
    """Whether a kernel is a scan over f32 inputs, whose products multiply pieces of its tiles."""
    first = ir.MemRefType(kernel.regions[0].blocks[0].arguments[0].type)
    return grid_kind(kernel) == "chunks" and isinstance(first.element_type, ir.F32Type) and bool(find_all(kernel, "tile.dot"))


def constant(value: ir.Value) -> int | None:
    """The number that an index is, if it is a constant."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant":
        return None
    return ir.IntegerAttr(value.owner.operation.attributes["value"]).value
