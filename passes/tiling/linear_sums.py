"""Builds the kernels of what the gradients of linear attention need besides scans: `attn.head_sum` and `attn.decay_gradient`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, memref, tensor
from attn_mlir.passes.regions import block_of, find_all, pieces
from attn_mlir.passes.row_groups import summed_elements
from attn_mlir.passes.tiling.elements import RowBlock, rows_of
from attn_mlir.passes.tiling.frame import Frame, Output, argument_number, loop
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index


def build_head_sum(function: ir.Operation, op: ir.Operation, makers: Sequence[ir.Operation], rows: int) -> bool:
    """Inserts the kernel of an `attn.head_sum` before the function: one program per block of rows, head of the sum and batch."""
    x_type, like_type = (ir.RankedTensorType(operand.type) for operand in op.operands)
    made = summed_elements(op)
    if like_type.rank < 3:
        op.location.emit_error(f"attn-tile-sums: sums heads like a tensor [B, Hl, T, ...], got {like_type}")
        return False
    score = ir.F64Type.get() if isinstance(x_type.element_type, ir.F64Type) else ir.F32Type.get()
    outputs = [Output(maker, "store") for maker in makers]
    with op.location:
        frame = Frame(function, [op, *(made or ())], outputs)
        over = argument_number(op.operands[1])
        frame.describe({"grid": "rows", "block_q": rows, "block_kv": 1, "over": over, "score": ir.TypeAttr.get(score)}, outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            x, like = (frame.get(operand) for operand in (op.operands[0] if made is None else made[0].operands[0], op.operands[1]))
            program, one = rows_of(like, rows), constant_index(1)
            group = arith.DivSIOp(memref.DimOp(x, one).result, memref.DimOp(like, one).result).result
            first = arith.MulIOp(program.h, group).result
            tile = ir.RankedTensorType.get([rows, *x_type.shape[3:]], score)
            zero = build.fill(constant_float(score, 0.0), tile.shape, 0)

            def add(number: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
                head = arith.AddIOp(first, number).result
                if made is not None:
                    return [_with_elements(frame, made, program, (head, rows), carried[0])]
                part = build.load(x, program.b, head, program.begin, program.count, rows) if x_type.rank == 4 else None

                def body(i: ir.Value, *d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
                    if part is None:
                        value = memref.LoadOp(x, [program.b, head, program.position(i)]).result
                    else:
                        value = tensor.ExtractOp(part, [i, *d]).result
                    return [arith.AddFOp(tensor.ExtractOp(carried[0], [i, *d]).result, cast_float(value, score)).result], []

                return build.map_([constant_index(size) for size in tile.shape], [tile], [], [], body)[0]

            (total,) = loop(constant_index(0), group, one, [zero], add)
            for target in frame.outputs:
                build.store(total, target, *program.place())
            func.ReturnOp([])
    return True


def _with_elements(
    frame: Frame, made: tuple[ir.Operation, ir.Operation], program: RowBlock, place: tuple[ir.Value, int], total: ir.Value
) -> ir.Value:
    """A tile of sums with those elements of a head added; `place` is the head, and how many rows a tile has."""
    (elements, collect), (head, rows) = made, place
    element, type_ = block_of(pieces(elements, "attn.element")[0]), ir.RankedTensorType(total.type)
    weight = list(element.operations[-1].operation.operands)[ir.IntegerAttr(collect.attributes["weight"]).value]
    # What elements read at their own places comes as tiles, which loops load ahead.
    own = [op for op in find_all(elements, "tensor.extract") if list(op.operands)[1:] == list(element.arguments)]
    tiles = {
        tensor_: build.load(frame.get(tensor_), program.b, head, program.begin, program.count, rows)
        for tensor_ in dict.fromkeys(op.operands[0] for op in own)
    }

    def body(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        emitter = frame.scalars(dict(zip(element.arguments, [program.b, head, program.position(i), d], strict=True)))
        for op in own:
            emitter.set(op.results[0], tensor.ExtractOp(tiles[op.operands[0]], [i, d]).result)
        value = cast_float(emitter.emit(weight), type_.element_type)
        return [arith.AddFOp(tensor.ExtractOp(total, [i, d]).result, value).result], []

    return build.map_([constant_index(size) for size in type_.shape], [type_], [], [], body)[0][0]


@dataclass(frozen=True)
class _Interval:
    """Positions of one interval, and the first row of its states."""

    rows: RowBlock
    state: ir.Value


def build_decay_gradient(function: ir.Operation, op: ir.Operation, makers: Sequence[ir.Operation]) -> None:
    """Inserts the kernel of an `attn.decay_gradient`, or of one of sums, before the function.

    One program per interval, head and batch; with offsets one per sequence and head, with a loop over its intervals.
    """
    view, outputs = op.opview, [Output(maker, "store") for maker in makers]
    score = view.a.type.element_type
    interval, by_sequence = view.interval.value, bool(_offsets_of(op))
    attributes: dict[str, ir.Attribute | int | str] = {"block_q": interval, "block_kv": 1, "over": argument_number(view.a)}
    if by_sequence:
        attributes = {"grid": "chunks", **attributes, "blocks": 1, "sequences": argument_number(_offsets_of(op)[0])}
    else:
        attributes = {"grid": "rows", **attributes}
    with op.location:
        frame = Frame(function, [op], outputs)
        frame.describe({**attributes, "score": ir.TypeAttr.get(score)}, outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            work = _DecayGradient(frame, op)
            if by_sequence:
                work.sequence(frame.outputs)
            else:
                rows = rows_of(frame.get(view.a), interval)
                work.interval(_Interval(rows, _row(build.program_id(0), view.rows.value)), frame.outputs)
            func.ReturnOp([])


def _row(number: ir.Value, rows: int) -> ir.Value:
    return arith.MulIOp(number, constant_index(rows)).result


def _offsets_of(op: ir.Operation) -> list[ir.Value]:
    """The offsets of packed sequences, if there are any."""
    return list(op.opview.offsets) if op.name == "attn.decay_gradient" else []


class _DecayGradient:
    def __init__(self, frame: Frame, op: ir.Operation) -> None:
        view = self._view = op.opview
        sums = op.name == "attn.decay_gradient_sum"
        named = [(view.a, view.a_2), (view.b, view.b_2), (view.e, view.e_2)] if sums else [(view.a,), (view.b,), (view.e,)]
        self._a, self._b, self._e = ([frame.get(value) for value in values] for values in named)
        self._s = frame.get(view.s)
        self._offsets = frame.get(offsets[0]) if (offsets := _offsets_of(op)) else None
        self._score, self._size = self._view.a.type.element_type, self._view.interval.value
        self._channels = list(self._view.a.type.shape[3:])
        self._crossing = "crossing" in op.attributes

    def sequence(self, targets: Sequence[ir.Value]) -> None:
        """All intervals of the program's sequence."""
        head, number = build.program_id(1), build.program_id(2)
        offsets, one, size = self._offsets, constant_index(1), constant_index(self._size)
        begin, end = (
            arith.IndexCastOp(ir.IndexType.get(), memref.LoadOp(offsets, [at]).result).result
            for at in (number, arith.AddIOp(number, one).result)
        )
        first = arith.AddIOp(arith.DivSIOp(begin, size).result, number).result
        last = arith.SubIOp(end, one).result

        def step(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            start = arith.AddIOp(begin, arith.MulIOp(n, size).result).result
            count = arith.MinSIOp(size, arith.SubIOp(end, start).result).result
            rows = RowBlock(constant_index(0), head, start, count, last)
            self.interval(_Interval(rows, _row(arith.AddIOp(first, n).result, self._view.rows.value)), targets)
            return carried

        loop(constant_index(0), arith.CeilDivSIOp(arith.SubIOp(end, begin).result, size).result, one, [], step)

    def interval(self, work: _Interval, targets: Sequence[ir.Value]) -> None:
        """Stores the gradients of an interval's positions."""
        shape = [self._size, *self._channels]
        tile, zero = ir.RankedTensorType.get(shape, self._score), constant_float(self._score, 0.0)
        rows = work.rows
        tiles = [[build.load(x, *rows.place(), self._size) for x in group] for group in (self._a, self._b)] if self._channels else []

        def products(i: ir.Value, *d: ir.Value) -> list[ir.Value]:
            if tiles:
                return [_total([tensor.ExtractOp(x, [i, *d]).result for x in group]) for group in tiles]
            place = [rows.b, rows.h, rows.position(i)]
            return [_total([memref.LoadOp(x, place).result for x in group]) for group in (self._a, self._b)]

        last = arith.SubIOp(rows.count, constant_index(1)).result

        def less(i: ir.Value, *d: ir.Value) -> ir.Value:
            """What position i takes from those after it: 0 of the last one, where it may be much larger than the sum before it."""
            a, b = products(i, *d)
            counts = arith.CmpIOp(arith.CmpIPredicate.slt, i, last).result
            return arith.SelectOp(counts, arith.SubFOp(b, a).result, zero).result

        sums = None if self._crossing else build.cumsum(_map(shape, [tile], less)[0])
        boundary = self._boundary(work)

        def total(i: ir.Value, *d: ir.Value) -> ir.Value:
            passing = tensor.ExtractOp(boundary, list(d) or [constant_index(0)]).result
            if sums is None:
                return arith.AddFOp(arith.AddFOp(*products(i, *d)).result, passing).result
            before = arith.SubFOp(tensor.ExtractOp(sums, [i, *d]).result, less(i, *d)).result
            return arith.AddFOp(before, passing).result

        (made,) = _map(shape, [tile], total)
        for target in targets:
            build.store(made, target, *rows.place())

    def _boundary(self, work: _Interval) -> ir.Value:
        """What passes the interval's boundary: for every channel (or in all, [1]), the sum of s e over its row (over the states)."""
        height, width = self._view.rows.value, self._view.s.type.shape[3]

        def product(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            place = [work.rows.b, work.rows.h, arith.AddIOp(work.state, i).result, j]
            # With offsets, the only batch holds the states of all sequences.
            s, *e = (cast_float(memref.LoadOp(x, place).result, self._score) for x in (self._s, *self._e))
            return [], [arith.MulFOp(s, _total(e)).result]

        of_rows = ir.RankedTensorType.get([height], self._score)
        _, (rows,) = build.map_([constant_index(height), constant_index(width)], [], [of_rows], ["sum"], product)
        if self._channels:
            return rows

        def all_rows(_: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [], [tensor.ExtractOp(rows, [j]).result]

        one = ir.RankedTensorType.get([1], self._score)
        return build.map_([constant_index(1), constant_index(height)], [], [one], ["sum"], all_rows)[1][0]


def _total(values: Sequence[ir.Value]) -> ir.Value:
    first, *others = values
    for each in others:
        first = arith.AddFOp(first, each).result
    return first


def _map(shape: Sequence[int], types: list[ir.Type], body: Callable[..., ir.Value]) -> list[ir.Value]:
    return build.map_([constant_index(size) for size in shape], types, [], [], lambda *at: ([body(*at)], []))[0]
