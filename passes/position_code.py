"""The integer code of masks and score_mods that costs a kernel most: divisions, which each pair of positions asks for."""

from attn_mlir.diagnostics import source_line
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_PIECES = ("attn.mask", "attn.score")
_DIVISIONS = tuple(f"arith.{name}" for name in ("divsi", "divui", "floordivsi", "ceildivsi", "ceildivui", "remsi", "remui"))


def position_code(module: ir.Operation) -> str:
    """Where functions of positions divide integers, in words with the user's line; empty where they don't.

    Divisors that are no constants are named first: they cost most.
    """
    pieces = [(piece, division) for piece in find_all(module, *_PIECES) for division in find_all(piece, *_DIVISIONS)]
    if not pieces:
        return ""
    piece, division = min(pieces, key=lambda each: _is_constant(each[1].operands[1]))
    what = "the mask" if piece.name == "attn.mask" else "score_mod"
    place = source_line(division.location)
    where = f"{what} ({place})" if ":" in place and not place.startswith("-:") else what
    if _is_constant(division.operands[1]):
        return f"the integer divisions in {where}"
    return (
        f"the integer divisions in {where}, whose divisors are known at run time only: numbers written inside of the function are constants"
    )


def _is_constant(value: ir.Value) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "arith.constant"
