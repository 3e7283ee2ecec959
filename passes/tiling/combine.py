"""Builds the kernel of `attn.combine`: partial results merged one after the other, and ended, a row at a time."""

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, memref, tensor
from attn_mlir.passes.regions import block_of, pieces
from attn_mlir.passes.tiling.block import GridTile, RowSource
from attn_mlir.passes.tiling.frame import loop
from attn_mlir.passes.tiling.kernel import KernelBuilder
from attn_mlir.passes.tiling.narrow import ProductTypes
from attn_mlir.passes.tiling.results import TiledResult
from attn_mlir.passes.tiling.scalars import ScalarEmitter, cast_float, constant_index
from attn_mlir.passes.tiling.work import Span, item_of, part_of, ragged_numbers, span_of


class CombineBuilder(KernelBuilder):
    """Turns `func.func @f(..., accumulators, states..., count) -> (o, rows...)` holding an `attn.combine` into a kernel on memrefs.

    A program has one row; its parts lie in entries b count to (b + 1) count, of packed tensors in those that its item of the list names.
    """

    def __init__(self, function: ir.Operation, combine: ir.Operation, whole: bool = False) -> None:
        sums = ir.RankedTensorType(next(iter(combine.operands)).type).element_type
        super().__init__(function, combine, (1, 1), ProductTypes(sums), whole)

    def _views(self, outputs: range) -> ir.Attribute:
        """None: partial results have entries of their own, and outputs are written row by row."""
        return ragged_numbers([])

    def _of_keys(self) -> list[ir.Value]:
        """None: keys are not read again."""
        return []

    def _score_type(self) -> ir.Type:
        return ir.RankedTensorType(self._online.operands[0].type).element_type

    def _live_accumulators(self, results: list[TiledResult]) -> list[int]:
        return [0]

    def _fill_body(self, outer: ScalarEmitter, arguments: list[ir.Value], inputs: int) -> None:
        accumulator, count = (outer.emit(operand) for operand in self._online.operands)
        row, h, b = (build.program_id(axis) for axis in range(3))
        one = constant_index(1)
        if self._packed is None:
            first = arith.MulIOp(b, count).result
            span = Span(b, None, memref.DimOp(accumulator, constant_index(2)).result)
        else:
            item, (count, _) = item_of(arguments[-1], row), part_of(arguments[-1], row)
            b, row, first = item.b, item.begin, item.slot
            span = span_of(self._packed, b, accumulator, outer)
        end = arith.AddIOp(row, one).result
        rows = self._asked(outer, one, b) if self._whole else one
        program = GridTile(self._types, self._score, b, h, h, row, end, rows, row, span, span, outer, 1, 1)
        program.sources = [RowSource(accumulator)]
        states = [outer.emit(piece.operands[0]) for piece in pieces(self._online, "attn.carried")]
        initial = self._initial_states(program)
        carried = [*initial, *self._initial_accumulators(program)]

        def merged(part: ir.Value, inside: list[ir.Value]) -> list[ir.Value]:
            entry = arith.AddIOp(first, part).result
            return self._merged(program, accumulator, states, entry, inside)

        carried = loop(constant_index(0), count, one, carried, merged)
        self._finalize(program, carried[: len(states)], {0: carried[-1]}, arguments[inputs:])

    def _merged(
        self, program: GridTile, accumulator: ir.Value, states: list[ir.Value], entry: ir.Value, inside: list[ir.Value]
    ) -> list[ir.Value]:
        """The carried values after the part in this entry."""
        region, one = block_of(pieces(self._online, "attn.merge")[0]), constant_index(1)
        before, carried = inside[: len(states)], inside[-1]
        taken = list(region.arguments)

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = program.reading(dict(zip(taken[: len(states)], before, strict=True)), i, None)
            for argument, state in zip(taken[len(states) :], states, strict=True):
                emitter.set(argument, memref.LoadOp(state, [entry, program.h, program.begin]).result)
            return [emitter.emit(value) for value in region.operations[-1].operation.operands], []

        row = ir.RankedTensorType.get([1], self._score)
        made, _ = build.map_([one], [row] * (len(states) + 2), [], [], body)
        *after, scale, weight = made

        def weights(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [cast_float(tensor.ExtractOp(weight, [i]).result, self._score)], []

        type_ = ir.RankedTensorType.get([1, ir.ShapedType.get_dynamic_size()], self._score)
        (tile,), _ = build.map_([one, one], [type_], [], [], weights)
        values = build.load(accumulator, entry, program.h, program.begin, one)
        return [*after, build.dot_accumulate(carried, scale, tile, values)]
