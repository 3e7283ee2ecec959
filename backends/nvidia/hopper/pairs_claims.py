"""Sums over keys (dQ) without zeros before: the first program that adds to a block of queries stores its sums there.

Zeros of dQ in f32 are written, leave the L2 cache, and are read again by the first addition. Here a number in global memory for each block
of queries and part tells whether its sums are there: 0 nobody's, 1 one program is storing its own, 2 there are some. A program that finds
0 puts 1 there, stores, and puts 2 there when its store is done; others add once it is 2. Nobody waits between 1 and the store, so that no
program waits for one that has not begun.
"""

from itertools import pairwise

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker

FIELD = "claims"
"""In schedules: 1 where the first program stores; memory for sums is not cleared then."""
STORED = 2
"""What a semaphore is when there are sums."""


def check_claims(kernel: PairsKernel, layout: BackwardLayout, ordered: bool) -> None:
    """Raises UnsupportedError where some block of queries may have no program, or sums do not leave through warps that add."""
    sums, reason = kernel.step_ops("tile.accumulate"), ""
    if ordered or not layout.reduction_warps:
        reason = "warps that add, in no fixed order (reduction_warps, deterministic)"
    elif not sums or any(op.operands[2] not in layout.adds for op in sums) or kernel.step_ops("tile.scatter_add"):
        reason = "sums over keys all of which leave through TMA"
    elif not sees_all_queries(kernel):
        reason = "a block of keys that all queries see, whatever the lengths are"
    if reason:
        raise UnsupportedError(f"hopper: programs that store the first sums over keys of a block of queries need {reason} ({FIELD})")


def claims_pay(kernel: PairsKernel, layout: BackwardLayout, ordered: bool) -> bool:
    """Whether the first program stores where nothing else is asked for: wherever it can, as warps that only add have the time for it.

    Measured of causal softmax with 128 columns (`docs/notes/backward-claims.md`).
    """
    try:
        check_claims(kernel, layout, ordered)
    except UnsupportedError:
        return False
    return True


def sees_all_queries(kernel: PairsKernel) -> bool:
    """Whether the first block of keys runs steps for all queries: loops that follow each other, from the first query to the last one.

    False also where that is not known.
    """
    key = kernel.key_loop.regions[0].blocks[0].arguments[0]
    return sees_last_queries(kernel) and _begins_at_zero(ops_of(kernel.query_loop, "scf.for")[0].operands[0], key)


def sees_last_queries(kernel: PairsKernel) -> bool:
    """Whether every block of keys runs steps for all queries from one on, if there are such: loops that follow each other to the last one.

    False also where that is not known.
    """
    facts, loops = ir.DictAttr(kernel.function.attributes["tile.kernel"]), ops_of(kernel.query_loop, "scf.for")
    if {"lengths", "listed"} & set(facts) or not loops or ops_of(kernel.query_loop, "scf.if"):
        return False
    inner = any(op != loop for loop in loops for op in find_all(loop, "scf.if", "scf.for"))
    whole = all(_number(loop.operands[2]) == kernel.queries and _is_multiple(loop.operands[0], kernel.queries) for loop in loops)
    key, last = kernel.key_loop.regions[0].blocks[0].arguments[0], loops[-1].operands[1]
    if inner or not whole or not all(_follows(before.operands[1], after.operands[0], last) for before, after in pairwise(loops)):
        return False
    size = maker(last, "memref.dim")
    return size is not None and _number(size.operands[1]) == 2 and not depends(last, key)


def _follows(end: ir.Value, begin: ir.Value, last: ir.Value) -> bool:
    """Whether a loop that begins at `begin` leaves out nothing after one that ends at `end`, of queries up to `last`."""
    if end == begin:
        return True
    op = maker(end, "arith.minsi")
    return op is not None and begin in list(op.operands) and all(value in (begin, last) for value in op.operands)


def _is_multiple(value: ir.Value, queries: int) -> bool:
    """Whether a number is known to be one of the first queries of blocks."""
    number, op = _number(value), maker(value)
    if number is not None or op is None:
        return number is not None and number % queries == 0
    if op.name == "arith.muli":
        return any(_is_multiple(operand, queries) for operand in op.operands)
    return op.name in ("arith.minsi", "arith.maxsi", "arith.addi") and all(_is_multiple(operand, queries) for operand in op.operands)


def _number(value: ir.Value) -> int | None:
    op = maker(value, "arith.constant")
    return None if op is None else ir.IntegerAttr(op.attributes["value"]).value


def _begins_at_zero(value: ir.Value, key: ir.Value) -> bool:
    """Whether a number is 0, or below, in the program whose first key is number 0."""
    op = maker(value)
    if value == key or _number(value) == 0:
        return True
    if op is None:
        return False
    if op.name == "tile.program_id":
        return ir.IntegerAttr(op.attributes["axis"]).value == 0
    parts = [_begins_at_zero(operand, key) for operand in op.operands]
    if op.name in ("arith.muli", "arith.divsi", "arith.floordivsi", "arith.divui"):
        factor = _number(op.operands[1])
        return parts[0] and factor is not None and factor > 0
    if op.name == "arith.minsi":
        return any(parts)
    return op.name in ("arith.maxsi", "arith.addi") and all(parts)


def print_claim(core: Core, semaphore: str) -> None:
    """Prints what lane 0 does once its sums are staged: afterwards `seen` is 0 if it stores them, and 2 if it adds them."""
    with core.scope(f"if (seen != {STORED})"):
        core.writer.line(f"seen = attn::claim({semaphore});", f"if (seen == 1) attn::semaphore_wait({semaphore}, {STORED});")
