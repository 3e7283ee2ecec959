"""Builds the work on one block of pairs: products, one map for all weights, and what is summed with them."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.regions import block_of, piece, pieces
from attn_mlir.passes.tiling.frame import Frame
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index, keep, known_index
from attn_mlir.passes.tiling.scatter import depends_on
from attn_mlir.passes.tiling.work import Span

_QUERY = 2  # where q_idx stands among the positions of a scatter


class PairPlan:
    """What a kernel of pairs computes: which products, which weights as tiles of which type, and where each output goes.

    Outputs are numbered as the results of the function. `rows` are scatters whose index is the same for all queries.
    """

    def __init__(self, pairs: ir.Operation, makers: Sequence[ir.Operation]) -> None:
        self.pairs, self.makers = pairs, list(makers)
        self.mask = piece(pairs, "attn.mask")
        self.listed = piece(pairs, "attn.key_lists") is not None
        self.pair = block_of(pieces(pairs, "attn.pair")[0])
        self.products = [list(op.operands) for op in pieces(pairs, "attn.product")]
        self.score = self.pair.arguments[0].type
        self.query_sums = [n for n, op in enumerate(makers) if op.name == "attn.query_sum"]
        self.key_sums = [n for n, op in enumerate(makers) if op.name == "attn.key_sum"]
        scatters = [n for n, op in enumerate(makers) if op.name == "attn.scatter"]
        self.rows = [n for n in scatters if not depends_on(block_of(makers[n]), _QUERY)]
        self.cells = [n for n in scatters if n not in self.rows]
        self.row_weights = list(dict.fromkeys(self.weight(n) for n in self.rows))
        needed = list(dict.fromkeys(weight for op in makers for weight in _weights(op)))
        self.used = [k for k in range(len(self.products)) if depends_on(self.pair, k, needed)]
        self.tiles: dict[ir.Type, list[int]] = {}
        for n in [*self.query_sums, *self.key_sums]:
            for weight, term in self.terms(n):
                self._add_tile(ir.RankedTensorType(term.type).element_type, weight)
        for n in self.cells:
            self._add_tile(self.score, self.weight(n))

    def _add_tile(self, element: ir.Type, weight: int) -> None:
        weights = self.tiles.setdefault(element, [])
        if weight not in weights:
            weights.append(weight)

    def weight(self, output: int) -> int:
        """The weight that a scatter adds."""
        return _weights(self.makers[output])[0]

    def terms(self, output: int) -> list[tuple[int, ir.Value]]:
        """The weights and tensors that a sum multiplies."""
        op = self.makers[output]
        return list(zip(_weights(op), list(op.operands)[1:], strict=True))


def _weights(op: ir.Operation) -> list[int]:
    if op.name == "attn.scatter":
        return [ir.IntegerAttr(op.attributes["weight"]).value]
    return list(ir.DenseI64ArrayAttr(op.attributes["weights"]))


@dataclass(frozen=True)
class KeyBlock:
    """`count` keys from `kv` on, of one head; tiles have `rows` rows, those past `count` stand for the last key.

    `slots`: where the program scatters to, and where it adds up sums over keys. The spans tell where positions lie in memory.
    """

    slots: tuple[ir.Value, ir.Value]
    b: ir.Value
    head: ir.Value
    kv: ir.Value
    count: ir.Value
    rows: int
    of_queries: Span
    of_keys: Span

    def place(self) -> tuple[ir.Value, ir.Value, ir.Value, ir.Value]:
        """The keys in memory."""
        return self.of_keys.batch, self.head, self.of_keys.row(self.kv), self.count

    def end(self) -> ir.Value:
        """Position after the last key."""
        return arith.AddIOp(self.kv, self.count).result

    def position(self, i: ir.Value) -> ir.Value:
        """Position of row i."""
        last = arith.SubIOp(self.count, constant_index(1)).result
        return arith.AddIOp(self.kv, arith.MinSIOp(i, last).result).result


class PairBlocks:
    """Builds blocks of queries for one block of keys."""

    def __init__(self, plan: PairPlan, frame: Frame, keys: KeyBlock) -> None:
        """Loads the keys: as rows of tiles for the products, and as they are for sums over keys."""
        self._plan, self._frame, self._keys = plan, frame, keys
        place = keys.place()
        self._lanes: dict[ir.Value, ir.Value] = {}
        for k in plan.used:
            key = plan.products[k][1]
            if key not in self._lanes:
                self._lanes[key] = build.load(frame.get(key), *place, keys.rows)
        self._rows: dict[ir.Value, ir.Value] = {}
        for n in plan.query_sums:
            for _, term in plan.terms(n):
                if term not in self._rows:
                    self._rows[term] = build.load(frame.get(term), *place)
        self._track = bool(plan.rows) and (plan.mask is not None or plan.listed)
        self.h = keys.head
        self._columns = ir.ShapedType.get_dynamic_size()
        self.kept: ir.Value | None = None
        """Bits that say which keys of the block the queries list; None: all of them."""

    @property
    def row_states(self) -> int:
        """How many values per key are carried over queries: sums to scatter, and whether any query was present."""
        return len(self._plan.row_weights) + self._track

    def build(self, row: ir.Value, count: ir.Value, carried: list[ir.Value], masked: bool) -> list[ir.Value]:
        """Emits the block of `count` queries from `row` on; returns the carried values after it."""
        plan = self._plan
        queries: dict[ir.Value, ir.Value] = {}
        span = self._keys.of_queries
        first = span.row(row)
        self._columns = known_index(count) or ir.ShapedType.get_dynamic_size()

        def query(value: ir.Value) -> ir.Value:
            if value not in queries:
                queries[value] = build.load(self._frame.get(value), span.batch, self.h, first, count, known_index(count))
            return queries[value]

        products = {k: build.dot(self._lanes[plan.products[k][1]], query(plan.products[k][0]), plan.score, True) for k in plan.used}
        tiles, sums = self._weigh(products, row, count, masked)
        after = []
        for accumulator, n in zip(carried, plan.key_sums, strict=False):
            for weight, term in plan.terms(n):
                element = ir.RankedTensorType(term.type).element_type
                accumulator = build.dot_accumulate(accumulator, None, tiles[element, weight], query(term))
            after.append(accumulator)
        place = (self._keys.slots[1], span.batch, self.h, first)
        for n in plan.query_sums:
            for weight, term in plan.terms(n):
                weights = tiles[ir.RankedTensorType(term.type).element_type, weight]
                build.accumulate(weights, self._rows[term], self._frame.outputs[n], place, count)
        for n in plan.cells:
            self._scatter_cells(n, tiles[plan.score, plan.weight(n)], row, count, masked)
        return [*after, *self._carry(carried[len(plan.key_sums) :], sums)]

    def _weigh(
        self, products: dict[int, ir.Value], row: ir.Value, count: ir.Value, masked: bool
    ) -> tuple[dict[tuple[ir.Type, int], ir.Value], list[ir.Value]]:
        """All weights as tiles, and what is summed over the queries of the block."""
        plan = self._plan
        kinds = ["sum"] * len(plan.row_weights) + ["max"] * self._track
        # A map makes tiles of one type; further types are rounded from the score type.
        first = next(iter(plan.tiles)) if len(plan.tiles) == 1 else plan.score
        weights = list(dict.fromkeys(w for of_type in plan.tiles.values() for w in of_type))
        if not weights and not kinds:
            return {}, []

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            positions = [self._keys.b, self.h, arith.AddIOp(row, j).result, self._keys.position(i)]
            present = self._present(positions, i, masked)
            known = dict(zip(list(plan.pair.arguments)[-4:], positions, strict=True))
            for k, tile in products.items():
                known[plan.pair.arguments[k]] = tensor.ExtractOp(tile, [i, j]).result
            emitter = self._frame.scalars(known)
            yielded = list(plan.pair.operations[-1].operation.operands)
            values = {w: keep(present, emitter.emit(yielded[w]), 0.0) for w in [*weights, *plan.row_weights]}
            one = constant_float(plan.score, 1.0)
            seen = [keep(present, one, 0.0)] if self._track else []
            return [cast_float(values[w], first) for w in weights], [*[values[w] for w in plan.row_weights], *seen]

        extents = [constant_index(self._keys.rows), count]
        sums = [ir.RankedTensorType.get([self._keys.rows], plan.score)] * len(kinds)
        tiles, rows = build.map_(extents, [self._tile(first)] * len(weights), sums, kinds, body)
        made = {(first, w): tile for w, tile in zip(weights, tiles, strict=True)}
        for element, wanted in plan.tiles.items():
            if element != first:
                rounded = self._round([made[first, w] for w in wanted], element, extents)
                made.update({(element, w): tile for w, tile in zip(wanted, rounded, strict=True)})
        return made, rows

    def _tile(self, element: ir.Type) -> ir.Type:
        return ir.RankedTensorType.get([self._keys.rows, self._columns], element)

    def _round(self, tiles: list[ir.Value], element: ir.Type, extents: list[ir.Value]) -> list[ir.Value]:
        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return [cast_float(tensor.ExtractOp(tile, [i, j]).result, element) for tile in tiles], []

        return build.map_(extents, [self._tile(element)] * len(tiles), [], [], body)[0]

    def _present(self, positions: list[ir.Value], i: ir.Value, masked: bool) -> ir.Value | None:
        """Whether the pair of row i is there; None where all are. With `masked` the mask decides, too."""
        present = None
        if self.kept is not None:
            bit = arith.AndIOp(arith.ShRSIOp(self.kept, i).result, constant_index(1)).result
            present = arith.CmpIOp(arith.CmpIPredicate.ne, bit, constant_index(0)).result
        if not masked:
            return present
        if self._plan.mask is None:
            raise ValueError("no mask to apply")
        by_mask = self._frame.scalars().inline(block_of(self._plan.mask), positions)[0]
        return by_mask if present is None else arith.AndIOp(present, by_mask).result

    def _carry(self, states: list[ir.Value], sums: list[ir.Value]) -> list[ir.Value]:
        if not states:
            return []

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            old, new = ([tensor.ExtractOp(tile, [i]).result for tile in tiles] for tiles in (states, sums))
            total = [arith.AddFOp(a, b).result for a, b in zip(old, new, strict=True)]
            if self._track:
                total[-1] = arith.MaximumFOp(old[-1], new[-1]).result
            return total, []

        return build.map_([constant_index(self._keys.rows)], [state.type for state in states], [], [], body)[0]

    def scatter_rows(self, states: list[ir.Value]) -> None:
        """Adds what was summed over the queries, for each key at its place."""
        plan = self._plan
        for n in plan.rows:
            source = states[plan.row_weights.index(plan.weight(n))]

            def body(i: ir.Value, source: ir.Value = source, n: int = n) -> tuple[ir.Value, ir.Value, Sequence[ir.Value]]:
                present = _true()
                if self._track:
                    seen = tensor.ExtractOp(states[-1], [i]).result
                    present = arith.CmpFOp(arith.CmpFPredicate.OGT, seen, constant_float(plan.score, 0.0)).result
                anywhere = constant_index(0)  # The index does not depend on the query.
                return tensor.ExtractOp(source, [i]).result, present, self._indices(n, i, anywhere)

            build.scatter_add(self._frame.outputs[n], [self._keys.count], body)

    def _scatter_cells(self, n: int, tile: ir.Value, row: ir.Value, count: ir.Value, masked: bool) -> None:
        def body(i: ir.Value, j: ir.Value) -> tuple[ir.Value, ir.Value, Sequence[ir.Value]]:
            q_idx = arith.AddIOp(row, j).result
            present = self._present([self._keys.b, self.h, q_idx, self._keys.position(i)], i, masked)
            return tensor.ExtractOp(tile, [i, j]).result, _true() if present is None else present, self._indices(n, i, q_idx)

        build.scatter_add(self._frame.outputs[n], [self._keys.count, count], body)

    def _indices(self, n: int, i: ir.Value, q_idx: ir.Value) -> list[ir.Value]:
        """The slot of this program, then the scatter's own index."""
        positions = [self._keys.b, self.h, q_idx, self._keys.position(i)]
        own = self._frame.scalars().inline(block_of(self._plan.makers[n]), positions)
        span = self._keys.of_keys
        batch = span.batch if span.first is None else constant_index(0)  # packed tensors are one entry
        return [self._keys.slots[0], batch, self._keys.head, *own]


def _true() -> ir.Value:
    i1 = ir.IntegerType.get_signless(1)
    return arith.ConstantOp(i1, ir.IntegerAttr.get(i1, 1)).result
