"""Builds the kernels of what joins segments of a linear attention: `attn.decay_sum` and `attn.state_scan`."""

from collections.abc import Callable, Mapping

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, math, memref, tensor
from attn_mlir.passes.regions import block_of, piece, returned_by
from attn_mlir.passes.tiling.elements import RowBlock, rows_of
from attn_mlir.passes.tiling.frame import Frame, Output, argument_number, loop
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index

_POSITIONS, _POSITIONS_OF_CHANNELS = 256, 16
"""Positions that are added at a time."""
_ELEMENTS = 512
"""Elements of a state that one program passes on, about."""


def build_decay_sum(function: ir.Operation, op: ir.Operation, prefix: str) -> None:
    """Inserts the kernel of an `attn.decay_sum` before the function: one program per segment, head and batch.

    `prefix` is the element type of the sums.
    """
    view, outputs = op.opview, [Output(op, "store")]
    segment, score = view.segment.value, ir.RankedTensorType(view.result.type).element_type
    with op.location:
        frame = Frame(function, [op], outputs)
        over = argument_number(view.like)
        frame.describe({"grid": "rows", "block_q": segment, "block_kv": 1, "over": over, "score": ir.TypeAttr.get(score)}, outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            rows = rows_of(frame.get(view.like), segment)
            total = _DecaySum(frame, op, ir.F64Type.get() if prefix == "f64" else score).total(rows)
            build.store(total, frame.outputs[0], rows.b, rows.h, build.program_id(0), constant_index(1))
            func.ReturnOp([])


class _DecaySum:
    def __init__(self, frame: Frame, op: ir.Operation, wide: ir.Type) -> None:
        view = op.opview
        self._frame, self._mod, self._wide = frame, piece(op, "attn.decay"), wide
        self._decay, self._like = [frame.get(value) for value in view.decay], frame.get(view.like)
        result = ir.RankedTensorType(view.result.type)
        self._score, self._channels = result.element_type, list(result.shape[3:])
        self._size = min(view.segment.value, _POSITIONS_OF_CHANNELS if self._channels else _POSITIONS)

    def total(self, rows: RowBlock) -> ir.Value:
        """The sum over the segment of `rows`: [1], or [1, K] of channels."""
        size, one = self._size, constant_index(1)
        shape = [size, *self._channels]
        tile = ir.RankedTensorType.get(shape, self._wide)
        heads = [memref.DimOp(memory, one).result for memory in (self._like, *self._decay)]
        head = arith.DivSIOp(rows.h, arith.DivSIOp(*heads).result).result if self._decay else rows.h

        def add(start: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            def body(i: ir.Value, *d: ir.Value) -> list[ir.Value]:
                place = arith.AddIOp(start, i).result
                exists = arith.CmpIOp(arith.CmpIPredicate.slt, place, rows.count).result
                g = self._step(rows, head, rows.position(place), list(d))
                step = arith.SelectOp(exists, cast_float(g, self._wide), constant_float(self._wide, 0.0)).result
                return [arith.AddFOp(tensor.ExtractOp(carried[0], [i, *d]).result, step).result]

            return build.map_([constant_index(n) for n in shape], [tile], [], [], lambda *at: (body(*at), []))[0]

        zero = build.fill(constant_float(self._wide, 0.0), shape, 0)
        (sums,) = loop(constant_index(0), rows.count, constant_index(size), [zero], add)
        if not self._channels:

            def every(_: ir.Value, i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
                return [], [cast_float(tensor.ExtractOp(sums, [i]).result, self._score)]

            made = ir.RankedTensorType.get([1], self._score)
            return build.map_([one, constant_index(size)], [], [made], ["sum"], every)[1][0]
        whole, last = build.cumsum(sums), constant_index(size - 1)

        def end(_: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [cast_float(tensor.ExtractOp(whole, [last, d]).result, self._score)], []

        made = ir.RankedTensorType.get([1, *self._channels], self._score)
        return build.map_([one, constant_index(self._channels[0])], [made], [], [], end)[0][0]

    def _step(self, rows: RowBlock, head: ir.Value, position: ir.Value, d: list[ir.Value]) -> ir.Value:
        """The log decay of a position (and channel), after its mod."""
        g = constant_float(self._score, 0.0)
        for memory in self._decay:
            g = cast_float(memref.LoadOp(memory, [rows.b, head, position, *d]).result, self._score)
        if self._mod is not None:
            channel = d or [constant_index(0)]
            (g,) = self._frame.scalars().inline(block_of(self._mod), [g, rows.b, rows.h, position, *channel])
        return g


def build_state_scan(function: ir.Operation, op: ir.Operation) -> None:
    """Inserts the kernel of an `attn.state_scan` before the function: one program per block of rows of the state, head and batch."""
    columns, count = ir.RankedTensorType(op.opview.states.type).shape[3], op.opview.rows.value
    rows = max(1, min(count, _ELEMENTS // columns))
    sizes = {"block_q": rows, "block_kv": columns, "blocks": -(-count // rows)}
    scan_kernel(function, op, sizes, lambda frame: _StateScan(frame, op, rows).build)


def scan_kernel(
    function: ir.Operation,
    op: ir.Operation,
    sizes: Mapping[str, int],
    program: Callable[[Frame], Callable[[ir.Value | None, ir.Value | None], None]],
) -> None:
    """Inserts the kernel of a scan of states before the function, with blocks of these sizes.

    `program` gives what emits one program in a frame, which stores to the states before segments and to the final one, where wanted.
    """
    returned = [ir.OpResult(value).result_number for value in returned_by(function)]
    outputs = [Output(op, "store", (), number) for number in returned]
    with op.location:
        frame = Frame(function, [op], outputs)
        score = ir.TypeAttr.get(ir.RankedTensorType(op.opview.states.type).element_type)
        frame.describe({"grid": "chunks", **sizes, "over": argument_number(op.opview.like), "score": score}, outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            targets = dict(zip(returned, frame.outputs, strict=True))
            program(frame)(targets.get(0), targets.get(1))
            func.ReturnOp([])


class _StateScan:
    def __init__(self, frame: Frame, op: ir.Operation, size: int) -> None:
        self._view = view = op.opview
        self._states, self._like = frame.get(view.states), frame.get(view.like)
        self._totals = None if view.totals is None else frame.get(view.totals)
        self._initial = None if view.initial is None else frame.get(view.initial)
        type_ = ir.RankedTensorType(view.states.type)
        self._tile = ir.RankedTensorType.get([size, type_.shape[3]], type_.element_type)

    def build(self, before: ir.Value | None, final: ir.Value | None) -> None:
        """Emits one program, which stores to `before` and `final`."""
        block, head, batch = (build.program_id(axis) for axis in range(3))
        (size, _), one = self._tile.shape, constant_index(1)
        row = arith.MulIOp(block, constant_index(size)).result if self._view.rows.value > size else constant_index(0)
        count = arith.MinSIOp(constant_index(size), arith.SubIOp(constant_index(self._view.rows.value), row).result).result
        length = memref.DimOp(self._like, constant_index(2)).result
        segments = arith.CeilDivSIOp(length, constant_index(self._view.segment.value)).result
        first = arith.MulIOp(batch, segments).result
        here = (head, row, count)

        def step(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            backward = self._view.direction.value == "backward"
            i = arith.SubIOp(arith.SubIOp(segments, one).result, n).result if backward else n
            number = arith.AddIOp(first, i).result
            if before is not None:
                build.store(carried[0], before, number, *here)
            added = build.load(self._states, number, *here, size)
            return [self._next(carried[0], added, [batch, head, i], row)]

        if self._initial is None:
            start = build.fill(constant_float(self._tile.element_type, 0.0), self._tile.shape, 0)
        else:
            start = build.load(self._initial, batch, *here, size)
        (last,) = loop(constant_index(0), segments, one, [start], step)
        if final is not None:
            build.store(last, final, batch, *here)

    def _next(self, state: ir.Value, added: ir.Value, segment: list[ir.Value], row: ir.Value) -> ir.Value:
        """The state after a segment."""
        factors = None if self._totals is None else self._factors(self._totals, segment, row)

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            x = tensor.ExtractOp(state, [i, j]).result
            if factors is not None:
                x = arith.MulFOp(x, tensor.ExtractOp(factors, [i]).result).result
            return [arith.AddFOp(x, tensor.ExtractOp(added, [i, j]).result).result], []

        return build.map_([constant_index(n) for n in self._tile.shape], [self._tile], [], [], body)[0][0]

    def _factors(self, totals: ir.Value, segment: list[ir.Value], row: ir.Value) -> ir.Value:
        """The decay of every row over a segment."""
        size, last = self._tile.shape[0], constant_index(self._view.rows.value - 1)

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            channel = []
            if ir.MemRefType(totals.type).rank == 4:
                channel = [arith.MinSIOp(arith.AddIOp(row, i).result, last).result]
            return [math.ExpOp(memref.LoadOp(totals, [*segment, *channel]).result).result], []

        return build.map_([constant_index(size)], [ir.RankedTensorType.get([size], self._tile.element_type)], [], [], body)[0][0]
