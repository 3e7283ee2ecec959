"""Lets blocks of keys begin with the first key that a tile sees, instead of with multiples of their size."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.structure import constant
from attn_mlir.backends.nvidia.forming.facts import wanted
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.copies import TURNED
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker


@dataclass(frozen=True)
class ShiftKeys(Pass):
    """Counts blocks of keys from the first one that a tile sees, where that is not key 0, as under a sliding window: fewer blocks hold
    them all. Loops then begin and end so many whole blocks after it.

    A kernel stays as it is (`warp.refused`) where `shift` is 0 in `warp.schedule`, its first loop begins elsewhere, one may before,
    one begins or ends with whole blocks that are counted for all tiles together, tiles were transposed before the kernel, or keys lie in
    pages.
    """

    name = "warp-shift-keys"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _shift)
        return True


def _shift(kernel: ir.Operation) -> None:
    if not wanted(kernel, "shift"):
        raise Refused("the schedule has blocks of keys that begin with multiples of their size")
    loops = [loop for loop in find_all(kernel, "scf.for") if constant(loop.operands[2]) is not None]
    if find_all(kernel, "warp.copy_pages_async"):
        raise Refused("rows in pages are copied in parts, which lie in one page")
    if any(TURNED in op.attributes for op in find_all(kernel, "warp.copy_async")):
        raise Refused("tiles that were transposed before the kernel begin with multiples of their size")
    rounded = [found for loop in loops if (found := _rounded(loop.operands[0], loop.operands[2])) is not None]
    if not rounded:
        raise Refused("no loop begins with the block of a key that is computed")
    first, key = rounded[0]
    if any(_is_outside(first, loop) for loop in loops):
        raise Refused("loops over keys do not stand together")
    if not _begins(first, loops):
        raise Refused("a loop before begins with a key that is not computed")
    if any(_counts_elsewhere(bound, first) for loop in loops for bound in list(loop.operands)[:2]):
        raise Refused("a loop begins or ends with whole blocks that are counted for all tiles together")
    ends = _later(first)
    if not all(_is_least(each, key) for _, each in ends):
        raise Refused("a later block may begin before the first key")
    size = first.operands[1]
    for op, value in ends:
        with op.location, ir.InsertionPoint(op):
            more = arith.MaxSIOp(arith.SubIOp(value, key).result, build.index(0)).result  # told, so that printers count in 32 bits
            blocks = arith.DivUIOp(more, size).result
            shifted = arith.AddIOp(key, arith.MulIOp(blocks, size).result).result
        op.results[0].replace_all_uses_with(shifted)
    first.results[0].replace_all_uses_with(key)


def _begins(first: ir.Operation, loops: list[ir.Operation]) -> bool:
    """Whether the first of the loops over blocks begins with an op, and none ends there: not so what is left behind whole blocks."""
    beside = [loop for loop in loops if loop.block == first.block]
    value = first.results[0]
    return beside[0].operands[0] == value and not any(
        loop.operands[1] in (value, _whole(first, constant(first.operands[1]))) for loop in beside
    )


def _counts_elsewhere(bound: ir.Value, first: ir.Operation) -> bool:
    """Whether a bound of a loop is made of a key that is rounded to whole blocks outside of the tile, where `_later` does not shift it."""
    made = maker(bound, "arith.muli", "arith.maxsi", "arith.minsi", "arith.addi", "arith.subi")
    if made is None:
        return False
    if _whole(made, constant(first.operands[1])) is not None and made.block != first.block:
        return True
    return any(_counts_elsewhere(operand, first) for operand in made.operands)


def _later(first: ir.Operation) -> list[tuple[ir.Operation, ir.Value]]:
    """What else of the tile is rounded to whole blocks, and of which key."""
    size = constant(first.operands[1])
    ops = [view.operation for view in first.block.operations]
    return [(op, key) for op in ops if op != first and (key := _whole(op, size)) is not None]


def _rounded(value: ir.Value, step: ir.Value) -> tuple[ir.Operation, ir.Value] | None:
    """What rounds a computed key down to whole blocks, and that key."""
    made = maker(value, "arith.muli")
    key = _whole(made, constant(step)) if made is not None else None
    return None if made is None or key is None or constant(key) is not None else (made, key)


def _whole(op: ir.Operation, size: float | None) -> ir.Value | None:
    """Of (key / size) * size, the key."""
    if op.name != "arith.muli" or size is None or constant(op.operands[1]) != size:
        return None
    divided = maker(op.operands[0], "arith.divsi")
    return divided.operands[0] if divided is not None and constant(divided.operands[1]) == size else None


def _is_least(value: ir.Value, least: ir.Value) -> bool:
    """Whether a number is never less than another one, by what makes it."""
    if value == least:
        return True
    made = maker(value, "arith.maxsi", "arith.minsi", "arith.addi")
    if made is None:
        return False
    if made.name == "arith.addi":
        more = constant(made.operands[1])
        return more is not None and more >= 0 and _is_least(made.operands[0], least)
    return (any if made.name == "arith.maxsi" else all)(_is_least(operand, least) for operand in made.operands)


def _is_outside(op: ir.Operation, loop: ir.Operation) -> bool:
    """Whether a loop over blocks of keys that are rounded stands elsewhere than next to an op."""
    return _rounded(loop.operands[0], loop.operands[2]) is not None and loop.block != op.block
