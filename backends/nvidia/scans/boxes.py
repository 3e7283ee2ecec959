"""Prints what one thread asks TMA for: tiles of 16 bits in swizzle atoms, whose bytes arrive at a barrier."""

from collections.abc import Sequence

from attn_mlir.backends.nvidia.scans.core import ScanCore
from attn_mlir.backends.nvidia.scans.layout import SharedPlace
from attn_mlir.backends.nvidia.scans.loops import shape_of
from attn_mlir.mlir import ir

ATOM = 64
"""Columns of a swizzle atom of a tile in shared memory: 128 bytes of a row."""


def atoms_of(place: SharedPlace) -> tuple[int, int]:
    """Bytes of a row, and from one swizzle atom to the next."""
    rows, columns = place.shape
    return (2 * ATOM, 2 * ATOM * rows) if columns % ATOM == 0 else (2 * columns, 0)


def bytes_of(loads: Sequence[ir.Operation]) -> int:
    """Those of the tiles."""
    return sum(2 * rows * columns for rows, columns in (shape_of(load.results[0]) for load in loads))


def box_lines(core: ScanCore, loads: Sequence[ir.Operation], arrival: str) -> list[str]:
    """Statements that ask for the tiles, which arrive at the barrier of this address."""
    lines: list[str] = []
    for load in loads:
        home = core.layout.places[load.results[0]]
        (rows, columns), view = shape_of(load.results[0]), core.view(load.operands[0])
        width = min(columns, ATOM)
        _, atom_bytes = atoms_of(home)
        descriptor = core.arguments.descriptor(view.argument, width, rows, 2 * width)
        given = dict(zip(view.dims, [core.value(value) for value in list(load.operands)[1:4]], strict=False))
        batch, head, row, column = (
            " + ".join(x for x in (offset, given.get(dim, "0")) if x != "0") or "0" for dim, offset in enumerate(view.offsets)
        )
        for atom in range(columns // width):
            to = f"attn::shared_address({core.at(home)}){f' + {atom * atom_bytes}' if atom else ''}"
            at = f"{column} + {atom * ATOM}" if atom else column
            lines.append(f"attn::tma_load({to}, {descriptor}, {arrival}, {at}, {row}, {head}, {batch});")
    return lines
