"""Tiles of chunk scans whose products warpgroups make (wgmma): where they are, columns of v as rows of accumulators, positions as columns.

A state [K, V], what is written and outputs [C, V] lie in registers the other way round, [V, K] and [V, C], 16 columns of v for each warp.
So a product's left factor is its operand in shared memory, and its right factor comes from registers: what one product makes, the next one
takes, and nothing that depends on the state passes through shared memory.
"""

from collections.abc import Sequence
from dataclasses import replace

from attn_mlir.backends.gpu.prepared import PREPARED
from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.scans.boxes import ATOM
from attn_mlir.backends.nvidia.scans.layout import HALVES, SOLVE, TurnedGrid, Wanted, WarpScanLayout
from attn_mlir.backends.nvidia.scans.loops import brought_rows, cut_in_two, element_of, extents, own_reads, shape_of, sums_of
from attn_mlir.backends.nvidia.scans.order import changed, helping, ordered, outer
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

HELPERS = 4
"""Warps that have tiles brought, and take rows to memory."""
_OF_WARP = 16
"""Columns of v that a warp has."""


class WarpgroupLayout(WarpScanLayout):
    """Facts of a kernel whose chunks were prepared. `columns` of v; `order`: the ops of a loop as they are printed.

    Raises UnsupportedError for kernels that have other products than those of loaded tiles and tiles with the program's columns of v.
    """

    align = 1024
    """Where atoms begin."""

    def __init__(self, kernel: ir.Operation, pieces: int, stages: int, in_place: bool = False) -> None:
        """`in_place`: rows that are stored pass through shared memory in the places of loaded tiles that nothing reads any more."""
        loops = [op for op in operations(kernel.regions[0].blocks[0]) if op.name == "scf.for"]
        self.cuts = cut_in_two(loops[0]) if len(loops) == 1 and PREPARED not in kernel.attributes else {}
        """The maps of a turn that cut loaded matrices of f32 into two pieces of bf16, with the loads: warps that help do it."""
        known = len(loops) == 1 and (PREPARED in kernel.attributes or bool(self.cuts))
        if not known or find_all(kernel, SOLVE) or stages < 2 or pieces > 2 or (self.cuts and stages > 2):
            raise UnsupportedError("scans: warpgroups multiply in scans of prepared chunks and of matrices, with two stages")
        states = [argument for argument in list(body(loops[0]).arguments)[1:] if is_tile(argument) and not is_row(argument.type)]
        if len(states) != 1:
            raise UnsupportedError("scans: warpgroups multiply where a loop carries one state")
        self.columns = shape_of(states[0])[1]
        if self.columns % (4 * _OF_WARP):
            raise UnsupportedError(f"scans: a warpgroup has 64 columns of v, not {self.columns}")
        self.loop = loops[0]
        self.order = ordered(loops[0], self.cuts)
        stores = [number for number, op in enumerate(self.order) if op.name == "tile.store"]
        self.leading = self.order[: stores[-1] + 1] if self.cuts and stores else []
        """What is printed before a stage is waited for: the compiler moves stores of a state past products, where registers are too few
        for what is added to these, but not past a barrier.
        """
        self.changed = changed(loops[0])
        """The carried tiles that products change in place."""
        self.groups = self.columns // ATOM
        """Warpgroups that multiply, each with its own columns of v."""
        self.by_tma = (stages > thresholds.COPIED_STAGES or self.groups > 1) and not self.cuts
        """Whether TMA brings tiles; threads copy them otherwise."""
        found = helping(loops[0])
        self.brought = brought_rows(loops[0], _prepared(kernel)) if self.by_tma else {}
        """Numbers of rows that a kernel before this one stored and that come with the tiles: maps that only read them, with the reads."""
        self.helping = [op for op in operations(body(loops[0])) if op in found and op not in self.brought]
        """The ops of a turn that warps beside those that multiply do, a chunk ahead: numbers of rows, where threads copy tiles."""
        if self.by_tma and any(is_tile(value) for op in self.helping for value in op.results):
            raise UnsupportedError("scans: numbers of rows that no kernel before stored")
        self.in_place = {op: load for op in self.given if (load := self._dead_at(op)) is not None} if in_place else {}
        """The stores of a turn whose rows take the places of these loaded tiles."""
        if in_place and not self.in_place:
            raise UnsupportedError("scans: no loaded tile leaves its place to what is stored")
        super().__init__(kernel, pieces, stages, HELPERS)
        self.places.update({(op, "rows"): self.places[load.results[0]] for op, load in self.in_place.items()})
        self.arrivals = -(-self.size // 8) * 8
        """Where the barriers of stages are at which TMA's tiles arrive."""
        self.size = self.arrivals + 8 * stages if self.by_tma else self.size
        for op in self._numbers:
            self._check_op(op)

    # ---- tiles

    @property
    def all_threads(self) -> int:
        """Of a thread block; `threads` are those that help."""
        return 32 * (HELPERS + 4 * self.groups)

    def grid(self, shape: Sequence[int]) -> TurnedGrid:  # pyright: ignore[reportIncompatibleMethodOverride]
        """How threads share a tile of this shape."""
        rows, columns = shape
        return TurnedGrid(rows, columns)

    def is_shared(self, shape: Sequence[int]) -> bool:
        """Whether threads have a tile of this shape in registers; one dimension is everyone's."""
        if len(shape) == 1:
            return shape[0] % 32 == 0
        return shape[0] % 32 == 0 and shape[0] <= 256 and shape[1] == self.columns

    def in_registers(self, value: ir.Value) -> bool:
        """All tiles with columns of v but those of 16 bits that are loaded."""
        return not is_row(value.type) and not self._is_cut(value) and not (self._loaded(value) and element_of(value) in HALVES)

    def _is_cut(self, value: ir.Value) -> bool:
        """Whether a tile, or what it was loaded as, is a piece of a matrix in shared memory."""
        return not isinstance(value.owner, ir.Block) and value.owner.operation in (*self.cuts, *self.cuts.values())

    def _loads_ahead(self, loop: ir.Operation) -> list[list[ir.Operation]]:
        """What is added to products comes to registers while they run, where matrices are cut."""
        found = super()._loads_ahead(loop)
        return [group for group in found if group[0] in self.cuts.values()] if self.cuts else found

    def _loaded(self, value: ir.Value) -> bool:
        return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "tile.load"

    def _check(self, value: ir.Value, op: ir.Operation) -> None:
        shape, element = shape_of(value), element_of(value)
        if self._is_cut(value):
            fits = shape[0] % 32 == 0 and shape[1] % ATOM == 0
        elif len(shape) == 2 and self._loaded(value) and element in HALVES:
            fits = shape[0] % 32 == 0 and (shape[1] % ATOM == 0 or shape[1] == 32)
        else:
            fits = self.is_shared(shape) and element in ("f32", *HALVES)
        if not fits:
            raise UnsupportedError(f"scans: tiles of {value.type}: warpgroups do not share them ({op.location})")

    def _check_op(self, op: ir.Operation) -> None:
        """Refuses what would read registers of other threads, or copies that come late."""
        if op in self.cuts or op in self.cuts.values():
            return
        for value in op.results:
            if is_tile(value) and not is_row(value.type) and (self.read_across(value) or (op.name == "tile.load" and not self._fits(op))):
                raise UnsupportedError(f"scans: threads read elements of {value.type} from each other ({op.location})")
        if op.name == "tile.map" and len(list(op.operands)) == 2 and (sums_of(op) or not self.is_shared(extents(op))):
            raise UnsupportedError(f"scans: a map that warpgroups do not share ({op.location})")
        if op.name in DOTS:
            left, right = list(op.operands)[-2:]
            turned = flag(op, "transpose_a")
            known = (self._loaded(left) or self._is_cut(left)) and element_of(left) in HALVES and shape_of(right)[1] == self.columns
            if not known or flag(op, "transpose_b") or (turned and shape_of(left)[1] % ATOM):
                raise UnsupportedError(f"scans: a product that warpgroups do not know ({op.location})")
        if op in self._early and element_of(op.results[0]) not in HALVES:
            raise UnsupportedError(f"scans: tiles of 16 bits come to warpgroups early ({op.location})")
        if op not in self.helping and op not in self.brought and any(is_tile(value) and is_row(value.type) for value in op.results):
            raise UnsupportedError(f"scans: numbers of rows outside of a chunk ({op.location})")
        if self.stages_rows(op) and op not in self.given:
            raise UnsupportedError(f"scans: warpgroups store rows of 16 bits once a chunk ({op.location})")
        if op.name == "tile.store" and (is_row(op.operands[0].type) or element_of(op.operands[0]) in HALVES):
            raise UnsupportedError(f"scans: warpgroups round what they store ({op.location})")

    def _fits(self, load: ir.Operation) -> bool:
        """Whether a load is early, or comes to registers."""
        return load in self._early or element_of(load.results[0]) == "f32"

    # ---- shared memory

    def _chain(self) -> None:
        """Products that are added up follow each other anyway."""

    def ops_of(self, block: ir.Block) -> list[ir.Operation]:
        """In the order in which they are printed."""
        if block != body(self.loop):
            return super().ops_of(block)
        return [*self.cuts.values(), *self.cuts, *self.brought, *self.helping, *self.order]

    def _numbers_of(self, op: ir.Operation, loop: ir.Operation) -> list[ir.Operation]:
        return [] if op in self.brought else super()._numbers_of(op, loop)

    def _wanted(self) -> list[Wanted]:
        rows = {result for op in (*self.helping, *self.cuts) for result in op.results if not self._is_between(result)}
        rows |= {result for op in self.brought for result in op.results}
        wholes = {load.results[0] for load in self.cuts.values()}
        span = {"first": self._numbers[self.loop], "last": self._ends[self.loop], "stages": self.stages}
        found = [
            replace(each, size=each.size * self.stages, **span) if each.key in rows and each.stages == 1 else each
            for each in super()._wanted()
            if each.key not in wholes
        ]
        for op in [op for op in self.given if op not in self.in_place]:
            rows, columns = shape_of(op.operands[0])
            found.append(Wanted((op, "rows"), self.stages * 2 * rows * columns, element="bf16", shape=(rows, columns), **span))
        return found

    def _is_between(self, value: ir.Value) -> bool:
        """Whether numbers of rows are read by the threads alone that make them, a chunk after the other: one place does for all stages."""
        block = body(self.loop)
        return bool(list(value.uses)) and all(outer(use.owner.operation, block) in self.helping for use in value.uses)

    @property
    def given(self) -> list[ir.Operation]:
        """The stores of a turn whose rows the warps that help take to memory, after the chunk."""
        return [op for op in self.order if self.stages_rows(op)]

    def _dead_at(self, store: ir.Operation) -> ir.Operation | None:
        """A loaded tile of 16 bits of which each warp reads its own columns before a store: those that it writes there."""
        shape, at = shape_of(store.operands[0]), self.order.index(store)
        for load in [op for group in super()._loads_ahead(self.loop) for op in group]:
            value = load.results[0]
            if shape_of(value) != shape or element_of(value) not in HALVES or len(list(value.uses)) == 0:
                continue
            readers = [use.owner.operation for use in value.uses]
            own = all(read.name == "tensor.extract" and read.parent in self.order and read in own_reads(read.parent) for read in readers)
            if own and all(extents(read.parent) == shape and self.order.index(read.parent) < at for read in readers):
                return load
        return None

    def stages_rows(self, op: ir.Operation) -> bool:
        """Whether a store's rows pass through shared memory."""
        return (
            op.name == "tile.store" and not is_row(op.operands[0].type) and str(ir.MemRefType(op.operands[1].type).element_type) in HALVES
        )


def _prepared(kernel: ir.Operation) -> list[ir.Value]:
    """The arguments of a kernel that the one before it stored."""
    if PREPARED not in kernel.attributes:
        return []
    arguments = list(kernel.regions[0].blocks[0].arguments)
    count = len(list(ir.ArrayAttr(ir.DictAttr(kernel.attributes[PREPARED])["columns"])))
    outputs = len(list(ir.ArrayAttr(ir.DictAttr(kernel.attributes["tile.kernel"])["outputs"])))
    return arguments[len(arguments) - outputs - count : len(arguments) - outputs]
