"""Numbers that loops hand on in addition: from one loop to the next in a block, and through the loops inside."""

from collections.abc import Callable

from attn_mlir.dialects.warp import build
from attn_mlir.mlir import ir

State = list[ir.Value]
Change = Callable[[ir.Block, State], State | None]
"""What happens in a loop's block, given the numbers at its begin: those at its end, or None where loops inside hand them on."""


def carry(block: ir.Block, loops: list[ir.Operation], state: State, change: Change) -> State:
    """Lets those `loops` that stand in a block, and those in them, carry numbers that begin with `state`; the numbers after the last one.

    A loop is made again, with the ops that it had, so that their handles stay.
    """
    for op in [view.operation for view in block.operations]:
        if op in loops:
            loop, own = _with_more(op, state)
            body = loop.regions[0].blocks[0]
            found = change(body, own)
            handed = carry(body, loops, own, change) if found is None else found
            last = body.operations[-1].operation
            first = len(list(last.operands)) - len(handed)
            for n, value in enumerate(handed):
                last.operands[first + n] = value
            state = list(loop.results)[first:]
    return state


def _with_more(loop: ir.Operation, starts: State) -> tuple[ir.Operation, State]:
    """A loop that carries more numbers, which it does not change yet, in place of one; and what stands for them in its block."""
    old = loop.regions[0].blocks[0]
    names = [*(argument.location for argument in old.arguments), *(loop.location for _ in starts)]
    begin, end, step, *carried = loop.operands
    with loop.location, ir.InsertionPoint(loop):
        made = build.loop(begin, end, step, [*carried, *starts], names)
    body = made.regions[0].blocks[0]
    for before, after in zip(old.arguments, body.arguments, strict=False):
        before.replace_all_uses_with(after)
    own = list(body.arguments)[len(list(old.arguments)) :]
    *ops, last = [view.operation for view in old.operations]
    with last.location, ir.InsertionPoint(body):
        handed = ir.Operation.create("scf.yield", operands=[*last.operands, *own])
    for op in ops:
        op.move_before(handed)
    for before, after in zip(loop.results, made.results, strict=False):
        before.replace_all_uses_with(after)
    loop.erase()
    return made, own
