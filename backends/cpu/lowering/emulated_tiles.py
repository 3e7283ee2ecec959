"""Tiles of AMX in memory, for machines without it: the same code but for these operations, so that tests can run it anywhere."""

from collections.abc import Callable

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.packing import WIDTH, word_type, word_vector
from attn_mlir.backends.cpu.lowering.pairs import dot_words
from attn_mlir.backends.cpu.lowering.tile_registers import SIDE, TileRegisters
from attn_mlir.mlir import ir, scf


class EmulatedTiles(TileRegisters):
    """A tile is the address of 16 rows of 16 words; `real`: whether the machine multiplies pairs of bf16."""

    def __init__(self, real: bool) -> None:
        self._real = real

    def zero(self) -> ir.Value:
        """See `TileRegisters.zero`."""
        tile = emit.room(SIDE * SIDE, word_type())
        _by_rows(lambda row: emit.store(emit.number(word_vector(), 0), _line(tile, row), alignment=64))
        return tile

    def load(self, address: ir.Value, stride: ir.Value) -> ir.Value:
        """See `TileRegisters.load`."""
        tile = emit.room(SIDE * SIDE, word_type())
        _by_rows(lambda row: emit.store(emit.load(word_vector(), _apart(address, row, stride), alignment=2), _line(tile, row), 64))
        return tile

    def multiply(self, total: ir.Value, left: ir.Value, right: ir.Value) -> ir.Value:
        """See `TileRegisters.multiply`."""
        tile = emit.room(SIDE * SIDE, word_type())
        sums = ir.VectorType.get([WIDTH], ir.F32Type.get())

        def line(row: ir.Value) -> None:
            loop = scf.ForOp(emit.index(0), emit.index(SIDE), emit.index(1), [emit.load(sums, _line(total, row), alignment=64)])
            with ir.InsertionPoint(loop.body):
                pair = loop.induction_variable
                word = emit.load(word_type(), emit.element_pointer(_line(left, row), pair, word_type()), alignment=4)
                other = emit.load(word_vector(), _line(right, pair), alignment=64)
                scf.YieldOp([dot_words(loop.inner_iter_args[0], other, emit.splat(word, WIDTH), self._real)])
            emit.store(loop.results[0], _line(tile, row), alignment=64)

        _by_rows(line)
        return tile

    def store(self, tile: ir.Value, address: ir.Value, stride: ir.Value) -> None:
        """See `TileRegisters.store`."""
        _by_rows(lambda row: emit.store(emit.load(word_vector(), _line(tile, row), 64), _apart(address, row, stride), alignment=4))


def _by_rows(body: Callable[[ir.Value], None]) -> None:
    loop = scf.ForOp(emit.index(0), emit.index(SIDE), emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        body(loop.induction_variable)
        scf.YieldOp([])


def _line(tile: ir.Value, row: ir.Value) -> ir.Value:
    return emit.element_pointer(tile, emit.mul(emit.to_i64(row), emit.integer(SIDE)), word_type())


def _apart(address: ir.Value, row: ir.Value, stride: ir.Value) -> ir.Value:
    return emit.element_pointer(address, emit.mul(emit.to_i64(row), stride), ir.IntegerType.get_signless(8))
