"""Reads numbers of captured tensors that stay the same where their places are known, not in each iteration of a loop."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all

_PASSED = ("warp.map", "warp.each_warp", "scf.for", "scf.if")
"""What a read may leave: tiles are handed out around these."""


@dataclass(frozen=True)
class HoistLoads(Pass):
    """Moves each `memref.load` of global memory out of maps, conditions and loops that its indices do not depend on, behind the last op
    that these are made of: a slope of the head, or the number of keys of a batch entry, is on its way while the first tiles are awaited.
    Reads of one element become one.

    Elements at constant places stay where they are: no key may be there to ask for them. A kernel stays as it is, with the reason in
    `warp.refused`, where no loop reads an element that stays the same.
    """

    name = "warp-hoist-loads"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _hoist)
        return True


def _hoist(kernel: ir.Operation) -> None:
    known: dict[tuple[ir.Value, ...], ir.Value] = {}
    reads = [op for role in find_all(kernel, "warp.role") for op in find_all(role, "memref.load") if _is_global(op.operands[0])]
    tops = {op: _top(op) for op in reads}
    # An iteration that was peeled off reads what the loop reads.
    reads.sort(key=lambda op: not tops[op][1])
    change_parts(reads, lambda op: _change(op, *tops[op], known), "no map reads global memory")


def _is_global(memory: ir.Value) -> bool:
    return ir.MemRefType(memory.type).memory_space is None


def _top(op: ir.Operation) -> tuple[ir.Operation, bool]:
    """The outermost op around a read that its indices do not depend on, and whether a loop is left so."""
    top, loops = op, False
    while (above := top.parent) is not None and above.operation.name in _PASSED and _made_of(op, above.operation) is not None:
        top = above.operation
        loops = loops or top.name == "scf.for"
    return top, loops


def _change(op: ir.Operation, top: ir.Operation, loops: bool, known: dict[tuple[ir.Value, ...], ir.Value]) -> None:
    if (not loops and tuple(op.operands) not in known) or all(_is_constant(index) for index in list(op.operands)[1:]):
        raise Refused("no loop reads an element of global memory that stays the same")
    inside: dict[ir.Value, ir.Value] = {}
    with op.location, ir.InsertionPoint(top):
        for each in _made_of(op, top) or []:
            clone_op(each, inside)
    place = tuple(inside.get(operand, operand) for operand in op.operands)
    if place not in known:
        with op.location, _behind(place, top):
            known[place] = clone_op(op, inside).results[0]
    op.results[0].replace_all_uses_with(known[place])
    op.erase()


def _made_of(op: ir.Operation, above: ir.Operation) -> list[ir.Operation] | None:
    """The arithmetic in another op that an op's operands are made of, in order; None where they depend on what changes there."""
    found: list[ir.Operation] = []
    for operand in op.operands:
        if isinstance(operand.owner, ir.Block):
            if _is_in(operand.owner, above):
                return None
            continue
        maker = operand.owner.operation
        if not _is_in(maker.block, above):
            continue
        before = _made_of(maker, above) if maker.name.startswith("arith.") else None
        if before is None:
            return None
        found += [each for each in [*before, maker] if each not in found]
    return found


def _is_in(block: ir.Block, above: ir.Operation) -> bool:
    owner: ir.Operation | None = block.owner.operation
    while owner is not None and owner != above:
        owner = owner.parent.operation if owner.parent is not None else None
    return owner is not None


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "arith.constant"


def _behind(values: tuple[ir.Value, ...], top: ir.Operation) -> ir.InsertionPoint:
    """Behind the last op in the block of `top` that makes one of some values; at the block's beginning, if none does."""
    ops = [view.operation for view in top.block.operations]
    makers = {value.owner.operation for value in values if not isinstance(value.owner, ir.Block)}
    last = max((number for number, each in enumerate(ops) if each in makers), default=-1)
    return ir.InsertionPoint(ops[last + 1])
