"""Sums of a tile's rows that begin again in every block of rows, without differences: fours of rows first, then sums of those."""

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.tiling.chunk_tiles import ChunkTiles, Element
from attn_mlir.passes.tiling.scalars import constant_float, constant_index


@dataclass(frozen=True)
class BlockSums:
    """Builds sums of tiles of so many columns: of later rows in forward scans, of earlier ones in backward scans."""

    block: ChunkTiles
    columns: int

    def of(self, levels: Mapping[int, Element], rows: int, nearest: int) -> Element:
        """The sums of `levels[h]` over the rows of each one's block of h (a power of two) that lie at least `nearest` away from it."""
        small, large = ({h: x for h, x in levels.items() if (h < 4) == few} for few in (True, False))
        if large:
            small[4] = self._tile(rows, lambda i, d: self._total(x(i, d) for x in large.values()))
        fours = {h // 4: self._fours(x, rows) for h, x in large.items() if h > 4}
        less = -(-rows // 4)
        beyond = self._tile(less, self.of(fours, less, 1)) if fours else None

        def sums(i: ir.Value, d: ir.Value) -> ir.Value:
            found = [self._away(x, (i, d), distance, h, rows) for h, x in small.items() for distance in range(nearest, h)]
            if beyond is not None:
                found.append(beyond(arith.DivUIOp(i, constant_index(4)).result, d))
            return self._total(found)

        return sums

    def _fours(self, x: Element, rows: int) -> Element:
        """The sums of every four rows."""

        def four(i: ir.Value, d: ir.Value) -> ir.Value:
            first = arith.MulIOp(i, constant_index(4)).result
            return self._total(self._present(x, (arith.AddIOp(first, constant_index(n)).result, d), rows) for n in range(4))

        return self._tile(-(-rows // 4), four)

    def _away(self, x: Element, at: tuple[ir.Value, ir.Value], distance: int, h: int, rows: int) -> ir.Value:
        """The element so many rows away from one; 0 outside of its block of h rows."""
        (i, d), step = at, constant_index(distance)
        if not distance:
            return x(i, d)
        place = arith.RemUIOp(i, constant_index(h)).result
        if self.block.forward:
            inside = arith.CmpIOp(arith.CmpIPredicate.ult, place, constant_index(h - distance)).result
            value = self._present(x, (arith.AddIOp(i, step).result, d), rows)
        else:
            inside = arith.CmpIOp(arith.CmpIPredicate.uge, place, step).result
            value = x(arith.SubIOp(arith.MaxUIOp(i, step).result, step).result, d)
        return arith.SelectOp(inside, value, self._zero()).result

    def _present(self, x: Element, at: tuple[ir.Value, ir.Value], rows: int) -> ir.Value:
        """An element, 0 after the last row."""
        (i, d), last = at, constant_index(rows - 1)
        exists = arith.CmpIOp(arith.CmpIPredicate.ule, i, last).result
        return arith.SelectOp(exists, x(arith.MinUIOp(i, last).result, d), self._zero()).result

    def _tile(self, rows: int, element: Element) -> Element:
        """The elements of a tile made now."""
        (made,) = self.block.map([self.block.tile([rows, self.columns])], lambda i, d: [element(i, d)])
        return lambda i, d: tensor.ExtractOp(made, [i, d]).result

    def _total(self, values: Iterable[ir.Value]) -> ir.Value:
        found = list(values)
        return functools.reduce(lambda x, y: arith.AddFOp(x, y).result, found) if found else self._zero()

    def _zero(self) -> ir.Value:
        return constant_float(self.block.score, 0.0)
