"""The tiles of one chunk of linear attention: what is read, and how tiles are made, whatever they are made for."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialects.attn.linear_erase import eraser
from attn_mlir.dialects.attn.linear_gradients import is_compensated
from attn_mlir.dialects.attn.rows import multiplies_rows
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling.frame import Frame
from attn_mlir.passes.tiling.numerics import Numerics
from attn_mlir.passes.tiling.rounding import EXACT, RoundingEmitter
from attn_mlir.passes.tiling.scalars import cast_float, constant_index

Keep = Callable[[ir.Value, ir.Value], None]
Place = tuple[ir.Value, ir.Value, ir.Value, ir.Value]
"""Batch, head, first position and number of positions of a chunk."""
Put = Callable[[ir.Value, Place], None]
Element = Callable[[ir.Value, ir.Value], ir.Value]


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
class ChunkInput:
    """A tensor in memory, and its head that the program reads; its mod gets `named`, or that one."""

    memory: ir.Value
    head: ir.Value
    named: ir.Value | None = None


@dataclass(frozen=True)
class ChunkInputs:
    """What a program reads; of v, factor and second_value (and decays of v's channels) only the columns that are its own."""

    q: ChunkInput
    k: ChunkInput
    v: ChunkInput
    decay: ChunkInput | None
    factor: ChunkInput | None
    first_column: ir.Value
    columns: int
    erase: ChunkInput | None = None
    second_key: ChunkInput | None = None
    """What is erased with, where it is not k, or a second writer's keys."""
    second_value: ChunkInput | None = None


def row_mod(op: ir.Operation, name: str) -> ir.Operation | None:
    """The mod of an `attn.chunk`, where its factors take it over; None for others, and of decays of channels for all but erasing ones."""
    if name == "attn.value" and eraser(op) is not None:  # what is written is not v
        return None
    found = piece(op, name)
    channels = ir.StringAttr(op.attributes["channels"]).value
    alike = channels == "none" or (channels == "key" and eraser(op) is not None)
    return found if found is not None and alike and multiplies_rows(found) else None


class ChunkTiles:
    """Makes tiles of the chunks of an `attn.chunk`."""

    def __init__(self, frame: Frame, op: ir.Operation, inputs: ChunkInputs, sequence: Sequence, numerics: Numerics) -> None:
        view = op.opview
        self.frame, self.op, self.inputs, self.sequence = frame, op, inputs, sequence
        self.size, self.channels = view.chunk.value, view.channels.value
        self.forward = view.direction.value == "forward"
        self.transposed = view.state.value == "vk"
        self.keys = view.k.type.shape[3]
        self.score = block_of(self._piece("attn.chunk_decay")).arguments[0].type
        narrow = view.q.type.element_type.width == 16
        self.wide = ir.F64Type.get() if numerics.prefix == "f64" or (numerics.prefix == "wider" and not narrow) else self.score
        self.carried_in = self.wide if numerics.wide_decay else self.score
        self.element = self.score if numerics.widen else view.q.type.element_type
        # What rounding of the state leaves in sums of products does not cancel where they are subtracted; bf16 has too few digits for what
        # erasing reads of a state and writes to it.
        rough = eraser(op) is not None and isinstance(self.element, ir.BF16Type)
        self.two_pieces = (is_compensated(op) or rough) and self.element != self.score
        # Small weights of f16 would be gone where products flush them, and a state that all of the sequence's decays lie before.
        self._flushed = numerics.flushing and isinstance(self.element, ir.F16Type)
        self.pair_products: dict[tuple[ir.Value | None, ir.Value, ir.Value, bool], ir.Value] = {}
        """What `chunk_levels` made of sums of decays, a reader, a key, and whether positions read themselves."""
        self._whole_state = self.two_pieces or (self._flushed and not self.forward)

    def _piece(self, name: str) -> ir.Operation:
        found = piece(self.op, name)
        if found is None:
            raise ValueError(f"'{self.op.name}' lacks its '{name}' piece")
        return found

    # What is read

    def load(self, source: ChunkInput, chunk: Chunk, mod: str | None = None) -> ir.Value:
        """The chunk's rows of an input, after its mod (unless that multiplies rows, see `chunk_rows`), in its element type."""
        tile = build.load(source.memory, self.sequence.batch, source.head, chunk.begin, chunk.count, self.size)
        change = None if mod is None else self._change(mod)
        type_ = ir.RankedTensorType(tile.type)
        if (change is None and type_.element_type == self.element) or mod is None:
            return tile

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, self.score)
            if change is not None:
                head = source.named or source.head
                places = [self.sequence.batch, head, self.position_of(chunk, i), self.channel(d, mod == "attn.value")]
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

    def multiplied(self, tile: ir.Value) -> ir.Value:
        """A tile in the type that products multiply."""
        type_ = ir.RankedTensorType(tile.type)
        if type_.element_type == self.element:
            return tile
        made = [self.tile(type_.shape, self.element)]
        return self.map(made, lambda i, j: [cast_float(tensor.ExtractOp(tile, [i, j]).result, self.element)])[0]

    def factors(self, tile: ir.Value) -> list[ir.Value]:
        """A tile in the type that products multiply: itself, or tiles that sum up to it."""
        type_ = ir.RankedTensorType(tile.type)
        if type_.element_type == self.element:
            return [tile]
        return self.pieces(list(type_.shape), lambda i, j: tensor.ExtractOp(tile, [i, j]).result, self.two_pieces)

    def pieces(self, shape: list[int], element: Element, two: bool) -> list[ir.Value]:
        """A tile of scores, element by element, in the type that products multiply: rounded, or as `two` tiles that sum up to it."""

        def rounded(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            return [cast_float(element(i, j), self.element)]

        def residual(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            x = element(i, j)
            return [cast_float(arith.SubFOp(x, cast_float(cast_float(x, self.element), self.score)).result, self.element)]

        made = [self.tile(shape, self.element)]
        return [self.map(made, body)[0] for body in ((rounded, residual) if two else (rounded,))]

    # The state

    def carried(self, chunk_decay: ir.Value, state: ir.Value) -> ir.Value:
        """What the state before the chunk is after it."""

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            factor = cast_float(tensor.ExtractOp(chunk_decay, [i]).result, self.score)
            return [arith.MulFOp(tensor.ExtractOp(state, [i, j]).result, factor).result]

        return self.map([state.type], body)[0]

    def advance(self, scaled: Element, chunk_decay: ir.Value | None, state: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """The state after the chunk; `scaled` are elements of what enters it: of k where its channels have decays, otherwise of v."""
        entering, other = (k, v) if self.channels == "key" else (v, k)
        made = self.pieces(list(ir.RankedTensorType(entering.type).shape), scaled, self._whole_state)
        for number, (piece_, factor) in enumerate(products_of(made, self.factors(other))):
            pair = (piece_, factor) if (self.channels == "key") != self.transposed else (factor, piece_)
            state = build.dot_accumulate(state, chunk_decay if number == 0 else None, *pair, transpose_a=True)
        return state


def products_of(a: list[ir.Value], b: list[ir.Value]) -> list[tuple[ir.Value, ir.Value]]:
    """The products of two tiles in pieces, each of a first one and, where there is, what rounding left of it; not those of what is left."""
    return [(x, y) for n, x in enumerate(a) for m, y in enumerate(b) if n == 0 or m == 0]
