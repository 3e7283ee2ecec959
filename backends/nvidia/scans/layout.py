"""Where the tiles of a chunk scan are: products and states in registers, 16-bit tiles, rows and what others read in shared memory."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.backends.gpu.residuals import residuals
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations, yielded
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.passes.prepare_chunks import INVERSE, ONCE
from attn_mlir.backends.nvidia.scans.loops import element_of, extents, follows_rows, loads_ahead, own_reads, shape_of, sums_memory, sums_of
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

SOLVE = "tile.solve_unit"
HALVES = ("f16", "bf16")
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8}
_PAD = 8
"""Columns between rows of f32, so that threads of one product's results use different banks."""
_STEP = 32
"""Rows and columns of tiles are multiples of it."""
_ALIGN = 128
_MAPS = 3
"""Maps that read a tile, from which on threads hold their elements of it."""


@dataclass(frozen=True)
class ScanGrid:
    """How warps share a tile in registers: `down` x `across` of them, each with `high` x `wide` parts of 16 x 8."""

    rows: int
    columns: int
    warps: int
    tall: bool = False
    """Whether all warps share rows alone."""

    @property
    def _fits(self) -> list[int]:
        downs = [d for d in (1, 2, 4, 8, 16) if self.warps % d == 0]
        return [d for d in downs if self.rows % (16 * d) == 0 and self.columns % (8 * (self.warps // d)) == 0]

    @property
    def fits(self) -> bool:
        """Whether all warps have parts."""
        return bool(self._fits)

    @property
    def down(self) -> int:
        """Warps along rows: what one of them reads of both factors is least."""
        return self.warps if self.tall else min(self._fits, key=lambda d: (self.rows // d + self.columns * d // self.warps, d))

    @property
    def across(self) -> int:
        """Warps along columns."""
        return self.warps // self.down

    @property
    def high(self) -> int:
        """Parts of a warp along rows."""
        return self.rows // 16 // self.down

    @property
    def wide(self) -> int:
        """Parts of a warp along columns."""
        return self.columns // 8 // self.across

    @property
    def registers(self) -> int:
        """Of a thread."""
        return 4 * self.high * self.wide


@dataclass(frozen=True)
class TurnedGrid:
    """How threads share a tile whose products warpgroups make, columns of v as rows: element 4 n + 2 r + c of a thread is row
    8 n + 2 (lane % 4) + c, column 16 warp + 8 r + lane / 4.
    """

    rows: int
    columns: int

    @property
    def wide(self) -> int:
        """Parts of 8 rows."""
        return self.rows // 8

    @property
    def registers(self) -> int:
        """Of a thread, for numbers of f32."""
        return self.rows // 2


@dataclass(frozen=True)
class SharedPlace:
    """A tile in shared memory: bytes `begin` to `end`."""

    begin: int
    end: int
    element: str
    shape: tuple[int, ...]
    stages: int = 1
    """How often there is one; which is used, a variable of the kernel tells."""

    @property
    def bytes(self) -> int:
        """Of one of them."""
        return (self.end - self.begin) // self.stages

    @property
    def stride(self) -> int:
        """Elements from one row to the next."""
        return self.shape[1] if self.element in HALVES else self.shape[1] + _PAD


@dataclass(frozen=True)
class Wanted:
    """Shared memory that is needed from one op to another."""

    key: object
    size: int
    first: int
    last: int
    element: str = ""
    shape: tuple[int, ...] = ()
    stages: int = 1


class WarpScanLayout:
    """Facts of a kernel; `places` are those of tiles, by value, and of what ops need for themselves, by (op, name).

    `in_registers(tile)`; `size`: bytes of shared memory. Raises UnsupportedError for tiles that warps cannot share.
    """

    align = _ALIGN
    """Where tiles begin: at multiples of it."""
    brought: Mapping[ir.Operation, ir.Operation] = {}
    """Maps whose numbers come as they were stored, with their reads."""

    def __init__(self, kernel: ir.Operation, pieces: int, stages: int, warps: int) -> None:
        """`pieces` of f32 where it is multiplied; `stages`: in how many places loops load the tiles of a chunk before they are needed."""
        self.kernel, self.pieces, self.stages, self.warps = kernel, pieces, stages, warps
        self._numbers: dict[ir.Operation, int] = {}
        self._ends: dict[ir.Operation, int] = {}
        self._number(kernel.regions[0].blocks[0])
        for op in self._numbers:
            for value in [*op.results, *(argument for region in op.regions for block in region.blocks for argument in block.arguments)]:
                if is_tile(value):
                    self._check(value, op)
        self.chains: dict[ir.Operation, list[ir.Operation]] = {}
        """Products that are added up, by the last of them, where they are all made."""
        self._chained: dict[ir.Operation, ir.Operation] = {}
        self._chain()
        self.ahead: dict[ir.Operation, list[list[ir.Operation]]] = {}
        """The loads of a loop that are started early, those of the same tile together."""
        if stages:
            self.ahead = {op: found for op in self._numbers if op.name == "scf.for" and (found := self._loads_ahead(op))}
        self._early = {load: loop for loop, groups in self.ahead.items() for group in groups for load in group}
        self.rows = {
            read: op for loop in self.ahead for op in operations(body(loop)) if op.name == "tile.map" for read in self._numbers_of(op, loop)
        }
        """The numbers of rows that maps read in memory and that loops load early, with their maps; their places are those of the reads."""
        self.held = self._held()
        """Tiles in shared memory of which threads keep their elements in registers, for all maps that read them there."""
        self.places: dict[object, SharedPlace] = {}
        self.size = self._allocate(self._wanted())

    @property
    def threads(self) -> int:
        """Those of its warps."""
        return 32 * self.warps

    @property
    def all_threads(self) -> int:
        """Of a thread block; `threads` are those that copy tiles and make numbers of rows."""
        return self.threads

    def grid(self, shape: Sequence[int]) -> ScanGrid:
        """How warps share a tile of this shape."""
        rows, columns = shape
        return ScanGrid(rows, columns, self.warps)

    def is_shared(self, shape: Sequence[int]) -> bool:
        """Whether warps can share a tile of this shape; one dimension is everyone's."""
        return all(size % _STEP == 0 for size in shape) and (len(shape) == 1 or self.grid(shape).fits)

    def _check(self, value: ir.Value, op: ir.Operation) -> None:
        shape, element = shape_of(value), element_of(value)
        made = op.name == "tile.map" and element not in HALVES and min(shape) > 0
        if element not in BYTES or not (made or (self.is_shared(shape) and min(shape) > 0)):
            raise UnsupportedError(f"scans: tiles of {value.type}: {self.warps} warps do not share them ({op.location})")

    def in_registers(self, value: ir.Value) -> bool:
        """Whether a tile is in registers: one of f32 that products make or take, or that all maps read at their own place."""
        if is_row(value.type) or element_of(value) != "f32" or not self.is_shared(shape_of(value)):
            return False
        maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if maker is not None and maker.name == "tile.cumsum":
            return False
        if maker is None or maker.name not in ("tile.map", "tile.load") or self._is_changed(value):
            return True
        return maker not in self._early and not self.read_across(value)

    def _loads_ahead(self, loop: ir.Operation) -> list[list[ir.Operation]]:
        """The loads of a loop that are started early, those of the same tile together."""
        return loads_ahead(loop)

    def is_early(self, op: ir.Operation) -> bool:
        """Whether a load is started before its iteration."""
        return op in self._early

    def in_shared(self, value: ir.Value) -> bool:
        """Whether a tile has a place in shared memory."""
        return not self.in_registers(value) or self.read_across(value)

    def read_across(self, value: ir.Value) -> bool:
        """Whether something reads elements of a tile that other threads have."""
        for use in value.uses:
            op = use.owner.operation
            if op.name == "tile.cumsum":
                return True
            if op.name == "tensor.extract":
                outer = op.parent
                if outer is None or outer.name != "tile.map" or op not in own_reads(outer) or shape_of(value) != extents(outer):
                    return True
        return False

    def _is_changed(self, value: ir.Value) -> bool:
        """Whether a product is added to a tile, a loop carries it, or it is solved for."""
        names = (*DOTS[1:], SOLVE, "scf.for", "scf.yield")
        return any(use.owner.operation.name in names for use in value.uses)

    def is_chained(self, op: ir.Operation) -> bool:
        """Whether a product is made together with a later one that is added to it."""
        return op in self._chained

    def _chain(self) -> None:
        if self.pieces > 2:
            return  # f32 keeps its digits where the smallest products are added up before the largest begin
        found = residuals(self.kernel)
        for op in self._numbers:
            before = op.operands[0] if op.name == "tile.dot_add" else None
            maker = None if before is None or isinstance(before.owner, ir.Block) else before.owner.operation
            if before is None or maker is None or maker.name not in DOTS or maker.block != op.block or len(list(before.uses)) > 1:
                continue
            first, then = list(maker.operands)[-2:], list(op.operands)[-2:]
            alike = all(shape_of(a) == shape_of(b) and element_of(a) == element_of(b) for a, b in zip(first, then, strict=True))
            flags = all(flag(maker, name) == flag(op, name) for name in ("transpose_a", "transpose_b"))
            if alike and flags and not any(value in found for value in (*first, *then)):
                chain = [*self.chains.pop(maker, [maker]), op]
                self.chains[op] = chain
                self._chained.update({each: op for each in chain[:-1]})

    def _held(self) -> set[ir.Value]:
        """Of loops of one iteration: tiles in shared memory that several maps read at their own place."""
        found: dict[ir.Value, int] = {}
        for op in self._numbers:
            if op.name != "tile.map" or len(list(op.operands)) != 2 or ONCE not in op.parent.attributes:
                continue
            for value in dict.fromkeys(read.operands[0] for read in own_reads(op)):
                inside = not isinstance(value.owner, ir.Block) and value.owner.operation.block == op.block
                if inside and not self.in_registers(value) and shape_of(value) == extents(op) and self.is_shared(extents(op)):
                    found[value] = found.get(value, 0) + 1
        return {value for value, count in found.items() if count >= _MAPS and element_of(value) in thresholds.HELD_TILES}

    # ---- shared memory

    def ops_of(self, block: ir.Block) -> list[ir.Operation]:
        """In the order in which they are printed."""
        return operations(block)

    def _number(self, block: ir.Block) -> None:
        for op in self.ops_of(block):
            self._numbers[op] = len(self._numbers)
            if op.name in ("scf.for", "scf.if"):
                for region in op.regions:
                    for inner in region.blocks:
                        self._number(inner)
            self._ends[op] = len(self._numbers) - 1

    def _wanted(self) -> list[Wanted]:
        found: list[Wanted] = []
        for loop, groups in self.ahead.items():
            for group in groups:
                last = max(self._last(load.results[0], load) for load in group)
                value, first = group[0].results[0], self._numbers[loop]
                found.append(self._tile(value, first, self._ends[loop] if self.stages > 1 else last, self.stages))
            for read, op in self.rows.items():
                if op.block == body(loop):
                    last = self._ends[loop] if self.stages > 1 else self._numbers[op]
                    size = (extents(op)[0],)
                    found.append(Wanted(read, self.stages * 4 * size[0], self._numbers[loop], last, "f32", size, self.stages))
        for op, number in self._numbers.items():
            made = [] if op.name == "scf.for" or op in self._early else [value for value in op.results if is_tile(value)]
            sums = sums_of(op) if op.name == "tile.map" else []
            made = [value for value in made if value not in sums and self.in_shared(value)]
            found += [self._tile(value, number, self._last(value, op)) for value in made]
            if op.name == "scf.for":
                for argument, result in zip(list(body(op).arguments)[1:], op.results, strict=True):
                    if self.in_shared(argument) or self.in_shared(result):
                        found.append(self._tile(argument, number, max(self._ends[op], self._last(result, op))))
            elif op.name == "tile.map" and len(list(op.operands)) == 2:
                for number_of, result in enumerate(sums_of(op)):
                    rows, columns = extents(op)
                    parts = self.grid((rows, columns)).across if self.is_shared((rows, columns)) and not sums_memory(op) else 1
                    found.append(Wanted((op, number_of), 4 * parts * rows, number, self._last(result, op)))
            elif op.name == SOLVE:
                rows, columns = shape_of(op.results[0])
                found.append(Wanted((op, "triangle"), 4 * rows * (rows + _PAD), number, number))
                found.append(Wanted((op, "product"), 4 * (rows // 2) * (rows // 2 + _PAD), number, number))
                if INVERSE not in op.attributes:
                    found.append(Wanted((op, "pieces"), 2 * self.pieces * rows * (rows + columns), number, number))
        return found

    def _numbers_of(self, op: ir.Operation, loop: ir.Operation) -> list[ir.Operation]:
        """The reads of one number of f32 for each row; what is the same for all rows is read where it is used."""
        depends = dependence(body(op))
        found = [read for read in operations(body(op)) if read.name == "memref.load" and isinstance(read.results[0].type, ir.F32Type)]
        found = [read for read in found if depends[read.results[0]] == frozenset({0})]
        return [read for read in found if extents(op)[0] <= self.threads and follows_rows(list(read.operands)[1:], op, loop)]

    def _tile(self, value: ir.Value, first: int, last: int, stages: int = 1) -> Wanted:
        shape, element = shape_of(value), element_of(value)
        place = SharedPlace(0, 0, element, shape)
        count = shape[0] * place.stride if len(shape) == 2 else shape[0]
        return Wanted(value, stages * count * BYTES[element], first, last, element, shape, stages)

    def _last(self, value: ir.Value, maker: ir.Operation) -> int:
        """The number of the last op that may read a tile: the end of a loop around it that does not hold the tile's maker."""
        last = self._numbers[maker]
        for use in value.uses:
            user: ir.Operation | None = use.owner.operation
            user = self._chained.get(user, user)
            while user is not None and user.block != maker.block:
                user = user.parent
            last = max(last, self._ends[user] if user is not None else last)
        return last

    def _allocate(self, wanted: Sequence[Wanted]) -> int:
        """Gives everything its place, the earliest or the largest first, whichever needs less; returns the size of all."""
        orders = sorted(wanted, key=lambda w: (w.first, -w.size)), sorted(wanted, key=lambda w: (-w.size, w.first))
        tries = [_placed(each, self.align) for each in orders]
        size, begins = min(((max((at + each.size for each, at in made), default=0), made) for made in tries), key=lambda found: found[0])
        for each, at in begins:
            self.places[each.key] = SharedPlace(at, at + each.size, each.element, each.shape, each.stages)
        for groups in self.ahead.values():
            for first, *others in groups:
                self.places.update({load.results[0]: self.places[first.results[0]] for load in others})
        return size


def _placed(wanted: Iterable[Wanted], align: int) -> list[tuple[Wanted, int]]:
    """Where each begins: the first place that is free as long as it is needed; whole tiles at multiples of `align`."""
    taken: list[tuple[Wanted, int]] = []
    for each in wanted:
        others = sorted((at, at + other.size) for other, at in taken if other.first <= each.last and each.first <= other.last)
        place, own = 0, align if each.size % align == 0 else _ALIGN
        for begin, end in others:
            if begin - place >= each.size:
                break
            place = max(place, -(-end // own) * own)
        taken.append((each, place))
    return taken


def carried(op: ir.Operation) -> list[tuple[ir.Value, ir.Value, ir.Value, ir.Value]]:
    """What a loop carries: where it begins, its name inside, what an iteration yields, and what comes out."""
    return list(zip(list(op.operands)[3:], list(body(op).arguments)[1:], yielded(body(op)), op.results, strict=True))
