"""Builds the work on one chunk of linear attention: its output, and the state after it."""

from collections.abc import Callable

from attn_mlir.dialects.attn.linear_erase import reads_strictly
from attn_mlir.dialects.attn.linear_gradients import is_compensated
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.tiling import chunk_crossing
from attn_mlir.passes.tiling.chunk_channels import build_at_once
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_delta import Written, makes_values, second_of, written
from attn_mlir.passes.tiling.chunk_levels import Levels
from attn_mlir.passes.tiling.chunk_products import ChunkTerms, diagonal_pairs, diagonal_sums, whole_products, with_diagonal
from attn_mlir.passes.tiling.chunk_rows import RowFactors, result_factors, row_factors
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkInputs, ChunkTiles, Keep, Put, Sequence, products_of
from attn_mlir.passes.tiling.frame import Frame
from attn_mlir.passes.tiling.numerics import Numerics

Beside = Callable[[Decays, ir.Value, ir.Value, ir.Value], None]


class ChunkBlock(ChunkTiles):
    """Builds chunks of an `attn.chunk`."""

    def __init__(
        self,
        frame: Frame,
        op: ir.Operation,
        inputs: ChunkInputs,
        sequence: Sequence,
        numerics: Numerics,
        sub: int,
        *,
        at_once: bool = False,
    ) -> None:
        """`sub`: see `Levels`. `at_once`: what decays of channels make of a chunk is one op (`chunk_channels`)."""
        super().__init__(frame, op, inputs, sequence, numerics)
        self._sub, self._at_once, self._crossing = sub, at_once, "crossing" in op.attributes
        # bf16 has too few digits for weights where sums of products nearly cancel.
        self._whole_weights = is_compensated(op) and self.two_pieces and (self._flushed or isinstance(self.element, ir.BF16Type))

    def build(
        self,
        chunk: Chunk,
        state: ir.Value,
        o: ir.Value | None,
        products: Put | None,
        keep: Keep,
        beside: Beside | None = None,
        diagonal: Put | None = None,
    ) -> ir.Value:
        """Emits one chunk: stores its outputs, returns the state after it.

        `keep` gets the state at the boundary before the chunk's first position (of `crossing` scans always the one that the chunk reads),
        and the chunk's decay of the state's rows; then `products` gets the products, `diagonal` what they leave out, and `beside`
        what a scan with the same states needs: decays, state, k and v.
        """
        if self._at_once:
            return build_at_once(self, chunk, state, o, products, keep)
        wanted = (o is not None or products is not None) and not makes_values(self)
        strict = products is not None and (not self._crossing or self.channels != "none")
        decays = Decays(self, chunk, strict or reads_strictly(self.op, False), rows=row_factors(self, chunk, wanted))
        q = self.load(self.inputs.q, chunk, "attn.query") if wanted else None
        k, v = self.load(self.inputs.k, chunk, "attn.key"), self.load(self.inputs.v, chunk, "attn.value")
        chunk_decay = decays.chunk_decay(ir.RankedTensorType(state.type).shape[0])
        before = self.forward or self._crossing or "entering" in self.op.attributes
        if before:
            keep(state, chunk_decay)
        write = written(self, self._sub, chunk, decays, state, q=q, k=k, v=v)
        v = write.values
        if q is not None:
            # What erasing makes of states has two pieces; o, which is rounded and which no state reads, keeps its digits with one of the
            # state. Not with one of v: of keys that are alike, what is written erases what was written before, and its sum is small.
            rounded = write.made is not None and write.second is None and products is None
            rounded &= self.channels == "none" and not is_compensated(self.op)
            parts = ChunkTerms(self, decays, state, q, k, v, second_of(self, decays, q, write), rounded=rounded)
            self._outputs(parts, chunk, o, products if self.inputs.factor is not None else None, diagonal)
        elif o is not None and write.made is not None:
            build.store(write.made, o, self.sequence.batch, self.sequence.head, chunk.begin, chunk.count)
        if beside is not None:
            beside(decays, state, k, v)
        following = self._following(decays, chunk_decay, state, k, write)
        if not before:
            keep(following, chunk_decay)
        return following

    def _following(self, decays: Decays, chunk_decay: ir.Value, state: ir.Value, k: ir.Value, write: Written) -> ir.Value:
        """The state after the chunk, of all that is written."""
        scaled = decays.scaling("attn.input_decay", k if self.channels == "key" else write.values)
        following = self.advance(scaled, chunk_decay, state, k, write.values)
        if write.second is None:
            return following
        key, value = write.second
        of_second = decays.read_by(RowFactors(right=write.factors), strict=False)
        scaled = of_second.scaling("attn.input_decay", key if self.channels == "key" else value)
        return self.advance(scaled, None, following, key, value)

    def put_rows(self, chunk: Chunk, parts: ChunkTerms, o: ir.Value) -> None:
        """Stores the chunk's rows of o."""
        build.store(self._output(parts.decays, parts), o, self.sequence.batch, self.sequence.head, chunk.begin, chunk.count)

    def _outputs(self, parts: ChunkTerms, chunk: Chunk, o: ir.Value | None, products: Put | None, diagonal: Put | None) -> None:
        place = (self.sequence.batch, self.sequence.head, chunk.begin, chunk.count)
        factor = None if products is None or self.inputs.factor is None else self.load(self.inputs.factor, chunk)
        made = apart = None
        if factor is None:
            whole = self._output(parts.decays, parts)
        elif self._crossing:
            whole, made = self._crossed(parts, factor)
        else:
            whole = self._output(parts.decays, parts)
            made = whole_products(parts, whole, factor)
            reads_own = not reads_strictly(self.op, False)
            pairs = diagonal_pairs(parts) if reads_own and (o is not None or diagonal is not None) else None
            apart = diagonal_sums(parts, pairs, factor) if pairs is not None and diagonal is not None else None
            if pairs is not None and o is not None:
                whole = with_diagonal(self, whole, pairs, parts.v, result_factors(self, chunk))
        for sums, put in ((made, products), (apart, diagonal)):
            if sums is not None and put is not None:
                put(sums, place)
        if o is not None:
            build.store(whole, o, *place)

    def _crossed(self, parts: ChunkTerms, factor: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The chunk's rows of o, before they are rounded, and its `crossing` products."""
        if self.channels == "none":
            products = chunk_crossing.of_heads(parts, factor)
            return self._output(parts.decays, parts), products
        from_state = parts.decays.scaled("attn.output_decay", parts.of_state, self.score)
        apart = Levels(self, parts.decays, self._sub).by_value_apart(parts.scores(), parts.v)
        if parts.second is not None:
            more = Levels(self, parts.second.decays, self._sub).by_value_apart(parts.second.scores(), parts.second.v)
            apart = {h: chunk_crossing.combined(self, tile, more[h], arith.AddFOp) for h, tile in apart.items()}
        products = chunk_crossing.of_channels(parts, from_state, apart, factor)
        return chunk_crossing.whole(parts, from_state, apart), products

    def _output(self, decays: Decays, parts: ChunkTerms) -> ir.Value:
        """The chunk's rows of o, before they are rounded."""
        o, second = self._of_first(decays, parts), parts.second
        if second is None:
            return o
        if self.channels == "none":
            weights = self.pieces([self.size, self.size], second.decays.weighted(second.scores()), self._whole_weights)
            for piece_, factor in products_of(weights, self.factors(second.v)):
                o = build.dot_accumulate(o, None, piece_, factor)
            return o
        levels = Levels(self, second.decays, self._sub)
        return levels.by_value(o, second.scores(), second.v) if self.channels == "value" else levels.by_key(o, second.q, second.k, second.v)

    def _of_first(self, decays: Decays, parts: ChunkTerms) -> ir.Value:
        """The same, without what a second writer writes."""
        q, k, v = parts.q, parts.k, parts.v
        if self.channels == "none":
            skip = decays.of_rows.skip
            changed = self._change("attn.value") is not None
            weights = decays.weighted(parts.scores(), None if changed else skip)
            o, scale = parts.of_state, decays.rows("attn.output_decay")
            made = self.pieces([self.size, self.size], weights, self._whole_weights)
            for number, (piece_, factor) in enumerate(products_of(made, self.factors(v))):
                o = build.dot_accumulate(o, scale if number == 0 else None, piece_, factor)
            return o if skip is None or not changed else with_diagonal(self, o, skip, self.load(self.inputs.v, decays.chunk))
        if self.channels == "value":
            o = decays.scaled("attn.output_decay", parts.of_state, self.score)
            return Levels(self, decays, self._sub).by_value(o, parts.scores(), v)
        return Levels(self, decays, self._sub).by_key(parts.of_state, q, k, v)
