"""`tile.solve_unit` on tiles that lie row by row: substitution in blocks of rows, whose sums stay in registers."""

from collections.abc import Sequence

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, RowMajor
from attn_mlir.backends.cpu.lowering.row_products import row_blocks
from attn_mlir.backends.cpu.lowering.row_tiles import counted, get_tile, tile_in
from attn_mlir.mlir import arith, ir, scf, vector

_ROWS = 4
"""Rows of a block: every vector of solved rows that is read serves so many."""
_VECTORS = 4
"""Vectors of columns of a block."""


def lower_solve_unit(context: Lowering, op: ir.Operation) -> None:
    """`tile.solve_unit`: a block of rows takes away what the rows solved before it say, then what its own do."""
    a, b = (get_tile(context, operand) for operand in op.operands)
    solved = tile_in(context, op.results[0].type, context.buffer(op))
    solve = _Solve(context, a, b, solved, ir.BoolAttr(op.attributes["upper"]).value)
    wide = min(_VECTORS, solved.width // context.lanes)
    row_blocks(solved.width, wide * context.lanes, lambda column, count: solve.columns(column, count // context.lanes))
    context.values[op.results[0]] = solved


class _Solve:
    def __init__(self, context: Lowering, a: RowMajor, b: RowMajor, solved: RowMajor, upper: bool) -> None:
        self._context, self._a, self._b, self._solved, self._upper = context, a, b, solved, upper
        self._type = ir.VectorType.get([context.lanes], context.score)

    def columns(self, column: ir.Value, wide: int) -> None:
        """All rows of so many vectors of columns."""
        size = self._solved.rows
        whole = size // _ROWS * _ROWS

        def block(number: ir.Value) -> None:
            """Rows of one block, counted from the end where the triangle is an upper one."""
            first = arith.SubIOp(emit.index(size - _ROWS), number).result if self._upper else number
            self._block(first, _ROWS, column, wide)

        if whole:
            counted(emit.index(whole), _ROWS, block)
        if whole < size:
            self._block(emit.index(0 if self._upper else whole), size - whole, column, wide)

    def _block(self, first: ir.Value, rows: int, column: ir.Value, wide: int) -> None:
        numbers = [emit.add(first, emit.index(r)) for r in range(rows)]
        begin, end = (numbers[-1], emit.index(self._solved.rows)) if self._upper else (emit.index(0), first)
        begin = emit.add(begin, emit.index(1)) if self._upper else begin
        initial = [emit.load(self._type, at) for row in numbers for at in self._vectors(self._b, row, column, wide)]
        loop = scf.ForOp(begin, end, emit.index(1), initial)
        with ir.InsertionPoint(loop.body):
            j, sums = loop.induction_variable, list(loop.inner_iter_args)
            known = [emit.load(self._type, at) for at in self._vectors(self._solved, j, column, wide)]
            scf.YieldOp([x for r, row in enumerate(numbers) for x in self._less(row, j, known, sums[r * wide : (r + 1) * wide])])
        found = [list(loop.results)[r * wide : (r + 1) * wide] for r in range(rows)]
        order = list(range(rows))[:: -1 if self._upper else 1]
        for n, r in enumerate(order):
            for s in order[:n]:
                found[r] = self._less(numbers[r], numbers[s], found[s], found[r])
            for x, at in zip(found[r], self._vectors(self._solved, numbers[r], column, wide), strict=True):
                emit.store(x, at)

    def _vectors(self, tile: RowMajor, row: ir.Value, column: ir.Value, wide: int) -> list[ir.Value]:
        return [tile.at(row, emit.add(column, emit.index(n * self._context.lanes))) for n in range(wide)]

    def _less(self, row: ir.Value, j: ir.Value, known: Sequence[ir.Value], sums: Sequence[ir.Value]) -> list[ir.Value]:
        """Sums of a row less a[row, j] times row j."""
        factor = arith.NegFOp(emit.load(self._context.score, self._a.at(row, j))).result
        wide = emit.splat(factor, self._context.lanes)
        return [vector.FMAOp(wide, x, total).result for x, total in zip(known, sums, strict=True)]
