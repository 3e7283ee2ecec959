"""Loops in steps of several rows, with the remainder one at a time."""

from collections.abc import Callable

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.mlir import arith, ir, scf


def blocked(begin: ir.Value, end: ir.Value, rows: int, body: Callable[[ir.Value, int], None]) -> None:
    """Calls `body(first, rows)` for [begin, end) in steps of `rows`, then one at a time for the rest."""
    if rows > 1:
        size = emit.index(rows)
        extent = arith.SubIOp(end, begin).result
        whole = arith.AddIOp(begin, arith.MulIOp(arith.DivUIOp(extent, size).result, size).result).result
        loop = scf.ForOp(begin, whole, size, [])
        with ir.InsertionPoint(loop.body):
            body(loop.induction_variable, rows)
            scf.YieldOp([])
        begin = whole
    loop = scf.ForOp(begin, end, emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        body(loop.induction_variable, 1)
        scf.YieldOp([])


def overlapping(count: ir.Value, rows: int, body: Callable[[ir.Value, int], None]) -> None:
    """As `blocked` from 0 on, but the last step begins early enough to be whole: `body` may do the same rows twice."""
    size = emit.index(rows)
    enough = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.sge, count, size).result, [], has_else=True)
    with ir.InsertionPoint(enough.then_block):
        last = arith.SubIOp(count, size).result
        loop = scf.ForOp(emit.index(0), count, size, [])
        with ir.InsertionPoint(loop.body):
            body(arith.MinSIOp(loop.induction_variable, last).result, rows)
            scf.YieldOp([])
        scf.YieldOp([])
    with ir.InsertionPoint(enough.else_block):
        blocked(emit.index(0), count, 1, body)
        scf.YieldOp([])
