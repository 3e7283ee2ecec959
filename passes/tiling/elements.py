"""Builds the kernels over rows of a tensor: `attn.elements` with what becomes of its weights, and `attn.row_dot`."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.dialects.attn.pairs import residual_factor
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, memref, tensor
from attn_mlir.passes.regions import block_of, pieces
from attn_mlir.passes.row_groups import reads_of, row_dots
from attn_mlir.passes.sequences import Packing, packing_of
from attn_mlir.passes.tiling.frame import Frame, Output, argument_number
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index
from attn_mlir.passes.tiling.scatter import disjoint
from attn_mlir.passes.tiling.work import Span, item_of, item_types, lengths_of, span_of


@dataclass(frozen=True)
class RowBlock:
    """The rows of one program: `count` from `begin` on; positions past them stand for the last one. `span` tells where
    those of packed tensors lie.
    """

    b: ir.Value
    h: ir.Value
    begin: ir.Value
    count: ir.Value
    last: ir.Value
    span: Span | None = None

    def place(self) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        if self.span is None:
            return self.b, self.h, self.begin, self.count
        return self.span.batch, self.h, self.span.row(self.begin), self.count

    def position(self, i: ir.Value) -> ir.Value:
        return arith.MinSIOp(arith.AddIOp(self.begin, i).result, self.last).result


def rows_of(over: ir.Value, size: int) -> RowBlock:
    number, h, b = (build.program_id(axis) for axis in range(3))
    length, step = memref.DimOp(over, constant_index(2)).result, constant_index(size)
    begin = arith.MulIOp(number, step).result
    count = arith.MinSIOp(step, arith.SubIOp(length, begin).result).result
    return RowBlock(b, h, begin, count, arith.SubIOp(length, constant_index(1)).result)


def _packed_rows(frame: Frame, over: ir.Value, packing: Packing) -> RowBlock:
    """Those of packed tensors, as the list of work has them."""
    number, h = (build.program_id(axis) for axis in range(2))
    item = item_of(frame.extra[0], number)
    span = span_of(packing, item.b, over, frame.outer)
    count = arith.SubIOp(item.end, item.begin).result
    last = arith.MaxSIOp(arith.SubIOp(span.length, constant_index(1)).result, constant_index(0)).result
    return RowBlock(item.b, h, item.begin, count, last, span)


def build_row_dot(function: ir.Operation, dot: ir.Operation, makers: Sequence[ir.Operation], rows: int) -> None:
    """Inserts the kernel of an `attn.row_dot` before the function."""
    outputs = [Output(op, "store") for op in makers]
    score = ir.RankedTensorType(dot.results[0].type).element_type
    with dot.location:
        frame = Frame(function, [dot], outputs)
        frame.describe(
            {"grid": "rows", "block_q": rows, "block_kv": 1, "over": argument_number(dot.operands[0]), "score": ir.TypeAttr.get(score)},
            outputs,
        )
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            program = rows_of(frame.get(dot.operands[0]), rows)
            total = _row_dot(frame, dot, program, rows)
            for target in frame.outputs:
                build.store(total, target, *program.place())
            func.ReturnOp([])


def _row_dot(frame: Frame, dot: ir.Operation, program: RowBlock, rows: int) -> ir.Value:
    """A tile of the sums of a program's rows."""
    sources, score = [frame.get(operand) for operand in dot.operands], ir.RankedTensorType(dot.results[0].type).element_type
    tiles = [build.load(source, *program.place(), rows) for source in sources]
    factor = residual_factor(ir.MemRefType(sources[1].type).element_type)

    def body(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
        x, y, *rest = (cast_float(tensor.ExtractOp(tile, [i, d]).result, score) for tile in tiles)
        if rest and factor is not None:
            y = arith.AddFOp(y, arith.MulFOp(rest[0], constant_float(score, 1.0 / factor)).result).result
        return [], [arith.MulFOp(x, y).result]

    extents = [constant_index(rows), constant_index(ir.MemRefType(sources[0].type).shape[3])]
    _, (total,) = build.map_(extents, [], [ir.RankedTensorType.get([rows], score)], ["sum"], body)
    return total


def build_elements(function: ir.Operation, elements: ir.Operation, makers: Sequence[ir.Operation], rows: int, slots: bool) -> None:
    """Inserts the kernel of an `attn.elements` and its consumers before the function. `makers` make the function's results.

    With `slots`, programs scatter to slots of their own; else one after the other. Sums of rows that the elements read are made first.
    """
    dots = row_dots(elements)
    cluster = [elements, *dots, *[use.owner.operation for use in elements.results[0].uses]]
    packing = packing_of(elements, "query") or packing_of(elements, "key")

    def output(op: ir.Operation) -> Output:
        if op.name != "attn.scatter":
            return Output(op, "store")
        return Output(op, "scatter", disjoint(op, 2, packed=packing is not None) if slots else (False, False, False))

    outputs = [output(op) for op in makers]
    scattered = any(op.name == "attn.scatter" for op in makers)
    element = block_of(pieces(elements, "attn.element")[0])
    weights = list(element.operations[-1].operation.operands)
    with elements.location:
        frame = Frame(function, cluster, outputs, item_types(False) if packing is not None else ())
        attributes = {"grid": "elements", "block_q": rows, "block_kv": 1, "over": argument_number(elements.operands[0])}
        if packing is not None:
            attributes.update(lengths_of(elements))
        score = next((weight.type for weight in weights), ir.F32Type.get())
        frame.describe({**attributes, "score": ir.TypeAttr.get(score), "serial": ir.BoolAttr.get(scattered and not slots)}, outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            like = frame.get(elements.operands[0])
            own = rows_of(like, rows) if packing is None else _packed_rows(frame, like, packing)
            work = _Elements(frame, element, own, like, rows, (slots, packing is not None))
            for dot in dots:
                work.sums[dot] = (_row_dot(frame, dot, own, rows), reads_of(dot, elements))
            for op, target in zip(makers, frame.outputs, strict=True):
                if op in dots:
                    build.store(work.sums[op][0], target, *own.place())
                elif op.name == "attn.scatter":
                    work.scatter(op, target)
                else:
                    work.collect(op, target)
            func.ReturnOp([])


class _Elements:
    """The elements of one program's rows; each output computes the weight it needs."""

    def __init__(self, frame: Frame, element: ir.Block, rows: RowBlock, like: ir.Value, size: int, scattered: tuple[bool, bool]) -> None:
        """`scattered`: whether programs scatter to slots of their own, and whether batch entries are sequences of packed tensors."""
        self._frame, self._element, self._rows, self._size = frame, element, rows, size
        self._slots, self._packed = scattered
        type_ = ir.MemRefType(like.type)
        self._columns = [memref.DimOp(like, constant_index(3)).result] if type_.rank == 4 else []
        self.sums: dict[ir.Operation, tuple[ir.Value, list[ir.Operation]]] = {}
        """Tiles of sums of rows, and where elements read them."""

    def _weight(self, op: ir.Operation, i: ir.Value, positions: list[ir.Value]) -> ir.Value:
        emitter = self._frame.scalars(dict(zip(self._element.arguments, positions, strict=True)))
        for tile, reads in self.sums.values():
            for read in reads:
                emitter.set(read.results[0], tensor.ExtractOp(tile, [i]).result)
        weights = list(self._element.operations[-1].operation.operands)
        return emitter.emit(weights[ir.IntegerAttr(op.attributes["weight"]).value])

    def _positions(self, indices: Sequence[ir.Value]) -> list[ir.Value]:
        i, *d = indices
        return [self._rows.b, self._rows.h, self._rows.position(i), *d]

    def collect(self, op: ir.Operation, target: ir.Value) -> None:
        """Stores a weight of every element."""
        element = ir.MemRefType(target.type).element_type
        shape = [self._size, ir.MemRefType(target.type).shape[3]] if self._columns else [self._size]

        def body(*indices: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [cast_float(self._weight(op, indices[0], self._positions(indices)), element)], []

        extents = [constant_index(self._size), *self._columns]
        tiles, _ = build.map_(extents, [ir.RankedTensorType.get(shape, element)], [], [], body)
        build.store(tiles[0], target, *self._rows.place())

    def scatter(self, op: ir.Operation, target: ir.Value) -> None:
        """Adds a weight of every element at its place."""
        region = block_of(op)

        def body(*indices: ir.Value) -> tuple[ir.Value, ir.Value, Sequence[ir.Value]]:
            positions = self._positions(indices)
            i1 = ir.IntegerType.get_signless(1)
            always = arith.ConstantOp(i1, ir.IntegerAttr.get(i1, 1)).result
            chunk = build.program_id(0) if self._slots else constant_index(0)
            own = self._frame.scalars().inline(region, positions)
            batch = constant_index(0) if self._packed else self._rows.b
            return self._weight(op, indices[0], positions), always, [chunk, batch, self._rows.h, *own]

        build.scatter_add(target, [self._rows.count, *self._columns], body)
