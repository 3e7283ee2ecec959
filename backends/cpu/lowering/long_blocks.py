"""Ends of basic blocks in long scalar code: LLVM's schedulers take a time that grows with the square of a block's length.

A branch ends a block that LLVM can't join again: an empty piece of assembly hides that its condition never holds.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.mlir import arith, ir, llvm, scf

_LONGEST = 256
"""What the ops of a block may cost in all; programs of usual length have no such block."""
_COSTLY = {"floordivsi": 16, "ceildivsi": 16, "divsi": 8, "remsi": 8}


class Length:
    """What was written into the current basic block, and when that is enough."""

    def __init__(self) -> None:
        self._block: ir.Block | None = None
        self._cost = 0

    def count(self, op: ir.Operation) -> None:
        """Counts an op that is written next, behind the end of a block where it would be too long."""
        block = ir.InsertionPoint.current.block
        if self._block is None or block != self._block:
            self._block, self._cost = block, 0
        dialect, _, name = op.name.partition(".")
        self._cost += 8 if dialect == "math" else _COSTLY.get(name, 1)
        if self._cost > _LONGEST:
            self._cost = 0
            _end_block()


def _end_block() -> None:
    zero = emit.integer(0, bits=32)
    hidden = llvm.InlineAsmOp(zero.type, [zero], "", "=r,0", has_side_effects=True).res
    never = scf.IfOp(arith.CmpIOp(arith.CmpIPredicate.ne, hidden, zero).result, [])
    with ir.InsertionPoint(never.then_block):
        llvm.Trap()
        scf.YieldOp([])
