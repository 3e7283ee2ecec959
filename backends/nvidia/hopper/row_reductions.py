"""Sums, maxima and minima along rows, of which four threads hold the parts."""

from collections.abc import Sequence

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.tiles import RegRow

IDENTITY = {"sum": "0.0f", "max": "-3.40282347e+38f", "min": "3.40282347e+38f"}


def combined(core: Core, kind: str, a: str, b: str) -> str:
    """What is reduced of two numbers."""
    return f"{a} + ({b})" if kind == "sum" and "?" in b else f"{a} + {b}" if kind == "sum" else f"{core.max_nan(kind)}({a}, {b})"


def reduce_rows(core: Core, kinds: Sequence[str], rows: Sequence[RegRow | None]) -> None:
    """Prints the exchanges by which all threads of a row get what it is reduced to, but for rows that stay parts."""
    todo = [(kind, row) for kind, row in zip(kinds, rows, strict=True) if row is not None and not row.partial]
    if not todo:
        return
    with core.unrolled("h", 2):
        for kind, row in todo:
            for distance in (1, 2):
                other = f"__shfl_xor_sync(0xffffffffu, {row.name}[h], {distance})"
                core.writer.line(f"{row.name}[h] = {combined(core, kind, f'{row.name}[h]', other)};")
