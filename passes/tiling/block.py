"""Builds the work on one block of keys: scores, the stages of the step, and the accumulation of the output."""

from dataclasses import dataclass

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.masking import masks_by_score
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling.scalars import ScalarEmitter, cast_float, constant_float, constant_index, identity
from attn_mlir.passes.tiling.step import StepPlan, plan_step


@dataclass
class Program:
    """One program of the grid: what it works on, and the values of the function around it."""

    element: ir.Type
    score: ir.Type
    b: ir.Value
    h: ir.Value
    kv_head: ir.Value
    begin: ir.Value
    end: ir.Value
    rows: ir.Value
    last_row: ir.Value
    kv_len: ir.Value
    query: ir.Value
    k: ir.Value
    v: ir.Value
    outer: ScalarEmitter
    block_q: int
    block_kv: int

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

    def modify(
        self, mod: ir.Operation | None, tile: ir.Value, count: ir.Value, head: ir.Value, begin: ir.Value, last: ir.Value
    ) -> ir.Value:
        """Applies `attn.query`, `attn.key` or `attn.value` to a tile of rows that starts at `begin`."""
        if mod is None:
            return tile
        type_ = ir.RankedTensorType(tile.type)

        def body(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, self.score)
            position = arith.MinSIOp(arith.AddIOp(begin, i).result, last).result
            (changed,) = self.scalars().inline(block_of(mod), [x, self.b, head, position, d])
            return [cast_float(changed, self.element)], []

        (result,), _ = build.map_([count, constant_index(type_.shape[1])], [type_], [], [], body)
        return result


class BlockBuilder:
    """Builds blocks of keys for the steps of one `attn.online`."""

    def __init__(self, online: ir.Operation, program: Program) -> None:
        self.program = program
        self._online = online
        self._mask = piece(online, "attn.mask")
        self._score_mod = piece(online, "attn.score")
        self._accumulators = ir.IntegerAttr(online.attributes["accumulators"]).value
        self._plans: dict[ir.Operation, StepPlan] = {}

    def build(self, step: ir.Operation, kv: ir.Value, count: ir.Value, carried: list[ir.Value], masked: bool) -> list[ir.Value]:
        """Emits one block of `count` keys from `kv` on; returns the carried values after it."""
        region = block_of(step)
        if step not in self._plans:
            self._plans[step] = plan_step(region)
        states = len(region.arguments) - 4
        work = _Block(self, region, self._plans[step], kv, count, carried[:states], masked)
        work.run_stages()
        results = self._plans[step].results
        after = [work.row(value) for value in results[:states]]
        if len(results) == states:
            return after
        a = self._accumulators
        weights, scales = results[states : states + a], results[states + a :]
        values = self._load_values(kv, count)
        for weight, scale, accumulator in zip(weights, scales, carried[states:], strict=True):
            factor = None if _is_one(scale) else work.row(scale)
            after.append(build.dot_accumulate(accumulator, factor, work.weights[weight], values))
        return after

    def scores(self, kv: ir.Value, count: ir.Value) -> ir.Value:
        """q k^T for the block, before any score mod."""
        p = self.program
        keys = build.load(p.k, p.b, p.kv_head, kv, count)
        keys = p.modify(piece(self._online, "attn.key"), keys, count, p.kv_head, kv, self._last_key())
        return build.dot(p.query, keys, p.score, transpose_b=True)

    def _load_values(self, kv: ir.Value, count: ir.Value) -> ir.Value:
        p = self.program
        values = build.load(p.v, p.b, p.kv_head, kv, count)
        return p.modify(piece(self._online, "attn.value"), values, count, p.kv_head, kv, self._last_key())

    def _last_key(self) -> ir.Value:
        return arith.SubIOp(self.program.kv_len, constant_index(1)).result

    @property
    def mask(self) -> ir.Operation | None:
        """The `attn.mask` piece."""
        return self._mask

    @property
    def score_mod(self) -> ir.Operation | None:
        """The `attn.score` piece."""
        return self._score_mod


class _Block:
    """State while one block is emitted: which values of the step exist as tiles by now."""

    def __init__(
        self, owner: BlockBuilder, region: ir.Block, plan: StepPlan, kv: ir.Value, count: ir.Value, states: list[ir.Value], masked: bool
    ) -> None:
        self._owner, self._region, self._plan = owner, region, plan
        self._kv, self._count = kv, count
        arguments = list(region.arguments)
        self._s, self._indices = arguments[0], arguments[1:4]
        self._tiles: dict[ir.Value, ir.Value] = dict(zip(arguments[4:], states, strict=True))
        self._masked = masked and owner.mask is not None
        self._mask_scores = self._masked and masks_by_score(region)
        self._stored = plan.stored()
        self._raw = owner.scores(kv, count)
        if owner.score_mod is None and not self._mask_scores:
            self._tiles[self._s] = self._raw
        self.weights: dict[ir.Value, ir.Value] = {}

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
        accumulators, states = self._owner._accumulators, len(self._region.arguments) - 4
        weights = plan.results[states : states + accumulators] if len(plan.results) > states else []
        weights = [w for w in dict.fromkeys(weights) if plan.stage.get(w, 0) == number]
        stored = [value for value in self._stored.get(number, []) if value not in self._tiles]
        reductions = plan.stages[number].reductions
        if not (weights or stored or reductions):
            return
        kinds = [ir.StringAttr(op.attributes["kind"]).value for op in reductions]

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = self._emitter(i, j)
            present = self._present(emitter, i, j) if self._masked and not self._mask_scores else None
            tiles = [cast_float(_keep(present, emitter.emit(w), 0.0), p.element) for w in weights]
            tiles += [emitter.emit(value) for value in stored]
            parts = zip(reductions, kinds, strict=True)
            return tiles, [_keep(present, emitter.emit(op.operands[0]), identity(kind, p.score)) for op, kind in parts]

        # A map's tiles have one type: weights are in the element type, stored values in that of the scores.
        dynamic = ir.ShapedType.get_dynamic_size()
        extents = [constant_index(p.block_q), self._count]
        row = ir.RankedTensorType.get([p.block_q], p.score)
        if weights and stored and p.element != p.score:
            self._split_map(number, weights, stored)
            return
        element = p.element if weights else p.score
        tile = ir.RankedTensorType.get([p.block_q, dynamic], element)
        tiles, rows = build.map_(extents, [tile] * (len(weights) + len(stored)), [row] * len(reductions), kinds, body)
        self.weights.update(zip(weights, tiles, strict=False))
        self._tiles.update(zip(stored, tiles[len(weights) :], strict=True))
        self._tiles.update(zip([op.results[0] for op in reductions], rows, strict=True))

    def _split_map(self, number: int, weights: list[ir.Value], stored: list[ir.Value]) -> None:
        """Stores the shared values first, in their own type, and then makes the weights from them."""
        p = self._owner.program

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = self._emitter(i, j)
            return [emitter.emit(value) for value in stored], []

        tile = ir.RankedTensorType.get([p.block_q, ir.ShapedType.get_dynamic_size()], p.score)
        tiles, _ = build.map_([constant_index(p.block_q), self._count], [tile] * len(stored), [], [], body)
        self._tiles.update(zip(stored, tiles, strict=True))
        self._tile_map(number)

    def _emitter(self, i: ir.Value, j: ir.Value | None) -> ScalarEmitter:
        p = self._owner.program
        emitter = p.reading(self._tiles, i, j)
        for argument, value in zip(self._indices, (p.b, p.h, p.q_idx(i)), strict=True):
            emitter.set(argument, value)
        if j is not None and self._s not in self._tiles:
            emitter.set(self._s, self._score(emitter, i, j))
        return emitter

    def _score(self, emitter: ScalarEmitter, i: ir.Value, j: ir.Value) -> ir.Value:
        p = self._owner.program
        score = tensor.ExtractOp(self._raw, [i, j]).result
        if self._owner.score_mod is not None:
            (score,) = p.scalars().inline(
                block_of(self._owner.score_mod), [score, p.b, p.h, emitter.emit(self._indices[2]), self._kv_idx(j)]
            )
        if not self._mask_scores:
            return score
        return _keep(self._present(emitter, i, j), score, float("-inf"))

    def _present(self, emitter: ScalarEmitter, i: ir.Value, j: ir.Value) -> ir.Value:
        p, mask = self._owner.program, self._owner.mask
        if mask is None:
            raise ValueError("no mask to apply")
        (present,) = p.scalars().inline(block_of(mask), [p.b, p.h, emitter.emit(self._indices[2]), self._kv_idx(j)])
        return present

    def _kv_idx(self, j: ir.Value) -> ir.Value:
        return arith.AddIOp(self._kv, j).result


def _keep(present: ir.Value | None, value: ir.Value, otherwise: float) -> ir.Value:
    """`value` where `present`, else a constant."""
    if present is None:
        return value
    return arith.SelectOp(present, value, constant_float(value.type, otherwise)).result


def _in_function(value: ir.Value) -> bool:
    """True for values defined directly in a function's body."""
    owner = value.owner
    block = owner if isinstance(owner, ir.Block) else owner.operation.block
    return block.owner.operation.name == "func.func"


def _is_one(value: ir.Value) -> bool:
    owner = value.owner
    if isinstance(owner, ir.Block) or owner.operation.name != "arith.constant":
        return False
    return ir.FloatAttr(owner.operation.attributes["value"]).value == 1.0
