"""What depends on the difference of row and column alone: a number for each diagonal of a tile, in shared memory."""

from attn_mlir.backends.amd.mfma.core import MfmaCore
from attn_mlir.backends.amd.mfma.tiles import ROWS, STEP, WAVES, round_up
from attn_mlir.backends.gpu.structure import body, maker, operations, yielded
from attn_mlir.mlir import ir

_THREADS = 64 * WAVES


class MfmaBands:
    """Prints `tile.band`: its numbers are made by all threads, or where they are read if there is no room for them."""

    def __init__(self, core: MfmaCore) -> None:
        self.core = core
        self._staged: dict[ir.Value, tuple[int, int]] = {}
        """At which byte a band begins, and how many columns it has."""

    def stage(self, block: ir.Block, start: int, room: int) -> int:
        """Puts the bands of a block into shared memory from byte `start` on; returns where they end, at most at `room` where that is not 0.

        Number n is that of i - j = n - (columns - 1).
        """
        for op in operations(block):
            if op.name == "tile.band":
                start = self._stage(op, start, room)
        return start

    def _stage(self, op: ir.Operation, start: int, room: int) -> int:
        core, inner = self.core, body(op)
        columns = round_up(core.columns_of(op), STEP)
        count = ROWS * WAVES + columns - 1
        if room and start + 4 * count > room:
            return start
        number = core.names.fresh("diagonal")
        with core.scope(f"for (int {number} = attn::thread(); {number} < {count}; {number} += {_THREADS})"):
            last = f"max({core.value(op.operands[1])} - 1, 0)"
            core.scalars.bind(inner.arguments[0], f"max({number} - {columns - 1}, 0)")
            core.scalars.bind(inner.arguments[1], f"min(max({columns - 1} - {number}, 0), {last})")
            text = core.scalars.emit(yielded(inner)[0])
            core.writer.line(f"((float *)(memory + {start}))[{number}] = {text};")
        self._staged[op.results[0]] = (start, columns)
        return start + 4 * count

    def element(self, band: ir.Value, position: str) -> str:
        """The element of a band in this lane's row and a column."""
        if band in self._staged:
            start, columns = self._staged[band]
            return f"((const float *)(memory + {start}))[row - {position} + {columns - 1}]"
        inner = body(band.owner.operation)
        self.core.scalars.bind(inner.arguments[0], f"max(row - {position}, 0)")
        self.core.scalars.bind(inner.arguments[1], f"max({position} - row, 0)")
        return self.core.scalars.emit(yielded(inner)[0])


def elements_of_bands(block: ir.Block) -> dict[ir.Value, ir.Value]:
    """What a map reads of bands, and the bands."""
    reads = [op for op in operations(block) if op.name == "tensor.extract"]
    return {op.results[0]: op.operands[0] for op in reads if maker(op.operands[0], "tile.band") is not None}
