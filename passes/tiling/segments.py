"""Splits what a loop runs over into segments: blocks that the mask keeps whole, blocks in which it decides, tails."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.tiling.frame import same
from attn_mlir.passes.tiling.scalars import constant_index, known_index


@dataclass(frozen=True)
class Segment:
    """Positions [begin, end), a block after the other.

    `kind`: "full", every pair is present; "partial", the mask decides; "classify", that is asked for each block first. In
    `whole` segments every block has all its positions; in others the last one may end early.
    """

    begin: ir.Value
    end: ir.Value
    kind: str
    whole: bool = False


def plan_segments(
    length: ir.Value, limits: Sequence[ir.Value] | None, masked: bool, classified: bool, size: int, whole: bool
) -> list[Segment]:
    """The segments of [0, length) in order, for blocks of `size` positions.

    `limits` are where the bounds of the mask say that positions begin to be present, are all present, are no longer all present, and
    end; None without bounds. With `whole`, what can be cut into whole blocks is a segment of its own, and segments begin at
    multiples of `size`.
    """
    zero = constant_index(0)
    if not masked:
        ends, kinds = [zero, length], ["full"]
    elif classified or limits is None:
        ends, kinds = [limits[0], limits[3]] if limits else [zero, length], ["classify" if classified else "partial"]
    else:
        ends, kinds = list(limits), ["partial", "full", "partial"]
    if not whole:
        return [Segment(a, b, kind) for a, b, kind in zip(ends, ends[1:], kinds, strict=False) if not same(a, b)]
    if len(kinds) == 1 and kinds[0] != "partial":
        # Whole blocks, and a tail.
        first, last = _down(ends[0], size), _down(ends[1], size)
        return [Segment(first, last, kinds[0], True), Segment(last, ends[1], "full" if not masked else "partial")]
    if len(kinds) == 1:
        return [Segment(_down(ends[0], size), ends[1], "partial")]
    begin, every, last = _down(ends[0], size), _up(ends[1], size), _down(ends[2], size)
    last = every if same(every, last) else arith.MaxSIOp(every, last).result
    found = []
    if not same(begin, every):
        found.append(Segment(begin, arith.MinSIOp(every, ends[3]).result, "partial"))
    found += [Segment(every, last, "full", True), Segment(last, ends[3], "partial")]
    return found


def _down(value: ir.Value, size: int) -> ir.Value:
    """The last multiple of `size` that is not above; values are not negative."""
    if (known := known_index(value)) is not None:
        return constant_index(known // size * size)
    return arith.MulIOp(arith.DivSIOp(value, constant_index(size)).result, constant_index(size)).result


def _up(value: ir.Value, size: int) -> ir.Value:
    """The first multiple of `size` that is not below."""
    if (known := known_index(value)) is not None:
        return constant_index(-(-known // size) * size)
    return _down(arith.AddIOp(value, constant_index(size - 1)).result, size)
