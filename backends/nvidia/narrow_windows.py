"""Sliding windows of few keys: which masks are such, which schedule their kernels have, and which calls take them.

Sizes of windows are numbers of a call, so that programs have two forms: the usual one, and one that is compiled at the first call whose
window is narrow. There a tile sees few more keys than a row does: it has few positions, of several heads that share keys.
"""

from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker
from attn_mlir.passes.rows_of_pairs import RowsOfPairs

PACK = "pack"
"""The choice that asks for the second form: how many heads of queries share a block of rows."""
NARROW = "few_keys"
"""In the schedule of the first form: how many keys a row may see at most for the second one."""
_LOWER = {2: 0, 3: 0, 4: 1, 5: 1}
"""Of signed predicates of `arith.cmpi`, which side is the lower one."""


def is_window(mask: ir.Operation) -> bool:
    """Whether a mask bounds the distance of a key from its query on both sides, and does nothing else with positions."""
    block = mask.regions[0].blocks[0]
    *_, query, key = block.arguments
    inside = {value for view in block.operations for value in view.operation.results} | {query, key}
    found: set[str] = set()
    for compare in [view.operation for view in block.operations if view.operation.name == "arith.cmpi"]:
        if all(_is_same(value, inside) for value in compare.operands):
            continue  # whether a window has a limit
        side = _LOWER.get(ir.IntegerAttr(compare.attributes["predicate"]).value)
        if side is None:
            return False
        lower, upper = compare.operands[side], compare.operands[1 - side]
        found.add(_side(lower, upper, (query, key), inside))
    return found == {"left", "right"}


def _side(lower: ir.Value, upper: ir.Value, places: tuple[ir.Value, ir.Value], inside: set[ir.Value]) -> str:
    """Which side of a window `lower <= upper` bounds: "left" how far a key is before its query, "right" how far behind it."""
    query, key = places
    if {lower, upper} == {query, key}:
        return "right" if lower == key else "left"
    for value, other, turned in ((lower, upper, False), (upper, lower, True)):
        made = maker(value, "arith.subi")
        if made is not None and set(made.operands) == {query, key} and _is_same(other, inside):
            return "left" if (made.operands[0] == query) != turned else "right"
    return "neither"


def _is_same(value: ir.Value, inside: set[ir.Value]) -> bool:
    """Whether a number is the same for all pairs: one from outside, a constant, or what is left of x - x."""
    made = maker(value, "arith.constant", "arith.subi")
    zero = made is not None and (made.name == "arith.constant" or made.operands[0] == made.operands[1])
    return value not in inside or zero


def fields_of(grid: str, products: int, columns: int, pack: int) -> Fields:
    """The choices of the second form of a kernel, by what its programs are, how many products of queries and keys a pair needs, columns
    of q, k and v, and heads that are packed; nothing where it has the usual ones.
    """
    known = thresholds.NARROW_WINDOWS.get(columns, {})
    if products > 2 or grid not in ("rows", "pairs"):
        return {}
    kind = "pairs" if grid == "pairs" else "sums" if products == 2 else "packed" if pack > 1 else "single"
    return {**known[kind], **({PACK: pack} if pack > 1 and grid == "rows" else {})} if kind in known else {}


def most_keys(grid: str, products: int, columns: int) -> int:
    """How many keys a row may see for the second form of a kernel; 0 where it has none."""
    known = thresholds.NARROW_WINDOWS.get(columns, {})
    has = "packed" in known and products == 1 if grid == "rows" else grid == "pairs" and "pairs" in known and products == 2
    return thresholds.NARROW_KEYS[grid] if has else 0


def prepared(text: str) -> str:
    """The pipeline of the second form before tiling: sums over keys, dq, are a kernel over rows of their own.

    It computes weights again, but needs no zeros, no additions to memory and no rounding afterwards, and packs heads as others do.
    """
    split, rows = "nvidia-split-pairs{", f"{RowsOfPairs.name}{{"
    return text.replace(split, f"{split}queries=true ").replace(rows, f"{rows}all=true ")


def pack_of(inputs: Sequence[Any], most: int) -> int:
    """How many heads are packed for a call whose rows see at most `most` keys; 0 for other calls.

    The numbers among the inputs are sizes of the window: of both sides, or of one of them.
    """
    numbers = [value for value in inputs if isinstance(value, int) and not isinstance(value, bool)]
    if not 1 <= len(numbers) <= 2 or min(numbers) < 0 or sum(numbers) >= most:
        return 0
    q, k = inputs[:2]
    if not isinstance(q, torch.Tensor) or q.dim() != 4 or k.shape[2] <= sum(numbers) + 1:
        return 0
    group, known = q.shape[1] // max(k.shape[1], 1), thresholds.NARROW_WINDOWS.get(q.shape[3], {})
    backward = most == thresholds.NARROW_KEYS["pairs"]
    packs = [pack for pack in thresholds.NARROW_PACKS if ("packed" if pack > 1 else "single") in known and not (backward and pack == 1)]
    return next((pack for pack in packs if group % pack == 0), 0)
