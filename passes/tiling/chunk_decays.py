"""The log decays of one chunk summed up, and the factors that follow from the sums and from mods of rows."""

import copy
from collections.abc import Callable

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, memref, tensor
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling.chunk_rows import RowFactors
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkInput, ChunkTiles
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index


class Decays:
    """The sums of one chunk, or where they are not `summed`, its `steps` alone. With `strict`, a position is not present to itself.

    `rows` are further factors, of its positions.
    """

    def __init__(self, block: ChunkTiles, chunk: Chunk, strict: bool = False, summed: bool = True, rows: RowFactors | None = None) -> None:
        self._block, self.chunk, self._strict = block, chunk, strict
        self.of_rows = rows or RowFactors()
        decay, mod = block.inputs.decay, piece(block.op, "attn.decay")
        self.steps: ir.Value | None = None
        self._prefix: ir.Value | None = None
        self._width = {"none": None, "key": block.keys, "value": block.inputs.columns}[block.channels]
        if decay is not None or mod is not None:
            self.steps = self._steps(decay, mod)
            self._prefix = build.cumsum(self.steps) if summed else None
        self._all = self._sum(constant_index(block.size - 1), None) if self._width is None else None

    def _steps(self, decay: ChunkInput | None, mod: ir.Operation | None) -> ir.Value:
        """The log decay of every position; 0 past the end."""
        block, chunk = self._block, self.chunk
        zero = constant_float(block.wide, 0.0)
        shape = [block.size] if self._width is None else [block.size, self._width]
        rows = block.load(decay, chunk) if len(shape) == 2 and decay is not None else None

        def body(i: ir.Value, *d: ir.Value) -> list[ir.Value]:
            position = block.position_of(chunk, i)
            g = constant_float(block.score, 0.0)
            if rows is not None:
                g = cast_float(tensor.ExtractOp(rows, [i, *d]).result, block.score)
            elif decay is not None:
                g = cast_float(memref.LoadOp(decay.memory, [block.sequence.batch, decay.head, position]).result, block.score)
            if mod is not None:
                channel = block.channel(d[0], block.channels == "value") if d else constant_index(0)
                places = [block.sequence.batch, block.sequence.head, position, channel]
                (g,) = block.frame.scalars().inline(block_of(mod), [g, *places])
            return [arith.SelectOp(self.exists(i), cast_float(g, block.wide), zero).result]

        return block.map([block.tile(shape, block.wide)], body)[0]

    def for_queries(self, of_rows: RowFactors) -> "Decays":
        """The same with factors of another q and other rows of o."""
        other = copy.copy(self)
        other.of_rows = RowFactors(of_rows.left, self.of_rows.right, of_rows.skip)
        return other

    def read_by(self, of_rows: RowFactors, strict: bool) -> "Decays":
        """The same for another reader, with factors of rows of its own."""
        other = copy.copy(self)
        other.of_rows, other._strict = of_rows, strict
        return other

    def exists(self, i: ir.Value) -> ir.Value:
        """Whether row i is a position of the sequence."""
        return arith.CmpIOp(arith.CmpIPredicate.slt, i, self.chunk.count).result

    @property
    def prefix(self) -> ir.Value | None:
        """The sums; None without decays."""
        return self._prefix

    @property
    def reads_own(self) -> bool:
        """Whether a position is present to itself."""
        return not self._strict

    def _sum(self, i: ir.Value, d: ir.Value | None) -> ir.Value:
        """The log decays up to row i (of channel d)."""
        if self._prefix is None:
            return constant_float(self._block.score, 0.0)
        return tensor.ExtractOp(self._prefix, [i] if self._width is None or d is None else [i, d]).result

    def _total(self, d: ir.Value | None) -> ir.Value:
        return self._all if self._all is not None else self._sum(constant_index(self._block.size - 1), d)

    def _factor(self, name: str, i: ir.Value, d: ir.Value | None) -> ir.Value:
        """`attn.output_decay` or `attn.input_decay` of row i; rows past the end do not enter."""
        value = self._block.factor(name, [self._sum(i, d), self._total(d)])
        if name == "attn.output_decay":
            return self.of_rows.of_query(value, i)
        value = self.of_rows.of_key(value, i)
        return arith.SelectOp(self.exists(i), value, constant_float(self._block.score, 0.0)).result

    def rows(self, name: str) -> ir.Value:
        """A factor for every row."""
        return self._block.map([self._block.tile([self._block.size])], lambda i: [self._factor(name, i, None)])[0]

    def chunk_decay(self, rows: int) -> ir.Value:
        """The factor of every row of the state, in the type of carries."""
        block = self._block
        return block.map(
            [block.tile([rows], block.carried_in)], lambda i: [block.factor("attn.chunk_decay", [self._total(i)], block.carried_in)]
        )[0]

    def scaling(self, name: str, tile: ir.Value) -> Callable[[ir.Value, ir.Value], ir.Value]:
        """The elements of a tile, each row (or element, where decays have its channels) multiplied by its factor."""
        block = self._block
        by_row = self.rows(name) if self._width is None else None

        def element(i: ir.Value, d: ir.Value) -> ir.Value:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, block.score)
            factor = self._factor(name, i, d) if by_row is None else tensor.ExtractOp(by_row, [i]).result
            return arith.MulFOp(x, factor).result

        return element

    def scaled(self, name: str, tile: ir.Value, element: ir.Type | None = None) -> ir.Value:
        """The tile of these elements, in the type that products multiply or another one."""
        block, at = self._block, self.scaling(name, tile)
        made = block.tile(ir.RankedTensorType(tile.type).shape, element or block.element)
        return block.map([made], lambda i, d: [cast_float(at(i, d), made.element_type)])[0]

    def present(self, i: ir.Value, j: ir.Value) -> ir.Value:
        """Whether position j adds to the output of position i."""
        names = ("sgt", "slt") if self._strict else ("sge", "sle")
        before = getattr(arith.CmpIPredicate, names[0 if self._block.forward else 1])
        return arith.AndIOp(arith.CmpIOp(before, i, j).result, self.exists(j)).result

    def weighted(self, products: ir.Value, skip: ir.Value | None = None) -> Callable[[ir.Value, ir.Value], ir.Value]:
        """The elements of q k^T with its weights, 0 for absent pairs, and with `skip`, [C], what rows get of their own besides."""
        block = self._block
        zero = constant_float(block.score, 0.0)

        def element(i: ir.Value, j: ir.Value) -> ir.Value:
            weight = block.factor("attn.decay_mask", [self._sum(i, None), self._sum(j, None)])
            x = self.of_rows.of_pair(arith.MulFOp(tensor.ExtractOp(products, [i, j]).result, weight).result, i, j)
            x = arith.SelectOp(self.present(i, j), x, zero).result
            if skip is None:
                return x
            own = arith.CmpIOp(arith.CmpIPredicate.eq, i, j).result
            return arith.SelectOp(own, arith.AddFOp(x, tensor.ExtractOp(skip, [i]).result).result, x).result

        return element

    def weight(self, t: ir.Value, s: ir.Value, d: ir.Value | None) -> ir.Value:
        """The factor of position s at position t (in channel d)."""
        return self.of_rows.of_pair(self.between(t, s, d), t, s)

    def between(self, t: ir.Value, s: ir.Value, d: ir.Value | None) -> ir.Value:
        """The same without factors of rows."""
        return self._block.factor("attn.decay_mask", [self._sum(t, d), self._sum(s, d)])

    def towards(self, boundary: ir.Value, i: ir.Value, later: ir.Value, d: ir.Value) -> ir.Value:
        """The factor between a position and one that is before it in its direction where it is `later`, and after it elsewhere.

        Sums are chosen, not positions: those of the position itself are read at one place, and need not be found again.
        """
        own, other = self._sum(i, d), self._sum(boundary, d)
        before, after = (other, own) if self._block.forward else (own, other)
        t, s = (arith.SelectOp(later, x, y).result for x, y in ((after, before), (before, after)))
        return self._block.factor("attn.decay_mask", [t, s])
