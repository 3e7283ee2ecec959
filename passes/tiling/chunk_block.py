"""Builds the work on one chunk of linear attention: its output, and the state after it."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, ir, memref, tensor
from attn_mlir.passes.regions import block_of, piece
from attn_mlir.passes.tiling.frame import Frame, loop
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


class ChunkBlock:
    """Builds chunks of an `attn.chunk`."""

    def __init__(self, frame: Frame, op: ir.Operation, inputs: Inputs, sequence: Sequence, prefix: str) -> None:
        view = op.opview
        self._frame, self._op, self._inputs, self._sequence = frame, op, inputs, sequence
        self._size, self._channels = view.chunk.value, view.channels.value
        self._forward, self._transposed = view.direction.value == "forward", view.state.value == "vk"
        self._keys, self._element = view.k.type.shape[3], view.q.type.element_type
        self._score = block_of(self._piece("attn.carry")).arguments[0].type
        self._wide = ir.F64Type.get() if prefix == "f64" else self._score
        self._rows = constant_index(self._size)

    def build(self, chunk: Chunk, state: ir.Value, o: ir.Value | None, products: ir.Value | None) -> ir.Value:
        """Emits one chunk: stores its outputs, returns the state after it."""
        decays = _Decays(self, chunk)
        q = self.load(self._inputs.q, chunk, "attn.query") if o is not None or products is not None else None
        k, v = self.load(self._inputs.k, chunk, "attn.key"), self.load(self._inputs.v, chunk, "attn.value")
        if q is not None:
            self._outputs(chunk, self._output(decays, state, q, k, v), o, products)
        return self._advance(decays, state, k, v)

    def _piece(self, name: str) -> ir.Operation:
        found = piece(self._op, name)
        if found is None:
            raise ValueError(f"'{self._op.name}' lacks its '{name}' piece")
        return found

    # What is read

    def load(self, source: Input, chunk: Chunk, mod: str | None = None) -> ir.Value:
        """The chunk's rows of an input, after its mod, in its element type."""
        tile = build.load(source.memory, self._sequence.batch, source.head, chunk.begin, chunk.count, self._size)
        change = piece(self._op, mod) if mod is not None else None
        if change is None:
            return tile
        type_ = ir.RankedTensorType(tile.type)

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, self._score)
            places = [self._sequence.batch, source.head, self._position(chunk, i), self._channel(d, mod == "attn.value")]
            (changed,) = self._frame.scalars().inline(block_of(change), [x, *places])
            return [cast_float(changed, type_.element_type)]

        return self.map([type_], body)[0]

    def _position(self, chunk: Chunk, i: ir.Value) -> ir.Value:
        """Position of row i; rows past the end stand for the last one."""
        last = arith.SubIOp(self._sequence.end, constant_index(1)).result
        return arith.MinSIOp(arith.AddIOp(chunk.begin, i).result, last).result

    def _channel(self, d: ir.Value, of_values: bool) -> ir.Value:
        whole = not of_values or self._op.opview.v.type.shape[3] == self._inputs.columns
        return d if whole else arith.AddIOp(self._inputs.first_column, d).result

    def map(self, types: list[ir.Type], body: Callable[..., list[ir.Value]]) -> list[ir.Value]:
        """A `tile.map` without reductions that makes tiles of these types."""
        extents = [constant_index(size) for size in ir.RankedTensorType(types[0]).shape]
        return build.map_(extents, types, [], [], lambda *at: (body(*at), []))[0]

    def tile(self, shape: list[int], element: ir.Type | None = None) -> ir.Type:
        """The type of a tile, of scores where no element type is given."""
        return ir.RankedTensorType.get(shape, element or self._score)

    def factor(self, name: str, arguments: list[ir.Value]) -> ir.Value:
        """One of the derived pieces on sums of log decays."""
        (value,) = RoundingEmitter(self._score, self._frame.scalars()).inline(block_of(self._piece(name)), arguments)
        return value

    # What is computed

    def _output(self, decays: "_Decays", state: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """The chunk's rows of o, before they are rounded."""
        held = self.narrow(state)
        leaving = decays.scaled("attn.leave", q) if self._channels == "key" else q
        o = build.dot(leaving, held, self._score, transpose_b=self._transposed)
        if self._channels == "none":
            weights = decays.weighted(build.dot(q, k, self._score, transpose_b=True))
            return build.dot_accumulate(o, decays.rows("attn.leave"), weights, v)
        if self._channels == "value":
            o = decays.scaled("attn.leave", o, self._score)
            return decays.add_by_value(o, build.dot(q, k, self._score, transpose_b=True), v)
        return decays.add_by_key(o, q, k, v)

    def _advance(self, decays: "_Decays", state: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """The state after the chunk."""
        if self._channels == "key":
            k = decays.scaled("attn.enter", k)
        else:
            v = decays.scaled("attn.enter", v)
        a, b = (v, k) if self._transposed else (k, v)
        return build.dot_accumulate(state, decays.carry(ir.RankedTensorType(state.type).shape[0]), a, b, transpose_a=True)

    def narrow(self, tile: ir.Value) -> ir.Value:
        """A tile in the element type that products multiply."""
        type_ = ir.RankedTensorType(tile.type)
        if type_.element_type == self._element:
            return tile
        return self.map(
            [self.tile(type_.shape, self._element)], lambda i, j: [cast_float(tensor.ExtractOp(tile, [i, j]).result, self._element)]
        )[0]

    def _outputs(self, chunk: Chunk, o: ir.Value, target: ir.Value | None, products: ir.Value | None) -> None:
        place = (self._sequence.batch, self._sequence.head, chunk.begin, chunk.count)
        if target is not None:
            build.store(o, target, *place)
        if products is None or self._inputs.factor is None:
            return
        factor = self.load(self._inputs.factor, chunk)

        def product(i: ir.Value, d: ir.Value) -> ir.Value:
            x = cast_float(tensor.ExtractOp(factor, [i, d]).result, self._score)
            return arith.MulFOp(tensor.ExtractOp(o, [i, d]).result, x).result

        if self._channels != "none":
            (made,) = self.map([o.type], lambda i, d: [product(i, d)])
        else:
            extents = [self._rows, constant_index(self._inputs.columns)]
            _, (made,) = build.map_(extents, [], [self.tile([self._size])], ["sum"], lambda i, d: ([], [product(i, d)]))
        build.store(made, products, *place)


class _Decays:
    """The log decays of one chunk summed up, and the factors that follow from the sums."""

    def __init__(self, block: ChunkBlock, chunk: Chunk) -> None:
        self._block, self._chunk = block, chunk
        decay, mod = block._inputs.decay, piece(block._op, "attn.decay")
        self._prefix: ir.Value | None = None
        self._width = {"none": None, "key": block._keys, "value": block._inputs.columns}[block._channels]
        if decay is not None or mod is not None:
            self._prefix = build.cumsum(self._steps(decay, mod))
        self._all = self._sum(constant_index(block._size - 1), None) if self._width is None else None

    def _steps(self, decay: Input | None, mod: ir.Operation | None) -> ir.Value:
        """The log decay of every position; 0 past the end."""
        block, chunk = self._block, self._chunk
        zero = constant_float(block._wide, 0.0)
        shape = [block._size] if self._width is None else [block._size, self._width]
        rows = block.load(decay, chunk) if len(shape) == 2 and decay is not None else None

        def body(i: ir.Value, *d: ir.Value) -> list[ir.Value]:
            position = block._position(chunk, i)
            g = constant_float(block._score, 0.0)
            if rows is not None:
                g = cast_float(tensor.ExtractOp(rows, [i, *d]).result, block._score)
            elif decay is not None:
                g = cast_float(memref.LoadOp(decay.memory, [block._sequence.batch, decay.head, position]).result, block._score)
            if mod is not None:
                channel = block._channel(d[0], block._channels == "value") if d else constant_index(0)
                places = [block._sequence.batch, block._sequence.head, position, channel]
                (g,) = block._frame.scalars().inline(block_of(mod), [g, *places])
            return [arith.SelectOp(self._exists(i), cast_float(g, block._wide), zero).result]

        return block.map([block.tile(shape, block._wide)], body)[0]

    def _exists(self, i: ir.Value) -> ir.Value:
        return arith.CmpIOp(arith.CmpIPredicate.slt, i, self._chunk.count).result

    def _sum(self, i: ir.Value, d: ir.Value | None) -> ir.Value:
        """The log decays up to row i (of channel d)."""
        if self._prefix is None:
            return constant_float(self._block._score, 0.0)
        return tensor.ExtractOp(self._prefix, [i] if self._width is None or d is None else [i, d]).result

    def _total(self, d: ir.Value | None) -> ir.Value:
        return self._all if self._all is not None else self._sum(constant_index(self._block._size - 1), d)

    def _factor(self, name: str, i: ir.Value, d: ir.Value | None) -> ir.Value:
        """`attn.leave` or `attn.enter` of row i; rows past the end do not enter."""
        value = self._block.factor(name, [self._sum(i, d), self._total(d)])
        if name == "attn.leave":
            return value
        return arith.SelectOp(self._exists(i), value, constant_float(self._block._score, 0.0)).result

    def rows(self, name: str) -> ir.Value:
        """A factor for every row."""
        return self._block.map([self._block.tile([self._block._size])], lambda i: [self._factor(name, i, None)])[0]

    def carry(self, rows: int) -> ir.Value:
        """The factor of every row of the state."""
        block = self._block
        return block.map([block.tile([rows])], lambda i: [block.factor("attn.carry", [self._total(i)])])[0]

    def scaled(self, name: str, tile: ir.Value, element: ir.Type | None = None) -> ir.Value:
        """A tile with each row (or element, where decays have its channels) multiplied by its factor, in the inputs' element type."""
        block = self._block
        shape, element = list(ir.RankedTensorType(tile.type).shape), element or block._element
        by_row = self.rows(name) if self._width is None else None

        def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
            x = cast_float(tensor.ExtractOp(tile, [i, d]).result, block._score)
            factor = self._factor(name, i, d) if by_row is None else tensor.ExtractOp(by_row, [i]).result
            return [cast_float(arith.MulFOp(x, factor).result, element)]

        return block.map([block.tile(shape, element)], body)[0]

    def _present(self, i: ir.Value, j: ir.Value) -> ir.Value:
        """Whether position j adds to the output of position i."""
        before = arith.CmpIPredicate.sge if self._block._forward else arith.CmpIPredicate.sle
        return arith.AndIOp(arith.CmpIOp(before, i, j).result, self._exists(j)).result

    def weighted(self, products: ir.Value) -> ir.Value:
        """q k^T with its weights, 0 for absent pairs, in the inputs' element type."""
        block = self._block
        zero = constant_float(block._score, 0.0)

        def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
            weight = block.factor("attn.weight", [self._sum(i, None), self._sum(j, None)])
            x = arith.MulFOp(tensor.ExtractOp(products, [i, j]).result, weight).result
            return [cast_float(arith.SelectOp(self._present(i, j), x, zero).result, block._element)]

        return block.map([block.tile([block._size, block._size], block._element)], body)[0]

    def add_by_value(self, o: ir.Value, products: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what the chunk's positions add, where every column of v has its own decays."""
        block = self._block
        zero = constant_float(block._score, 0.0)

        def step(s: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
                weight = block.factor("attn.weight", [self._sum(i, d), self._sum(s, d)])
                value = cast_float(tensor.ExtractOp(v, [s, d]).result, block._score)
                x = arith.MulFOp(arith.MulFOp(tensor.ExtractOp(products, [i, s]).result, weight).result, value).result
                x = arith.SelectOp(self._present(i, s), x, zero).result
                return [arith.AddFOp(tensor.ExtractOp(carried[0], [i, d]).result, x).result]

            return block.map([o.type], body)

        return loop(constant_index(0), self._chunk.count, constant_index(1), [o], step)[0]

    def add_by_key(self, o: ir.Value, q: ir.Value, k: ir.Value, v: ir.Value) -> ir.Value:
        """o plus what the chunk's positions add, where every column of q and k has its own decays."""
        block = self._block
        zero = constant_float(block._score, 0.0)

        def step(s: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            def pair(i: ir.Value, d: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
                weight = block.factor("attn.weight", [self._sum(i, d), self._sum(s, d)])
                x, y = (cast_float(tensor.ExtractOp(t, [n, d]).result, block._score) for t, n in ((q, i), (k, s)))
                product = arith.MulFOp(arith.MulFOp(x, y).result, weight).result
                return [], [arith.SelectOp(self._present(i, s), product, zero).result]

            extents = [constant_index(block._size), constant_index(block._keys)]
            _, (scores,) = build.map_(extents, [], [block.tile([block._size])], ["sum"], pair)

            def body(i: ir.Value, d: ir.Value) -> list[ir.Value]:
                value = cast_float(tensor.ExtractOp(v, [s, d]).result, block._score)
                x = arith.MulFOp(tensor.ExtractOp(scores, [i]).result, value).result
                return [arith.AddFOp(tensor.ExtractOp(carried[0], [i, d]).result, x).result]

            return block.map([o.type], body)

        return loop(constant_index(0), self._chunk.count, constant_index(1), [o], step)[0]
