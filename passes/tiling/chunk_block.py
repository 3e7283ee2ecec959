"""Builds the work on one chunk of linear attention: its output, and the state after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from attn_mlir.dialects.attn.linear_erase import reads_strictly
from attn_mlir.dialects.attn.linear_gradients import is_exact
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling import chunk_crossing
from attn_mlir.passes.tiling.chunk_channels import build_at_once
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_delta import Written, makes_values, second_of, written
from attn_mlir.passes.tiling.chunk_products import Parts, own_pairs, own_sums, whole_products, with_own
from attn_mlir.passes.tiling.chunk_rows import RowFactors, result_factors, row_factors, row_mod
from attn_mlir.passes.tiling.frame import Frame
from attn_mlir.passes.tiling.rounding import EXACT, RoundingEmitter
from attn_mlir.passes.tiling.scalars import cast_float, constant_index

Keep = Callable[[ir.Value, ir.Value], None]
Place = tuple[ir.Value, ir.Value, ir.Value, ir.Value]
"""Batch, head, first position and number of positions of a chunk."""
Put = Callable[[ir.Value, Place], None]
Beside = Callable[[Decays, ir.Value, ir.Value, ir.Value], None]
Element = Callable[[ir.Value, ir.Value], ir.Value]


@dataclass(frozen=True)
class Choices:
    """How chunks are computed.

    `prefix` is the element type of sums of log decays ("f64" keeps them exact enough for chunks whose decays add up to hundreds; "wider"
    is f64 but for 16-bit inputs, which need no more than f32), `sub` how many positions have their pairs computed one by one where
    channels have decays of their own. `widen`: products multiply scores even where inputs have 16 bits. `flushing`: products take numbers
    below 2^-14 in f16 as 0. `at_once`: what decays of key channels make of a chunk is one op (`chunk_channels`). `exact_carry`: what is
    left of a state behind a chunk has the type of those sums; rounded by all chunks alike where their decays are the same, it would make
    errors that add up over a sequence.
    """

    prefix: str
    sub: int
    widen: bool
    flushing: bool
    at_once: bool = False
    exact_carry: bool = False


@dataclass(frozen=True)
class Sequence:
    """The sequence of a program: positions [begin, end) of `batch`, one head of `heads`; `state` numbers its states."""

    batch: ir.Value
    state: ir.Value
    head: ir.Value
    heads: ir.Value
    begin: ir.Value
    end: ir.Value


@dataclass(frozen=True)
class Chunk:
    """`count` positions from `begin` on, which is `start` in its sequence."""

    begin: ir.Value
    start: ir.Value
    count: ir.Value


@dataclass(frozen=True)
class Input:
    """A tensor in memory, and its head that the program reads; its mod gets `named`, or that one."""

    memory: ir.Value
    head: ir.Value
    named: ir.Value | None = None


@dataclass(frozen=True)
class Inputs:
    """What a program reads; of v, factor and second_value (and decays of v's channels) only the columns that are its own."""

    q: Input
    k: Input
    v: Input
    decay: Input | None
    factor: Input | None
    first_column: ir.Value
    columns: int
    erase: Input | None = None
    second_key: Input | None = None
    """What is erased with, where it is not k, or a second writer's keys."""
    second_value: Input | None = None


class ByChannel(Protocol):
    """What a chunk's positions add to its output where channels have decays of their own."""

    def by_key(self, o: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what is added, for decays of the columns of q and k."""
        ...

    def pairs_by_key(self, q: ir.Value, k: ir.Value, element: ir.Type) -> ir.Value:
        """The weighted products of q and k for such decays, [C, C]."""
        ...

    def by_value(self, o: ir.Value, products: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what is added, for decays of the columns of v; `products` is q k^T."""
        ...

    def by_value_apart(self, products: ir.Value, v: ir.Value) -> dict[int, ir.Value]:
        """What is added by others, by the highest bit in which the positions of a pair differ."""
        ...


class ChunkBlock:
    """Builds chunks of an `attn.chunk`."""

    def __init__(
        self,
        frame: Frame,
        op: ir.Operation,
        inputs: Inputs,
        sequence: Sequence,
        choices: Choices,
        by_channel: "Callable[..., ByChannel]",
    ) -> None:
        """`by_channel(block, decays)` builds what a chunk's positions add where channels have decays of their own."""
        view = op.opview
        self.by_channel = by_channel
        self.frame, self.op, self.inputs, self.sequence = frame, op, inputs, sequence
        self.size, self.channels = view.chunk.value, view.channels.value
        self.forward = view.direction.value == "forward"
        self.transposed = view.state.value == "vk"
        self.keys = view.k.type.shape[3]
        self.score = block_of(self._piece("attn.carry")).arguments[0].type
        narrow = view.q.type.element_type.width == 16
        self.wide = ir.F64Type.get() if choices.prefix == "f64" or (choices.prefix == "wider" and not narrow) else self.score
        self.carried_in = self.wide if choices.exact_carry else self.score
        self.element = self.score if choices.widen else view.q.type.element_type
        # What rounding of the state leaves in sums of products does not cancel where they are subtracted.
        self.two_pieces = is_exact(op) and self.element != self.score
        # Small weights of f16 would be gone where products flush them, and a state that all of the sequence's decays lie before.
        flushed = choices.flushing and isinstance(self.element, ir.F16Type)
        # bf16 has too few digits for weights where sums of products nearly cancel.
        self._whole_weights = self.two_pieces and (flushed or isinstance(self.element, ir.BF16Type))
        self._whole_state = self.two_pieces or (flushed and not self.forward)
        self._crossing = "crossing" in op.attributes
        self._at_once = choices.at_once

    def build(
        self,
        chunk: Chunk,
        state: ir.Value,
        o: ir.Value | None,
        products: Put | None,
        keep: Keep,
        beside: Beside | None = None,
        own: Put | None = None,
    ) -> ir.Value:
        """Emits one chunk: stores its outputs, returns the state after it.

        `keep` gets the state at the boundary before the chunk's first position (of `crossing` sweeps always the one that the chunk reads),
        and the factors with which the chunk carries its rows; then `products` gets the products, `own` what they leave out, and `beside`
        what a sweep with the same states needs: decays, state, k and v.
        """
        if self._at_once:
            return build_at_once(self, chunk, state, o, products, keep)
        wanted = (o is not None or products is not None) and not makes_values(self)
        strict = products is not None and (not self._crossing or self.channels != "none")
        decays = Decays(self, chunk, strict or reads_strictly(self.op, False), rows=row_factors(self, chunk, wanted))
        q = self.load(self.inputs.q, chunk, "attn.query") if wanted else None
        k, v = self.load(self.inputs.k, chunk, "attn.key"), self.load(self.inputs.v, chunk, "attn.value")
        carry = decays.carry(ir.RankedTensorType(state.type).shape[0])
        if self.forward or self._crossing:
            keep(state, carry)
        write = written(self, chunk, decays, state, k, v)
        v = write.values
        if q is not None:
            parts = Parts(self, decays, state, q, k, v, second_of(self, decays, q, write))
            self._outputs(parts, chunk, o, products if self.inputs.factor is not None else None, own)
        elif o is not None and write.made is not None:
            build.store(write.made, o, self.sequence.batch, self.sequence.head, chunk.begin, chunk.count)
        if beside is not None:
            beside(decays, state, k, v)
        following = self._following(decays, carry, state, k, write)
        if not self.forward and not self._crossing:
            keep(following, carry)
        return following

    def _following(self, decays: Decays, carry: ir.Value, state: ir.Value, k: ir.Value, write: Written) -> ir.Value:
        """The state after the chunk, of all that is written."""
        scaled = decays.scaling("attn.enter", k if self.channels == "key" else write.values)
        following = self.advance(scaled, carry, state, k, write.values)
        if write.second is None:
            return following
        key, value = write.second
        scaled = decays.read_by(RowFactors(), strict=False).scaling("attn.enter", key if self.channels == "key" else value)
        return self.advance(scaled, None, following, key, value)

    def put_rows(self, chunk: Chunk, parts: "Parts", o: ir.Value) -> None:
        """Stores the chunk's rows of o."""
        build.store(self._output(parts.decays, parts), o, self.sequence.batch, self.sequence.head, chunk.begin, chunk.count)

    def _outputs(self, parts: "Parts", chunk: Chunk, o: ir.Value | None, products: Put | None, own: Put | None) -> None:
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
            pairs = own_pairs(parts) if o is not None or own is not None else None
            apart = own_sums(parts, pairs, factor) if pairs is not None and own is not None else None
            if pairs is not None and o is not None:
                whole = with_own(self, whole, pairs, parts.v, result_factors(self, chunk))
        for sums, put in ((made, products), (apart, own)):
            if sums is not None and put is not None:
                put(sums, place)
        if o is not None:
            build.store(whole, o, *place)

    def _crossed(self, parts: "Parts", factor: ir.Value) -> tuple[ir.Value, ir.Value]:
        """The chunk's rows of o, before they are rounded, and its `crossing` products."""
        if self.channels == "none":
            products = chunk_crossing.of_heads(parts, factor)
            return self._output(parts.decays, parts), products
        from_state = parts.decays.scaled("attn.leave", parts.of_state, self.score)
        apart = self.by_channel(self, parts.decays).by_value_apart(parts.scores(), parts.v)
        if parts.second is not None:
            more = self.by_channel(self, parts.second.decays).by_value_apart(parts.second.scores(), parts.second.v)
            apart = {h: chunk_crossing.combined(self, tile, more[h], arith.AddFOp) for h, tile in apart.items()}
        products = chunk_crossing.of_channels(parts, from_state, apart, factor)
        return chunk_crossing.whole(parts, from_state, apart), products

    def _piece(self, name: str) -> ir.Operation:
        found = piece(self.op, name)
        if found is None:
            raise ValueError(f"'{self.op.name}' lacks its '{name}' piece")
        return found

    # What is read

    def load(self, source: Input, chunk: Chunk, mod: str | None = None) -> ir.Value:
        """The chunk's rows of an input, after its mod (unless that multiplies rows, see `chunk_rows`), in its element type."""
        tile = build.load(source.memory, self.sequence.batch, source.head, chunk.begin, chunk.count, self.size)
        change = None if mod is None else self._change(mod)
        type_ = ir.RankedTensorType(tile.type)
        if (change is None and type_.element_type == self.element) or mod is None:
            return tile

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, self.score)
            if change is not None:
                places = [
                    self.sequence.batch,
                    source.named or source.head,
                    self.position_of(chunk, i),
                    self.channel(d, mod == "attn.value"),
                ]
                (x,) = self.frame.scalars().inline(block_of(change), [x, *places])
            return [cast_float(x, self.element)]

        return self.map([self.tile(type_.shape, self.element)], body)[0]

    def _change(self, mod: str) -> ir.Operation | None:
        """The mod of this name, where it changes the elements of a tile; None where factors of rows take it over (see `chunk_rows`)."""
        return piece(self.op, mod) if row_mod(self.op, mod) is None else None

    def position_of(self, chunk: Chunk, i: ir.Value) -> ir.Value:
        """Position of row i; rows past the end stand for the last one."""
        last = arith.SubIOp(self.sequence.end, constant_index(1)).result
        return arith.MinSIOp(arith.AddIOp(chunk.begin, i).result, last).result

    def channel(self, d: ir.Value, of_values: bool) -> ir.Value:
        whole = not of_values or self.op.opview.v.type.shape[3] == self.inputs.columns
        return d if whole else arith.AddIOp(self.inputs.first_column, d).result

    def map(self, types: list[ir.Type], body: Callable[..., list[ir.Value]]) -> list[ir.Value]:
        """A `tile.map` without reductions that makes tiles of these types."""
        extents = [constant_index(size) for size in ir.RankedTensorType(types[0]).shape]
        return build.map_(extents, types, [], [], lambda *at: (body(*at), []))[0]

    def tile(self, shape: list[int], element: ir.Type | None = None) -> ir.Type:
        """The type of a tile, of scores where no element type is given."""
        return ir.RankedTensorType.get(shape, element or self.score)

    def factor(self, name: str, arguments: list[ir.Value], made: ir.Type | None = None) -> ir.Value:
        """One of the derived pieces on sums of log decays, in the type of scores or another one."""
        kept = EXACT if made in (None, self.score) else (*EXACT, "arith.mulf", "math.exp")
        (value,) = RoundingEmitter(self.score, self.frame.scalars(), kept, made).inline(block_of(self._piece(name)), arguments)
        return value

    # What is computed

    def _output(self, decays: Decays, parts: "Parts") -> ir.Value:
        """The chunk's rows of o, before they are rounded."""
        o, second = self._of_first(decays, parts), parts.second
        if second is None:
            return o
        if self.channels == "none":
            for piece_ in self.pieces([self.size, self.size], second.decays.weighted(second.scores()), self._whole_weights):
                o = build.dot_accumulate(o, None, piece_, second.v)
            return o
        by_channel = self.by_channel(self, second.decays)
        return (
            by_channel.by_value(o, second.scores(), second.v)
            if self.channels == "value"
            else by_channel.by_key(o, second.q, second.k, second.v)
        )

    def _of_first(self, decays: Decays, parts: "Parts") -> ir.Value:
        """The same, without what a second writer writes."""
        q, k, v = parts.q, parts.k, parts.v
        if self.channels == "none":
            skip = decays.of_rows.skip
            changed = self._change("attn.value") is not None
            weights = decays.weighted(parts.scores(), None if changed else skip)
            o, scale = parts.of_state, decays.rows("attn.leave")
            for number, piece_ in enumerate(self.pieces([self.size, self.size], weights, self._whole_weights)):
                o = build.dot_accumulate(o, scale if number == 0 else None, piece_, v)
            return o if skip is None or not changed else with_own(self, o, skip, self.load(self.inputs.v, decays.chunk))
        if self.channels == "value":
            o = decays.scaled("attn.leave", parts.of_state, self.score)
            return self.by_channel(self, decays).by_value(o, parts.scores(), v)
        return self.by_channel(self, decays).by_key(parts.of_state, q, k, v)

    def carried(self, carry: ir.Value, state: ir.Value) -> ir.Value:
        """What the state before the chunk is after it."""

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            factor = cast_float(tensor.ExtractOp(carry, [i]).result, self.score)
            return [arith.MulFOp(tensor.ExtractOp(state, [i, j]).result, factor).result]

        return self.map([state.type], body)[0]

    def advance(self, scaled: Element, carry: ir.Value | None, state: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """The state after the chunk; `scaled` are elements of what enters it: of k where its channels have decays, otherwise of v."""
        entering, other = (k, v) if self.channels == "key" else (v, k)
        made = self.pieces(list(ir.RankedTensorType(entering.type).shape), scaled, self._whole_state)
        for number, piece_ in enumerate(made):
            pair = (piece_, other) if (self.channels == "key") != self.transposed else (other, piece_)
            state = build.dot_accumulate(state, carry if number == 0 else None, *pair, transpose_a=True)
        return state

    def multiplied(self, tile: ir.Value) -> ir.Value:
        """A tile in the type that products multiply."""
        type_ = ir.RankedTensorType(tile.type)
        if type_.element_type == self.element:
            return tile
        made = [self.tile(type_.shape, self.element)]
        return self.map(made, lambda i, j: [cast_float(tensor.ExtractOp(tile, [i, j]).result, self.element)])[0]

    def pieces(self, shape: list[int], element: Element, two: bool) -> list[ir.Value]:
        """A tile of scores, element by element, in the type that products multiply: rounded, or as `two` tiles that sum up to it."""

        def rounded(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            return [cast_float(element(i, j), self.element)]

        def rest(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            x = element(i, j)
            return [cast_float(arith.SubFOp(x, cast_float(cast_float(x, self.element), self.score)).result, self.element)]

        made = [self.tile(shape, self.element)]
        return [self.map(made, body)[0] for body in ((rounded, rest) if two else (rounded,))]
