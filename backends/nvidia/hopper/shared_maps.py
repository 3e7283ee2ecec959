"""Prints `tile.map` over a tile in shared memory: queries, keys or values that a user's function changes before they are multiplied."""

from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.structure import body, maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.tiles import SharedTile
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_BARRIER = 7
"""The named barrier of all consumers."""
_UNPACK = {"f16": "__half", "bf16": "__nv_bfloat16"}


class Changes:
    """Changes tiles in place; `threads` consumers share the work."""

    def __init__(self, core: Core, threads: int) -> None:
        self.core, self.threads = core, threads

    @for_op
    def print(self, op: ir.Operation) -> None:
        """Overwrites the tile that the map reads. Raises UnsupportedError where its old elements are needed, too."""
        core, writer, block = self.core, self.core.writer, body(op)
        reads = [inner for inner in operations(block) if inner.name == "tensor.extract"]
        sources = {read.operands[0] for read in reads}
        source = next(iter(sources))
        tile = core.tiles[source]
        here = all(list(read.operands)[1:] == list(block.arguments) for read in reads)
        if len(sources) != 1 or not here or not isinstance(tile, SharedTile) or len(list(op.results)) != 1 or self._read_later(source, op):
            raise UnsupportedError(f"hopper: this change of queries, keys or values cannot be made in place ({source_line(op.location)})")
        writer.line("// Each thread changes pairs of columns.")
        columns = core.columns(op.results[0].type)
        half = -(-columns // 2)
        # Rows that do not exist stay zero: weights of zero times infinity would be no number.
        count = op.operands[0]
        whole = not isinstance(count.owner, ir.Block) and count.owner.operation.name == "arith.constant"
        exists = "" if whole else f"at_row < {core.value(count)} ? "
        otherwise = f" : {_UNPACK[tile.element]}(0.0f)" if exists else ""
        with core.scope(f"for (int n = threadIdx.x; n < {tile.rows * half}; n += {self.threads})"):
            writer.line(f"const int at_row = n / {half}, at_column = n % {half} * 2;")
            place = f"at_column / 64 * {tile.atom_bytes} + attn::swizzle_128(at_row * 128 + at_column % 64 * 2)"
            writer.line(
                f"{_UNPACK[tile.element]} *at = reinterpret_cast<{_UNPACK[tile.element]} *>(memory + ({tile.address} - shared) + {place});"
            )
            core.scalars.bind(block.arguments[0], "at_row")
            for e in range(2 if columns > 1 else 1):
                with core.scope(f"if (at_column + {e} < {columns})" if columns % 2 and e else ""):
                    core.scalars.bind(block.arguments[1], f"(at_column + {e})")
                    for read in reads:
                        core.scalars.bind(read.results[0], f"at[{e}]")
                    writer.line(f"at[{e}] = {exists}{core.scalars.emit(yielded(block)[0])}{otherwise};")
        # wgmma reads what all warps have changed, through the asynchronous proxy.
        writer.line("attn::fence_proxy_async();", f"attn::named_sync({_BARRIER}, {self.threads});")
        core.tiles[op.results[0]] = tile

    def _read_later(self, source: ir.Value, op: ir.Operation) -> bool:
        """Whether anything but this map uses the tile."""
        return any(use.owner.operation != op and not _inside(use.owner.operation, op) for use in source.uses)


def _inside(inner: ir.Operation, op: ir.Operation) -> bool:
    parent = inner.parent
    return parent is not None and (parent == op or _inside(parent, op)) if parent is not None and parent.name != "func.func" else False


def changed(kernel_value: ir.Value) -> bool:
    """Whether a tile is made by a map."""
    op = maker(kernel_value)
    return op is not None and op.name == "tile.map"


__all__ = ["PACKS", "Changes", "changed"]
