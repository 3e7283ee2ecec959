"""Builds the work on one block of keys: scores, the stages of the step, and the accumulation of the outputs."""

from collections.abc import Callable
from dataclasses import dataclass, field

from attn_mlir.dialects.attn.partners import partner_of
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.masking import masked_score, masks_by_score
from attn_mlir.passes.regions import block_of, maker, piece, scores_in
from attn_mlir.passes.tiling.narrow import ProductTypes
from attn_mlir.passes.tiling.scalars import ScalarEmitter, cast_float, constant_index, identity, keep, known_index
from attn_mlir.passes.tiling.step import StepPlan, plan_step
from attn_mlir.passes.tiling.work import Span, read


@dataclass(frozen=True)
class RowSource:
    """Keys or values in memory, and the piece that changes them, if any."""

    memory: ir.Value
    mod: ir.Operation | None = None


@dataclass
class GridTile:
    """One tile of the grid: what it works on, and the values of the function around it.

    Score product k multiplies the tile `queries[k]` with `keys[k]`; accumulators sum `sources`. `of_queries` and `of_keys` tell where
    positions lie in memory.
    """

    types: ProductTypes
    score: ir.Type
    b: ir.Value
    h: ir.Value
    kv_head: ir.Value
    begin: ir.Value
    end: ir.Value
    rows: ir.Value
    last_row: ir.Value
    of_queries: Span
    of_keys: Span
    outer: ScalarEmitter
    block_q: int
    block_kv: int
    queries: list[ir.Value] = field(default_factory=list)
    keys: list[RowSource] = field(default_factory=list)
    sources: list[RowSource] = field(default_factory=list)
    listed: ir.Value | None = None
    """The keys that lists name, where blocks of keys are parts of a list; None: they are those from a position on."""
    pages: ir.Value | None = None
    """The table of the pages in which keys and values lie; None where they do not."""
    paged_views: bool = False
    """Whether the kernel takes what lies in pages as [sequences, Hkv, positions, D], see `paged` in `attn-tile-rows`."""

    @property
    def element(self) -> ir.Type:
        """That of tiles which products take."""
        return self.types.element

    def as_weight(self, value: ir.Value) -> ir.Value:
        """A weight as products take it."""
        rounded = value if self.types.weights is None else cast_float(cast_float(value, self.types.weights), self.score)
        return cast_float(rounded, self.element)

    @property
    def kv_len(self) -> ir.Value:
        """How many keys there are."""
        return self.of_keys.length

    def load_keys(self, memory: ir.Value, position: ir.Value, count: ir.Value) -> ir.Value:
        """Keys or values from a position on, as a tile."""
        if self.listed is not None:
            return build.gather(memory, self.of_keys.batch, self.kv_head, self.listed, position, count, self.element)
        row, known = self.of_keys.row(position), known_index(count)
        if self.pages is not None and self.paged_views:
            return build.load(memory, self.b, self.kv_head, row, count, known, self.element)
        if self.pages is not None:
            return build.load_pages(memory, self.pages, (self.b, self.kv_head, row), count, known, self.element)
        return build.load(memory, self.of_keys.batch, self.kv_head, row, count, known, self.element)

    def scalars(self) -> ScalarEmitter:
        """An emitter that sees the function's values."""
        return ScalarEmitter({}, self._outside)

    def _outside(self, value: ir.Value) -> ir.Value | None:
        """Values of the function around the attention are available everywhere in the kernel."""
        return self.outer.emit(value) if _in_function(value) else None

    def q_idx(self, i: ir.Value) -> ir.Value:
        """Position of row i; rows past the end stand for the last one."""
        return arith.MinSIOp(arith.AddIOp(self.begin, i).result, self.last_row).result

    def reading(self, tiles: dict[ir.Value, ir.Value], i: ir.Value, j: ir.Value | None) -> ScalarEmitter:
        """An emitter that reads the given values from their tiles at (i, j), or at i for tiles of rank 1."""

        def find(value: ir.Value) -> ir.Value | None:
            tile = tiles.get(value)
            if tile is None:
                return self._outside(value)
            indices = [i] if ir.RankedTensorType(tile.type).rank == 1 or j is None else [i, j]
            return cast_float(tensor.ExtractOp(tile, indices).result, self.score)

        return ScalarEmitter({}, find)

    def kv_idx(self, first: ir.Value, j: ir.Value) -> ir.Value:
        """Position of key j of the block that begins at `first`, a position or a place in the list."""
        place = arith.AddIOp(first, j).result
        return place if self.listed is None else read(self.listed, [place])

    def modify(
        self, mod: ir.Operation | None, tile: ir.Value, count: ir.Value, head: ir.Value, position: Callable[[ir.Value], ir.Value]
    ) -> ir.Value:
        """Applies `attn.query`, `attn.key` or `attn.value` to a tile of rows, row i of which is at `position(i)`."""
        if mod is None:
            return tile
        type_, partner = ir.RankedTensorType(tile.type), partner_of(mod)

        def body(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            channels = [d] if partner is None else [d, partner.index(d, type_.shape[1])]
            x = [cast_float(tensor.ExtractOp(tile, [i, channel]).result, self.score) for channel in channels]
            (changed,) = self.scalars().inline(block_of(mod), [*x, self.b, head, position(i), d])
            return [cast_float(changed, self.element)], []

        (result,), _ = build.map_([count, constant_index(type_.shape[1])], [type_], [], [], body)
        return result


class BlockBuilder:
    """Builds blocks of keys for the steps of one `attn.online`.

    `live` are the numbers of the accumulators that it carries, `sources` what each of all of them sums.
    """

    def __init__(self, online: ir.Operation, program: GridTile, live: list[int], sources: list[int]) -> None:
        self.program = program
        self.mask = piece(online, "attn.mask")
        self.score_mod = piece(online, "attn.score")
        self.live = live
        self._accumulators, self._sources = len(sources), sources
        self._plans: dict[ir.Operation, StepPlan] = {}

    def build(self, step: ir.Operation, kv: ir.Value, count: ir.Value, carried: list[ir.Value], masked: bool) -> list[ir.Value]:
        """Emits one block of `count` keys from `kv` on; returns the carried values after it."""
        region = block_of(step)
        if step not in self._plans:
            self._plans[step] = plan_step(region)
        states = len(region.arguments) - scores_in(region) - 3
        work = _Block(self, region, self._plans[step], kv, count, carried[:states], masked)
        work.run_stages()
        results = self._plans[step].results
        after = [work.row(value) for value in results[:states]]
        for number, accumulator in zip(self.live, carried[states:], strict=False):
            weight, scale = results[states + number], results[states + self._accumulators + number]
            values = work.load(self.program.sources[self._sources[number]])
            factor = None if is_constant(scale, 1.0) else work.row(scale)
            after.append(build.dot_accumulate(accumulator, factor, work.weights[weight], values))
        return after

    def dropout(self, scores: list[ir.Value]) -> dict[ir.Value, ir.Value]:
        """The scores of a step that only say what dropout keeps, and what the score's piece yields for them.

        They cost no memory: whoever needs them computes them. They are finite, so that a masked key needs no other.
        """
        if self.score_mod is None:
            return {}
        yielded = block_of(self.score_mod).operations[-1].operation.operands
        return {s: value for s, value in zip(scores, yielded, strict=True) if _of_dropout(value)}

    def weights(self, plan: StepPlan, states: int) -> list[ir.Value]:
        """The weights that a step makes, each once; none before the last pass."""
        if len(plan.results) == states:
            return []
        return list(dict.fromkeys(plan.results[states + number] for number in self.live))


class _Block:
    """State while one block is emitted: which values of the step exist as tiles by now."""

    def __init__(
        self, owner: BlockBuilder, region: ir.Block, plan: StepPlan, kv: ir.Value, count: ir.Value, states: list[ir.Value], masked: bool
    ) -> None:
        self._owner, self._region, self._plan = owner, region, plan
        self._kv, self._count = kv, count
        self._columns = known_index(count) or ir.ShapedType.get_dynamic_size()
        arguments, scores = list(region.arguments), scores_in(region)
        self._scores, self._indices = arguments[:scores], arguments[scores : scores + 3]
        self._tiles: dict[ir.Value, ir.Value] = dict(zip(arguments[scores + 3 :], states, strict=True))
        self._dropout = owner.dropout(self._scores)
        self._weights = owner.weights(plan, len(states))
        self._masked = masked and owner.mask is not None
        self._mask_scores = self._masked and masks_by_score(region)
        self._stored = plan.stored()
        self._loaded: dict[RowSource, ir.Value] = {}
        p = owner.program
        self._products = [build.dot(tile, self.load(keys), p.score, transpose_b=True) for tile, keys in zip(p.queries, p.keys, strict=True)]
        if owner.score_mod is None and not self._mask_scores:
            self._tiles.update(zip(self._scores, self._products, strict=True))
        self.weights: dict[ir.Value, ir.Value] = {}

    def load(self, rows: RowSource) -> ir.Value:
        """The block's keys or values as a tile."""
        if rows not in self._loaded:
            p = self._owner.program
            if rows.mod is None:
                self._loaded[rows] = p.load_keys(rows.memory, self._kv, self._count)
            else:
                tile = self.load(RowSource(rows.memory))
                last = arith.SubIOp(p.kv_len, constant_index(1)).result

                def position(i: ir.Value) -> ir.Value:
                    return p.kv_idx(self._kv, i) if p.listed is not None else arith.MinSIOp(p.kv_idx(self._kv, i), last).result

                self._loaded[rows] = p.modify(rows.mod, tile, self._count, p.kv_head, position)
        return self._loaded[rows]

    def row(self, value: ir.Value) -> ir.Value:
        """The tile of rank 1 that holds a value which is the same along the row."""
        if value not in self._tiles:
            self._row_map([value])
        return self._tiles[value]

    def run_stages(self) -> None:
        """Emits the maps of every stage in order."""
        for number in range(len(self._plan.stages)):
            self._row_map(self._wanted_rows(number))
            self._tile_map(number)

    def _wanted_rows(self, number: int) -> list[ir.Value]:
        plan, wanted = self._plan, []
        users = [op for later in plan.stages[number:] for op in [*later.tile_ops, *later.reductions]]
        users += [op for later in plan.stages[number + 1 :] for op in later.row_ops]
        used = [value for op in users for value in op.operands] + plan.results
        for op in plan.stages[number].row_ops:
            wanted += [result for result in op.results if result in used and isinstance(result.type, (ir.F32Type, ir.F64Type))]
        return wanted

    def _row_map(self, values: list[ir.Value]) -> None:
        values = [value for value in values if value not in self._tiles and value not in self.weights]
        if not values:
            return
        p = self._owner.program

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = self._emitter(i, None)
            return [emitter.emit(value) for value in values], []

        row = ir.RankedTensorType.get([p.block_q], p.score)
        results, _ = build.map_([constant_index(p.block_q)], [row] * len(values), [], [], body)
        self._tiles.update(zip(values, results, strict=True))

    def _tile_map(self, number: int) -> None:
        p, plan = self._owner.program, self._plan
        weights = [w for w in self._weights if plan.stage.get(w, 0) == number]
        stored = [value for value in self._stored.get(number, []) if value not in self._tiles and value not in self._dropout]
        reductions = plan.stages[number].reductions
        if not (weights or stored or reductions):
            return
        kinds = [ir.StringAttr(op.attributes["kind"]).value for op in reductions]

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = self._emitter(i, j, number)
            present = self._present(emitter, i, j) if self._masked and not self._mask_scores else None
            tiles = [p.as_weight(keep(present, emitter.emit(w), 0.0)) for w in weights]
            tiles += [emitter.emit(value) for value in stored]
            parts = zip(reductions, kinds, strict=True)
            return tiles, [keep(present, emitter.emit(op.operands[0]), identity(kind, p.score)) for op, kind in parts]

        # A map's tiles have one type: weights are in the element type, stored values in that of the scores.
        extents = [constant_index(p.block_q), self._count]
        row = ir.RankedTensorType.get([p.block_q], p.score)
        if weights and stored and p.element != p.score:
            self._split_map(number, weights, stored)
            return
        element = p.element if weights else p.score
        tile = ir.RankedTensorType.get([p.block_q, self._columns], element)
        tiles, rows = build.map_(extents, [tile] * (len(weights) + len(stored)), [row] * len(reductions), kinds, body)
        self.weights.update(zip(weights, tiles, strict=False))
        self._tiles.update(zip(stored, tiles[len(weights) :], strict=True))
        self._tiles.update(zip([op.results[0] for op in reductions], rows, strict=True))

    def _split_map(self, number: int, weights: list[ir.Value], stored: list[ir.Value]) -> None:
        """Stores the shared values first, in their own type, and then makes the weights from them."""
        p = self._owner.program

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = self._emitter(i, j, number)
            return [emitter.emit(value) for value in stored], []

        tile = ir.RankedTensorType.get([p.block_q, self._columns], p.score)
        tiles, _ = build.map_([constant_index(p.block_q), self._count], [tile] * len(stored), [], [], body)
        self._tiles.update(zip(stored, tiles, strict=True))
        self._tile_map(number)

    def _emitter(self, i: ir.Value, j: ir.Value | None, stage: int = 0) -> ScalarEmitter:
        p = self._owner.program
        emitter = p.reading(self._tiles, i, j)
        for argument, value in zip(self._indices, (p.b, p.h, p.q_idx(i)), strict=True):
            emitter.set(argument, value)
        if j is not None and stage > 0:
            for s, kept in self._dropout.items():
                emitter.set(s, self._emit_kept(kept, emitter, j))
        # Later stages find the other scores that they need as tiles.
        if j is not None and stage == 0 and any(s not in self._tiles for s in self._scores):
            for s, value in zip(self._scores, self._emit_scores(emitter, i, j), strict=True):
                if s not in self._tiles:
                    emitter.set(s, value)
        return emitter

    def _emit_scores(self, emitter: ScalarEmitter, i: ir.Value, j: ir.Value) -> list[ir.Value]:
        p = self._owner.program
        scores = [tensor.ExtractOp(product, [i, j]).result for product in self._products]
        if self._owner.score_mod is not None:
            position = [p.b, p.h, emitter.emit(self._indices[2]), self._kv_idx(j)]
            scores = p.scalars().inline(block_of(self._owner.score_mod), [*scores, *position])
        if not self._mask_scores:
            return scores
        present = self._present(emitter, i, j)
        masked = [keep(present, score, masked_score(number)) for number, score in enumerate(scores)]
        return [score if s in self._dropout else of_mask for s, score, of_mask in zip(self._scores, scores, masked, strict=True)]

    def _emit_kept(self, kept: ir.Value, emitter: ScalarEmitter, j: ir.Value) -> ir.Value:
        p, mod = self._owner.program, block_of(self._owner.score_mod)
        scalars = p.scalars()
        for argument, value in zip(list(mod.arguments)[-4:], [p.b, p.h, emitter.emit(self._indices[2]), self._kv_idx(j)], strict=True):
            scalars.set(argument, value)
        return scalars.emit(kept)

    def _present(self, emitter: ScalarEmitter, i: ir.Value, j: ir.Value) -> ir.Value:
        p, mask = self._owner.program, self._owner.mask
        if mask is None:
            raise ValueError("no mask to apply")
        (present,) = p.scalars().inline(block_of(mask), [p.b, p.h, emitter.emit(self._indices[2]), self._kv_idx(j)])
        return present

    def _kv_idx(self, j: ir.Value) -> ir.Value:
        return self._owner.program.kv_idx(self._kv, j)


def _of_dropout(value: ir.Value) -> bool:
    """Whether `attn.kept` selects one of two values of the whole function."""
    select = maker(value, "arith.select")
    if select is None or maker(select.operands[0], "attn.kept") is None:
        return False
    return all(map(_in_function_or_constant, list(select.operands)[1:]))


def _in_function_or_constant(value: ir.Value) -> bool:
    return _in_function(value) or maker(value, "arith.constant") is not None


def _in_function(value: ir.Value) -> bool:
    """True for values defined directly in a function's body."""
    owner = value.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    return block.owner.operation.name == "func.func"


def is_constant(value: ir.Value, number: float) -> bool:
    """True for an `arith.constant` of that number."""
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return False
    return ir.FloatAttr(owner.operation.attributes["value"]).value == number
