"""What the positions of a chunk add to its output where channels have decays of their own.

A weight w(t, s) = w(t, r) w(r, s) splits at any r between s and t, into two factors of at most 1. Pairs whose positions first differ in
bit h of their numbers lie in neighbouring blocks of h positions: r is the last position of the earlier one, and all such pairs are one
product of tiles. Pairs within `sub` positions are computed one by one.
"""

import functools

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_rows import RowFactors
from attn_mlir.passes.tiling.chunk_tiles import ChunkTiles, Element
from attn_mlir.passes.tiling.frame import loop
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index


class Levels:
    """Builds it for one chunk; `sub` positions have their pairs computed one by one."""

    def __init__(self, block: ChunkTiles, decays: Decays, sub: int) -> None:
        self._block, self._decays = block, decays
        self._size = block.size
        # Blocks of `sub` fill the chunk.
        self._sub = self._size if self._size <= sub else min(sub, self._size & -self._size)
        self._zero = constant_float(block.score, 0.0)
        self._levels = [self._sub << n for n in range(self._size.bit_length()) if self._sub << n < self._size]

    def by_key(self, o: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what is added, for decays of the columns of q and k."""
        pairs = self.pairs_by_key(q, k, self._block.element)
        for factor in self._block.factors(v):
            o = build.dot_accumulate(o, None, pairs, factor)
        return o

    def pairs_by_key(self, q: ir.Value, k: ir.Value, element: ir.Type) -> ir.Value:
        """The weighted products of q and k for such decays, [C, C]; 0 where a position is not present."""
        block, decays = self._block, self._decays
        (weights,) = self.products_by_key([(q, k, decays.reads_own)])

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            value = decays.of_rows.of_pair(tensor.ExtractOp(weights, [i, j]).result, i, j)
            return [cast_float(arith.SelectOp(decays.present(i, j), value, self._zero).result, element)]

        return block.map([block.tile([self._size, self._size], element)], body)[0]

    def products_by_key(self, pairs: list[tuple[ir.Value, ir.Value, bool]]) -> list[ir.Value]:
        """The products of readers and keys with the decays between positions alone, [C, C], of all `pairs` together: a reader's rows, a
        key's, and whether positions read themselves.

        Elements of pairs that no reader reads have no meaning. A level's tiles are made by one map, as their factors are the same: of the
        rows of a pair of blocks, those of one are scaled as readers, those of the other as keys, towards the boundary between them.
        """
        block, made = self._block, self._block.pair_products
        missing = [pair for pair in dict.fromkeys(pairs) if (self._decays.prefix, *pair) not in made]
        weights = [self._near_by_key(*pair) for pair in missing]
        tiles = list(dict.fromkeys(tile for q, k, _ in missing for tile in (q, k)))
        for h in self._levels if missing else []:
            scaled = dict(zip(tiles, self._towards_boundary(tiles, h), strict=True))
            for number, (q, k, _) in enumerate(missing):
                product = build.dot(scaled[q], scaled[k], block.score, transpose_b=True)
                weights[number] = self._with_level(weights[number], product, h)
        made.update({(self._decays.prefix, *pair): value for pair, value in zip(missing, weights, strict=True)})
        return [made[self._decays.prefix, *pair] for pair in pairs]

    def _with_level(self, near: ir.Value, product: ir.Value, h: int) -> ir.Value:
        """[C, C]: `near`, and `product` where positions first differ in h or a higher bit."""

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            far = arith.CmpIOp(arith.CmpIPredicate.uge, arith.XOrIOp(i, j).result, constant_index(h)).result
            return [arith.SelectOp(far, tensor.ExtractOp(product, [i, j]).result, tensor.ExtractOp(near, [i, j]).result).result]

        return self._block.map([self._block.tile([self._size, self._size])], body)[0]

    def _towards_boundary(self, tiles: list[ir.Value], h: int) -> list[ir.Value]:
        """Tiles, in the inputs' element type, times the decays between each position and the boundary that its pairs of level h cross."""
        block, decays = self._block, self._decays

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            size, last = constant_index(h), constant_index(self._size - 1)
            odd = arith.AndIOp(arith.DivUIOp(i, size).result, constant_index(1)).result
            later = arith.CmpIOp(arith.CmpIPredicate.eq, odd, constant_index(1)).result
            begin = arith.MulIOp(arith.DivUIOp(i, constant_index(2 * h)).result, constant_index(2 * h)).result
            boundary = arith.MinSIOp(arith.AddIOp(begin, constant_index(h - 1)).result, last).result
            weight = decays.towards(boundary, i, later, d)
            rows = [cast_float(tensor.ExtractOp(tile, [i, d]).result, block.score) for tile in tiles]
            return [cast_float(arith.MulFOp(row, weight).result, block.element) for row in rows]

        types = [block.tile(ir.RankedTensorType(tile.type).shape, block.element) for tile in tiles]
        return block.map(types, body)

    def by_value(self, o: ir.Value, products: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what is added, for decays of the columns of v; `products` is q k^T."""
        block = self._block
        for h in self._levels:
            part = self._far_by_value(h, products, v)

            def add(i: ir.Value, d: ir.Value, o: ir.Value = o, part: Element = part) -> list[ir.Value]:
                x = part(i, d)
                return [arith.AddFOp(tensor.ExtractOp(o, [i, d]).result, x).result]

            (o,) = block.map([o.type], add)
        return self._near_by_value(o, products, v)

    def by_value_apart(self, products: ir.Value, v: ir.Value) -> dict[int, ir.Value]:
        """What is added, [C, V], by the highest bit h in which the positions of a pair differ: blocks of h that are neighbours."""
        tile = self._block.tile(ir.RankedTensorType(v.type).shape)
        near = [1 << n for n in range((self._sub - 1).bit_length())]
        parts: dict[int, Element] = {h: lambda i, d, h=h: self._neighbours_by_value(h, products, v, (i, d)) for h in near}
        parts |= {h: self._far_by_value(h, products, v) for h in self._levels}
        return {h: self._block.map([tile], lambda i, d, part=part: [part(i, d)])[0] for h, part in parts.items()}

    def _far_by_value(self, h: int, products: ir.Value, v: ir.Value) -> Element:
        """What pairs that differ in h add."""
        block, decays = self._block, self._decays
        forward = block.forward
        # What is added is scaled by at most 1 and rounded: seen from the position of its block that is next to the other one.
        of_v = self._scaling(v, lambda s, d: decays.weight(self._pivot(s, h, not forward, not forward), s, d))
        first, *rests = block.pieces(list(ir.RankedTensorType(v.type).shape), of_v, block.two_pieces)

        def far(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            level = arith.AndIOp(decays.present(i, j), self._differ_in(i, j, h)).result
            return [cast_float(arith.SelectOp(level, tensor.ExtractOp(products, [i, j]).result, self._zero).result, block.element)]

        (own,) = block.map([block.tile([self._size, self._size], block.element)], far)
        part = build.dot(own, first, block.score, transpose_b=False)
        for rest in rests:
            part = build.dot_accumulate(part, None, own, rest)

        def element(i: ir.Value, d: ir.Value) -> ir.Value:
            weight = decays.weight(i, self._pivot(i, h, forward, not forward), d)
            return arith.MulFOp(tensor.ExtractOp(part, [i, d]).result, weight).result

        return element

    def _near_by_key(self, q: ir.Value, k: ir.Value, own: bool) -> ir.Value:
        """The products of pairs within `sub` positions, among them those of positions with themselves where `own`; 0 elsewhere."""
        block, decays = self._block, self._decays.read_by(RowFactors(), strict=not own)
        type_ = block.tile([self._size, self._size])
        initial = build.fill(self._zero, type_.shape, 1)
        if self._sub == 1 and not own:
            return initial

        def step(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            def pair(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
                s = self._partner(i, n)
                x, y = (cast_float(tensor.ExtractOp(t, [at, d]).result, block.score) for t, at in ((q, i), (k, s)))
                if self._sub == 1:
                    return [], [arith.MulFOp(x, y).result]
                product = arith.MulFOp(arith.MulFOp(x, y).result, decays.between(i, s, d)).result
                return [], [arith.SelectOp(decays.present(i, s), product, self._zero).result]

            extents = [constant_index(self._size), constant_index(ir.RankedTensorType(q.type).shape[1])]
            _, (scores,) = build.map_(extents, [], [block.tile([self._size])], ["sum"], pair)

            def put(i: ir.Value, j: ir.Value) -> list[ir.Value]:
                own = arith.CmpIOp(arith.CmpIPredicate.eq, j, self._partner(i, n)).result
                x, old = tensor.ExtractOp(scores, [i]).result, tensor.ExtractOp(carried[0], [i, j]).result
                return [arith.SelectOp(own, x, old).result]

            return block.map([type_], put)

        if self._sub == 1:
            return step(constant_index(0), [initial])[0]
        return loop(constant_index(0), constant_index(self._sub), constant_index(1), [initial], step)[0]

    def _near_by_value(self, o: ir.Value, products: ir.Value, v: ir.Value) -> ir.Value:
        block = self._block

        def step(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
                x = self._pair(products, v, self._partner(i, n), (i, d))
                return [arith.AddFOp(tensor.ExtractOp(carried[0], [i, d]).result, x).result]

            return block.map([o.type], body)

        return loop(constant_index(0), constant_index(self._sub), constant_index(1), [o], step)[0]

    def _neighbours_by_value(self, h: int, products: ir.Value, v: ir.Value, at: tuple[ir.Value, ir.Value]) -> ir.Value:
        """What the other positions of a block of 2 h that lie in the other half of it add to one of them."""
        (i, _), size, last = at, constant_index(h), constant_index(self._size - 1)
        first = arith.MulIOp(arith.XOrIOp(arith.DivUIOp(i, size).result, constant_index(1)).result, size).result
        parts: list[ir.Value] = []
        for n in range(h):
            s = arith.AddIOp(first, constant_index(n)).result
            within = arith.CmpIOp(arith.CmpIPredicate.ule, s, last).result
            x = self._pair(products, v, arith.MinUIOp(s, last).result, at)
            parts.append(arith.SelectOp(within, x, self._zero).result)
        return functools.reduce(lambda x, y: arith.AddFOp(x, y).result, parts)

    def _pair(self, products: ir.Value, v: ir.Value, s: ir.Value, at: tuple[ir.Value, ir.Value]) -> ir.Value:
        """What position s adds to another one's column."""
        (i, d), block, decays = at, self._block, self._decays
        value = cast_float(tensor.ExtractOp(v, [s, d]).result, block.score)
        x = arith.MulFOp(tensor.ExtractOp(products, [i, s]).result, decays.weight(i, s, d)).result
        return arith.SelectOp(decays.present(i, s), arith.MulFOp(x, value).result, self._zero).result

    def _scaling(self, tile: ir.Value, weight: Element) -> Element:
        """The elements of a tile times `weight(row, column)`."""

        def element(i: ir.Value, d: ir.Value) -> ir.Value:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, self._block.score)
            return arith.MulFOp(x, weight(i, d)).result

        return element

    def _pivot(self, position: ir.Value, h: int, later: bool, of_later: bool = False) -> ir.Value:
        """The last position of the earlier of two neighbouring blocks of h, or the first `of_later`; `later`: `position` lies there."""
        size = constant_index(h)
        begin = arith.MulIOp(arith.DivUIOp(position, size).result, size).result
        if later and of_later:
            return begin
        if later:  # where there is no block before, nothing reads what is computed
            return arith.SubIOp(arith.MaxSIOp(begin, constant_index(1)).result, constant_index(1)).result
        away = arith.AddIOp(begin, constant_index(h if of_later else h - 1)).result
        return arith.MinSIOp(away, constant_index(self._size - 1)).result

    def _partner(self, position: ir.Value, n: ir.Value) -> ir.Value:
        """Position n of the block of `sub` that `position` lies in."""
        if self._sub == 1:
            return position
        if self._size == self._sub:
            return n
        size = constant_index(self._sub)
        return arith.AddIOp(arith.MulIOp(arith.DivUIOp(position, size).result, size).result, n).result

    def _differ_in(self, i: ir.Value, j: ir.Value, h: int) -> ir.Value:
        """Whether h is the highest bit in which two positions differ (a power of two times `sub`, for blocks of `sub`)."""
        differ = arith.XOrIOp(i, j).result
        least = arith.CmpIOp(arith.CmpIPredicate.uge, differ, constant_index(h)).result
        return arith.AndIOp(least, arith.CmpIOp(arith.CmpIPredicate.ult, differ, constant_index(2 * h)).result).result
