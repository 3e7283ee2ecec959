"""Builds the kernel of an `attn.transition_scan`: states from segment to segment of a delta rule, whose segments are matrices."""

import itertools
from collections.abc import Sequence

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, memref, tensor
from attn_mlir.passes.tiling.frame import Frame, loop
from attn_mlir.passes.tiling.linear_segments import scan_kernel
from attn_mlir.passes.tiling.scalars import constant_float, constant_index
from attn_mlir.passes.tiling.views import columns

_ROWS = 64
"""Rows of the state in a tile, at most: a matrix is read in blocks of so many rows and columns."""
_COLUMNS = (32, 16)
"""Columns of the state that a program passes on: the first of these that divides them, or all."""


def build_transition_scan(function: ir.Operation, op: ir.Operation, blocks: Sequence[int] | None = None) -> None:
    """Inserts the kernel of an `attn.transition_scan` before the function: a program per block of columns of the state, head and batch.

    `blocks`: how many rows a tile has at most, and how many columns a program; they divide the state's columns.
    """
    width = ir.RankedTensorType(op.opview.states.type).shape[3]
    most, size = blocks or (_ROWS, next((size for size in _COLUMNS if width % size == 0), width))
    sizes = {"block_q": min(op.opview.rows.value, most), "block_kv": size, "blocks": width // size}
    scan_kernel(function, op, sizes, lambda frame: _TransitionScan(frame, op, most, size).build)


class _TransitionScan:
    """One program: it carries its columns of the state in tiles of rows."""

    def __init__(self, frame: Frame, op: ir.Operation, most: int, size: int) -> None:
        self._view = view = op.opview
        self._like, self._size = frame.get(view.like), size
        type_ = ir.RankedTensorType(view.states.type)
        self._element, self._width, rows = type_.element_type, type_.shape[3], view.rows.value
        bounds = sorted({*range(0, rows, most), *range(0, rows, self._width), rows})
        self._rows = list(itertools.pairwise(bounds))
        first = arith.MulIOp(build.program_id(0), constant_index(size)).result if self._width > size else constant_index(0)
        self._states = columns(frame.get(view.states), first, size)
        self._initial = None if view.initial is None else columns(frame.get(view.initial), first, size)
        self._first = first
        matrices = [frame.get(value) for value in view.transitions]
        self._matrices = [columns(matrices[begin // self._width], begin % self._width, end - begin) for begin, end in self._rows]

    def build(self, before: ir.Value | None, final: ir.Value | None) -> None:
        """Emits the program, which stores to `before` and `final`."""
        head, batch = (build.program_id(axis) for axis in (1, 2))
        length, one = memref.DimOp(self._like, constant_index(2)).result, constant_index(1)
        segments = arith.CeilDivSIOp(length, constant_index(self._view.segment.value)).result
        number = arith.MulIOp(batch, segments).result
        before, final = (None if target is None else columns(target, self._first, self._size) for target in (before, final))

        def step(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            backward = self._view.direction.value == "backward"
            i = arith.SubIOp(arith.SubIOp(segments, one).result, n).result if backward else n
            here = (arith.AddIOp(number, i).result, head)
            self._store(carried, before, here)
            return [self._next(carried, here, rows) for rows in self._rows]

        last = loop(constant_index(0), segments, one, [self._start(rows, (batch, head)) for rows in self._rows], step)
        self._store(last, final, (batch, head))

    def _start(self, rows: tuple[int, int], place: tuple[ir.Value, ir.Value]) -> ir.Value:
        """Rows of the state before the first segment."""
        begin, end = rows
        if self._initial is None:
            return build.fill(constant_float(self._element, 0.0), [end - begin, self._size], 0)
        return self._load(self._initial, place, rows)

    def _next(self, carried: list[ir.Value], place: tuple[ir.Value, ir.Value], rows: tuple[int, int]) -> ir.Value:
        """Rows of the state after a segment: what the segment adds, and its matrix times the state."""
        made = None
        for part, matrix in zip(carried, self._matrices, strict=True):
            factor = self._load(matrix, place, rows)
            made = build.dot(factor, part, self._element, False) if made is None else build.dot_accumulate(made, None, factor, part)
        assert made is not None
        product, added = made, self._load(self._states, place, rows)

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [arith.AddFOp(*(tensor.ExtractOp(tile, [i, j]).result for tile in (product, added))).result], []

        extents = [constant_index(n) for n in ir.RankedTensorType(product.type).shape]
        return build.map_(extents, [product.type], [], [], body)[0][0]

    def _load(self, memory: ir.Value, place: tuple[ir.Value, ir.Value], rows: tuple[int, int]) -> ir.Value:
        begin, end = rows
        return build.load(memory, *place, constant_index(begin), constant_index(end - begin), end - begin)

    def _store(self, state: list[ir.Value], target: ir.Value | None, place: tuple[ir.Value, ir.Value]) -> None:
        if target is None:
            return
        for part, (begin, end) in zip(state, self._rows, strict=True):
            build.store(part, target, *place, constant_index(begin), constant_index(end - begin))
