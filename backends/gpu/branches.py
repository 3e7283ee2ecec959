"""Branches that all threads take together, and whose tiles are changed in place."""

from collections.abc import Callable, Collection
from typing import Any

from attn_mlir.backends.gpu.structure import body, is_row, is_tile, yielded
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


def print_branch(
    core: Any, op: ir.Operation, partial: Collection[ir.Value], block: Callable[[ir.Block], None], put: Callable[[Any, Any], bool]
) -> None:
    """Prints an `scf.if`, each side by `block`.

    `partial` are rows of which threads hold parts; put(target, tile) assigns one row to another, and is false for other tiles.
    """
    condition = core.value(op.operands[0])
    results: list[Any] = []
    for value, result in zip(yielded(body(op)), op.results, strict=True):
        if not is_tile(value):
            raise UnsupportedError(f"{core.emitter}: a branch yields {result}, a scalar ({source_line(op.location)})")
        results.append(core.row("chosen", partial=result in partial) if is_row(value.type) else None)
    for number, region in enumerate(op.regions):
        if not list(region.blocks):  # there is no other branch
            continue
        with core.scope(f"if ({condition})" if number == 0 else "else"):
            block(region.blocks[0])
            for position, value in enumerate(yielded(region.blocks[0])):
                tile, target = core.tiles[value], results[position]
                if put(target, tile):
                    continue
                if target is None:
                    results[position] = tile
                elif tile != target:
                    where = source_line(op.location)
                    raise UnsupportedError(f"{core.emitter}: the sides of a branch leave a tile in different places ({where})")
    core.tiles.update({result: tile for result, tile in zip(op.results, results, strict=True) if tile is not None})
