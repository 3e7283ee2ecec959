"""Conditions under which sums over keys can be added in the order of the blocks of keys: bounds tell who adds to a block of queries."""

from collections.abc import Sequence
from itertools import pairwise

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker


def depends(value: ir.Value, on: ir.Value) -> bool:
    """Whether a value is computed from another one."""
    if value == on:
        return True
    op = maker(value)
    return op is not None and any(depends(operand, on) for operand in op.operands)


def is_masked(loops: Sequence[ir.Operation], keys: ir.Value) -> bool:
    """Whether blocks of keys are seen by different queries, over which these loops go."""
    return any(depends(bound, keys) for loop in loops for bound in list(loop.operands)[:2])


def without_order(loops: Sequence[ir.Operation], keys: ir.Value, count: ir.Value, packed: bool = False) -> str:
    """Why the blocks of keys that add to a block of queries may not follow each other without a gap; empty where they do.

    `loops` over the queries of a block follow each other; the block begins with key number `keys` and has `count` keys.
    Of `packed` sequences no bound may be chosen, as of windows that may have no limit: no GPU has run that.
    """
    if any(before.operands[1] != after.operands[0] and not _same_end(before, after) for before, after in pairwise(loops)):
        return "a fixed order of sums needs one range of queries for each block of keys"
    if any(find_all(loop, "scf.if") for loop in loops):
        return "a fixed order of sums needs masks whose blocks are known from their bounds"
    ends = loops[0].operands[0], loops[-1].operands[1]
    if not all(grows(end, keys, count) for end in ends) or (packed and any(_is_chosen(end, keys) for end in ends)):
        return "a fixed order of sums needs queries that begin and end later for later keys"
    return ""


def _is_chosen(value: ir.Value, keys: ir.Value) -> bool:
    """Whether a number that depends on `keys` is made of one that is chosen."""
    op = maker(value) if value != keys and depends(value, keys) else None
    return op is not None and (op.name == "arith.select" or any(_is_chosen(operand, keys) for operand in op.operands))


def _same_end(before: ir.Operation, after: ir.Operation) -> bool:
    """Whether a loop ends where the next one begins, or both where the queries do."""
    op = maker(before.operands[1], "arith.minsi")
    return op is not None and after.operands[0] in list(op.operands)


def grows(value: ir.Value, keys: ir.Value, count: ir.Value) -> bool:
    """Whether the value does not fall when `keys` grows, where `count` keys follow.

    That is known of sums with, limits to, multiples by and choices by what does not depend on `keys`.
    """
    if value == keys or not depends(value, keys):
        return True
    op = value.owner.operation  # type: ignore[union-attr]
    if op.name == "arith.addi" and count in list(op.operands):
        return keys in list(op.operands)  # the end of the block of keys
    if op.name in ("arith.addi", "arith.minsi", "arith.maxsi"):
        return all(grows(operand, keys, count) for operand in op.operands)
    if op.name == "arith.select" and not depends(op.operands[0], keys):
        return all(grows(operand, keys, count) for operand in list(op.operands)[1:])
    if op.name == "arith.subi":
        return not depends(op.operands[1], keys) and grows(op.operands[0], keys, count)
    if op.name in ("arith.muli", "arith.divsi", "arith.floordivsi", "arith.ceildivsi"):
        factor = maker(op.operands[1], "arith.constant")
        return factor is not None and ir.IntegerAttr(factor.attributes["value"]).value > 0 and grows(op.operands[0], keys, count)
    return False
