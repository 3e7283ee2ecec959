"""Builds the work on one chunk of linear attention: its output, and the state after it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, memref, tensor
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling.frame import Frame
from attn_mlir.passes.tiling.rounding import RoundingEmitter
from attn_mlir.passes.tiling.scalars import cast_float, constant_float, constant_index


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
    """`count` positions from `begin` on, which is `start` in its sequence of `length`."""

    begin: ir.Value
    start: ir.Value
    count: ir.Value
    length: ir.Value


@dataclass(frozen=True)
class Input:
    """A tensor in memory, and its head that the program reads."""

    memory: ir.Value
    head: ir.Value


@dataclass(frozen=True)
class Inputs:
    """What a program reads; of v and factor (and decays of v's channels) only the columns that are its own."""

    q: Input
    k: Input
    v: Input
    decay: Input | None
    factor: Input | None
    first_column: ir.Value
    columns: int


class ByChannel(Protocol):
    """What a chunk's positions add to its output where channels have decays of their own."""

    def by_key(self, o: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what is added, for decays of the columns of q and k."""
        ...

    def by_value(self, o: ir.Value, products: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what is added, for decays of the columns of v; `products` is q k^T."""
        ...


class ChunkBlock:
    """Builds chunks of an `attn.chunk`."""

    def __init__(
        self, frame: Frame, op: ir.Operation, inputs: Inputs, sequence: Sequence, prefix: str, by_channel: "Callable[..., ByChannel]"
    ) -> None:
        """`by_channel(block, decays)` builds what a chunk's positions add where channels have decays of their own."""
        view = op.opview
        self._by_channel = by_channel
        self.frame, self.op, self.inputs, self.sequence = frame, op, inputs, sequence
        self.size, self.channels = view.chunk.value, view.channels.value
        self.forward, self._transposed = view.direction.value == "forward", view.state.value == "vk"
        self.keys, self.element = view.k.type.shape[3], view.q.type.element_type
        self.score = block_of(self._piece("attn.carry")).arguments[0].type
        self.wide = ir.F64Type.get() if prefix == "f64" else self.score
        self._rows = constant_index(self.size)

    def build(self, chunk: Chunk, state: ir.Value, o: ir.Value | None, products: ir.Value | None) -> ir.Value:
        """Emits one chunk: stores its outputs, returns the state after it."""
        decays = Decays(self, chunk)
        q = self.load(self.inputs.q, chunk, "attn.query") if o is not None or products is not None else None
        k, v = self.load(self.inputs.k, chunk, "attn.key"), self.load(self.inputs.v, chunk, "attn.value")
        if q is not None:
            self._outputs(chunk, self._output(decays, state, q, k, v), o, products)
        return self._advance(decays, state, k, v)

    def _piece(self, name: str) -> ir.Operation:
        found = piece(self.op, name)
        if found is None:
            raise ValueError(f"'{self.op.name}' lacks its '{name}' piece")
        return found

    # What is read

    def load(self, source: Input, chunk: Chunk, mod: str | None = None) -> ir.Value:
        """The chunk's rows of an input, after its mod, in its element type."""
        tile = build.load(source.memory, self.sequence.batch, source.head, chunk.begin, chunk.count, self.size)
        change = piece(self.op, mod) if mod is not None else None
        if change is None:
            return tile
        type_ = ir.RankedTensorType(tile.type)

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, self.score)
            places = [self.sequence.batch, source.head, self.position_of(chunk, i), self.channel(d, mod == "attn.value")]
            (changed,) = self.frame.scalars().inline(block_of(change), [x, *places])
            return [cast_float(changed, type_.element_type)]

        return self.map([type_], body)[0]

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

    def factor(self, name: str, arguments: list[ir.Value]) -> ir.Value:
        """One of the derived pieces on sums of log decays."""
        (value,) = RoundingEmitter(self.score, self.frame.scalars()).inline(block_of(self._piece(name)), arguments)
        return value

    # What is computed

    def _output(self, decays: "Decays", state: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """The chunk's rows of o, before they are rounded."""
        held = self.narrow(state)
        leaving = decays.scaled("attn.leave", q) if self.channels == "key" else q
        o = build.dot(leaving, held, self.score, transpose_b=self._transposed)
        if self.channels == "none":
            weights = decays.weighted(build.dot(q, k, self.score, transpose_b=True))
            return build.dot_accumulate(o, decays.rows("attn.leave"), weights, v)
        if self.channels == "value":
            o = decays.scaled("attn.leave", o, self.score)
            return self._by_channel(self, decays).by_value(o, build.dot(q, k, self.score, transpose_b=True), v)
        return self._by_channel(self, decays).by_key(o, q, k, v)

    def _advance(self, decays: "Decays", state: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """The state after the chunk."""
        if self.channels == "key":
            k = decays.scaled("attn.enter", k)
        else:
            v = decays.scaled("attn.enter", v)
        a, b = (v, k) if self._transposed else (k, v)
        return build.dot_accumulate(state, decays.carry(ir.RankedTensorType(state.type).shape[0]), a, b, transpose_a=True)

    def narrow(self, tile: ir.Value) -> ir.Value:
        """A tile in the element type that products multiply."""
        type_ = ir.RankedTensorType(tile.type)
        if type_.element_type == self.element:
            return tile
        return self.map(
            [self.tile(type_.shape, self.element)], lambda i, j: [cast_float(tensor.ExtractOp(tile, [i, j]).result, self.element)]
        )[0]

    def _outputs(self, chunk: Chunk, o: ir.Value, target: ir.Value | None, products: ir.Value | None) -> None:
        place = (self.sequence.batch, self.sequence.head, chunk.begin, chunk.count)
        if target is not None:
            build.store(o, target, *place)
        if products is None or self.inputs.factor is None:
            return
        factor = self.load(self.inputs.factor, chunk)

        def product(i: ir.Value, d: ir.Value) -> ir.Value:
            x = cast_float(tensor.ExtractOp(factor, [i, d]).result, self.score)
            return arith.MulFOp(tensor.ExtractOp(o, [i, d]).result, x).result

        if self.channels != "none":
            (made,) = self.map([o.type], lambda i, d: [product(i, d)])
        else:
            extents = [self._rows, constant_index(self.inputs.columns)]
            _, (made,) = build.map_(extents, [], [self.tile([self.size])], ["sum"], lambda i, d: ([], [product(i, d)]))
        build.store(made, products, *place)


class Decays:
    """The log decays of one chunk summed up, and the factors that follow from the sums."""

    def __init__(self, block: ChunkBlock, chunk: Chunk) -> None:
        self._block, self._chunk = block, chunk
        decay, mod = block.inputs.decay, piece(block.op, "attn.decay")
        self._prefix: ir.Value | None = None
        self._width = {"none": None, "key": block.keys, "value": block.inputs.columns}[block.channels]
        if decay is not None or mod is not None:
            self._prefix = build.cumsum(self._steps(decay, mod))
        self._all = self._sum(constant_index(block.size - 1), None) if self._width is None else None

    def _steps(self, decay: Input | None, mod: ir.Operation | None) -> ir.Value:
        """The log decay of every position; 0 past the end."""
        block, chunk = self._block, self._chunk
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
            return [arith.SelectOp(self._exists(i), cast_float(g, block.wide), zero).result]

        return block.map([block.tile(shape, block.wide)], body)[0]

    def _exists(self, i: ir.Value) -> ir.Value:
        return arith.CmpIOp(arith.CmpIPredicate.slt, i, self._chunk.count).result

    def _sum(self, i: ir.Value, d: ir.Value | None) -> ir.Value:
        """The log decays up to row i (of channel d)."""
        if self._prefix is None:
            return constant_float(self._block.score, 0.0)
        return tensor.ExtractOp(self._prefix, [i] if self._width is None or d is None else [i, d]).result

    def _total(self, d: ir.Value | None) -> ir.Value:
        return self._all if self._all is not None else self._sum(constant_index(self._block.size - 1), d)

    def _factor(self, name: str, i: ir.Value, d: ir.Value | None) -> ir.Value:
        """`attn.leave` or `attn.enter` of row i; rows past the end do not enter."""
        value = self._block.factor(name, [self._sum(i, d), self._total(d)])
        if name == "attn.leave":
            return value
        return arith.SelectOp(self._exists(i), value, constant_float(self._block.score, 0.0)).result

    def rows(self, name: str) -> ir.Value:
        """A factor for every row."""
        return self._block.map([self._block.tile([self._block.size])], lambda i: [self._factor(name, i, None)])[0]

    def carry(self, rows: int) -> ir.Value:
        """The factor of every row of the state."""
        block = self._block
        return block.map([block.tile([rows])], lambda i: [block.factor("attn.carry", [self._total(i)])])[0]

    def scaled(self, name: str, tile: ir.Value, element: ir.Type | None = None) -> ir.Value:
        """A tile with each row (or element, where decays have its channels) multiplied by its factor, in the inputs' element type."""
        block = self._block
        shape, element = list(ir.RankedTensorType(tile.type).shape), element or block.element
        by_row = self.rows(name) if self._width is None else None

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, block.score)
            factor = self._factor(name, i, d) if by_row is None else tensor.ExtractOp(by_row, [i]).result
            return [cast_float(arith.MulFOp(x, factor).result, element)]

        return block.map([block.tile(shape, element)], body)[0]

    def present(self, i: ir.Value, j: ir.Value) -> ir.Value:
        """Whether position j adds to the output of position i."""
        before = arith.CmpIPredicate.sge if self._block.forward else arith.CmpIPredicate.sle
        return arith.AndIOp(arith.CmpIOp(before, i, j).result, self._exists(j)).result

    def weighted(self, products: ir.Value) -> ir.Value:
        """q k^T with its weights, 0 for absent pairs, in the inputs' element type."""
        block = self._block
        zero = constant_float(block.score, 0.0)

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            weight = block.factor("attn.weight", [self._sum(i, None), self._sum(j, None)])
            x = arith.MulFOp(tensor.ExtractOp(products, [i, j]).result, weight).result
            return [cast_float(arith.SelectOp(self.present(i, j), x, zero).result, block.element)]

        return block.map([block.tile([block.size, block.size], block.element)], body)[0]

    def weight(self, t: ir.Value, s: ir.Value, d: ir.Value) -> ir.Value:
        """The factor of position s at position t in channel d."""
        return self._block.factor("attn.weight", [self._sum(t, d), self._sum(s, d)])
