"""Keys in pages of any size (key lists of single keys): the lanes of the producer copy each row from where a table says it is."""

from collections.abc import Sequence

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

HEADER = "attn_gather.cuh"
ARRIVALS = 33
"""Those of a full stage: all lanes, when what they copied is there, and one when the rest is."""
GATHERING = {1: (240, 120), 2: (216, 72)}
"""By the number of consumer warpgroups: registers of a consumer and of a producer thread, which holds addresses of many rows."""
_ALIGN = 8
"""Elements of what a lane copies at a time."""


def find_rows(core: Core, source: ir.Value, table: ir.Value, rows: int, place: list[str]) -> None:
    """Lane l looks where rows l, l + 32, ... of a block of keys at `place` are. Pages that there are not are as rows that there are not."""
    (begin, _, batch, count), each = place, -(-rows // 32)
    size, pages = core.arguments.size(source, 2), core.arguments.size(source, 0)
    core.writer.line(f"int pages[{each}], places[{each}];")
    with core.writer.unrolled("i", each):
        core.writer.line(f"const int row = 32 * i + lane, at = {begin} + row;")
        page = core.arguments.element(table, [batch, f"(at / {size})"])
        core.writer.line(f"const int page = row < {count} ? {page} : -1;")
        core.writer.line(f"pages[i] = page < {pages} ? page : -1, places[i] = at % {size};")


def send_rows(core: Core, source: ir.Value, tile: tuple[int, int], head: str, to: str, barrier: str, lines: Sequence[str]) -> None:
    """Copies them into a free stage, of rows and columns `tile`; one lane does before what `lines` say."""
    rows, columns = tile
    if columns % _ALIGN or rows % 8:
        raise UnsupportedError(f"hopper: rows are copied one by one where they have a multiple of {_ALIGN} columns, not {columns}")
    with core.writer.block("if (lane == 0)"):
        core.writer.line(*lines, f"attn::barrier_arrive({barrier});")
    pointer = core.arguments.pointer(source, _ALIGN)
    strides = [core.arguments.stride(source, dim) for dim in (0, 2, 1)]
    from_ = f"{pointer} + {head} * {strides[2]}"
    core.writer.line(f"attn::gather_rows<{rows}, {columns}>({from_}, {strides[0]}, {strides[1]}, pages, places, {to}, {barrier}, lane);")
