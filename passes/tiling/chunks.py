"""Builds the kernel of an `attn.chunk`: a loop over the chunks of a sequence that carries the state."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace

from attn_mlir.dialects.attn.linear_erase import eraser, writer
from attn_mlir.dialects.attn.linear_gradients import interval_of
from attn_mlir.dialects.attn.linear_recurrence import state_shape, with_all_heads
from attn_mlir.dialects.attn.linear_segments import identity_of, segment_of
from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, memref, scf
from attn_mlir.passes.linear_groups import follower_of, gradient_of
from attn_mlir.passes.regions import block_of, pieces, returned_by
from attn_mlir.passes.tiling.chunk_block import ChunkBlock
from attn_mlir.passes.tiling.chunk_channels import AT_ONCE, fits_at_once
from attn_mlir.passes.tiling.chunk_decays import Decays
from attn_mlir.passes.tiling.chunk_gradient import ChunkGradient
from attn_mlir.passes.tiling.chunk_products import ChunkTerms
from attn_mlir.passes.tiling.chunk_rows import row_factors
from attn_mlir.passes.tiling.chunk_tiles import Chunk, ChunkInput, ChunkInputs, Put, Sequence
from attn_mlir.passes.tiling.frame import Frame, Output, argument_number, loop
from attn_mlir.passes.tiling.numerics import Numerics, numerics_of
from attn_mlir.passes.tiling.scalars import constant_float, constant_index
from attn_mlir.passes.tiling.views import columns, slot

_EXACT = 16
"""Pairs in blocks of so many positions are one by one, at least, where what products of tiles round would spoil a difference."""


def build_chunks(function: ir.Operation, op: ir.Operation, block_kv: int | None, name: str) -> bool:
    """Inserts the kernel of an `attn.chunk` before the function; False after an error, which the pass called `name` reports.

    Programs work on `block_kv` columns of v each (None: all of them).
    """
    view = op.opview
    width = view.v.type.shape[3]
    size = width if block_kv is None else block_kv
    if width % size:
        op.location.emit_error(f"{name}: blocks of {size} columns do not divide v's {width}")
        return False
    gradient, beside = gradient_of(op), follower_of(op)
    if (gradient is not None or beside is not None) and size != width:
        op.location.emit_error(f"{name}: a scan that adds up the gradient of the decays, or shares states, works on all columns of v")
        return False
    at_once, numerics = AT_ONCE in function.attributes, numerics_of(function, name)
    if at_once and not fits_at_once(op):
        op.location.emit_error(f"{name}: '{AT_ONCE}' holds for exponentials of decays of keys' channels, or of values' with products")
        return False
    if numerics is None:
        return False
    blocks, returned = width // size, [ir.OpResult(value) for value in returned_by(function)]
    made = [_result_name(op, value) for value in returned]
    kinds = [_kind(op, name, blocks) for name in made]
    outputs = [Output(value.owner.operation, kind, (), value.result_number) for kind, value in zip(kinds, returned, strict=True)]
    with op.location:
        frame = Frame(function, [each for each in (op, gradient, beside) if each is not None], outputs, names=(_names(op), made))
        frame.describe(_attributes(op, size, blocks, _score_type(op)), outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            _Scan(frame, op, size, numerics, at_once).build(dict(zip(made, frame.outputs, strict=True)))
            func.ReturnOp([])
    return True


def _result_name(op: ir.Operation, value: ir.OpResult) -> str:
    """What a result of the scan, or of what runs with it, is called."""
    maker = value.owner.operation
    if maker.name == "attn.decay_gradient":
        return "d_log_decay"
    name = ("o", *(each.value for each in maker.opview.outputs))[value.result_number]
    return name if maker == op else f"{name}_beside"


def _names(op: ir.Operation) -> dict[int, str]:
    """Names for the function's arguments after what the op takes them as."""
    view = op.opview
    roles = {"q": view.q, "k": view.k, "v": view.v, "decay": view.decay}
    roles |= {"initial_state": view.initial_state, "factor": view.factor, "offsets": view.offsets}
    found: dict[int, str] = {}
    for name, value in roles.items():
        number = None if value is None else argument_number(value)
        if number is not None:
            found.setdefault(number, name)
    return found


def _score_type(op: ir.Operation) -> ir.Type:
    return block_of(pieces(op, "attn.chunk_decay")[0]).arguments[0].type


def _kind(op: ir.Operation, name: str, blocks: int) -> str:
    """Sums over v's columns are added up over the programs that share them."""
    return "accumulate" if name in ("products", "diagonal") and blocks > 1 and op.opview.channels.value == "none" else "store"


def _put(target: ir.Value | None) -> Put | None:
    """Stores sums of a chunk's positions there."""
    return None if target is None else lambda made, place: build.store(made, target, *place)


def _attributes(op: ir.Operation, block_kv: int, blocks: int, score: ir.Type) -> Mapping[str, ir.Attribute | int | str]:
    view = op.opview
    over = argument_number(with_all_heads(op))
    attributes = {"grid": "chunks", "block_q": view.chunk.value, "block_kv": block_kv, "blocks": blocks, "over": over}
    if view.offsets is not None:
        attributes["sequences"] = argument_number(view.offsets)
    if (segment := segment_of(op)) is not None:
        attributes["segment"] = segment
    return {**attributes, "score": ir.TypeAttr.get(score)}


def _divides(step: ir.Value, position: ir.Value) -> ir.Value:
    return arith.CmpIOp(arith.CmpIPredicate.eq, arith.RemSIOp(position, step).result, constant_index(0)).result


class _Scan:
    """One program's scan over the chunks of its sequence."""

    def __init__(self, frame: Frame, op: ir.Operation, block_kv: int, numerics: Numerics, at_once: bool) -> None:
        self._gradient, self._beside = gradient_of(op), follower_of(op)
        self._frame, self._op, self._view = frame, op, op.opview
        self._chunk = self._view.chunk.value
        self._forward = self._view.direction.value == "forward"
        self._columns, self._blocks = block_kv, self._view.v.type.shape[3] // block_kv
        self._transposed = self._view.state.value == "vk"
        self._numerics, self._at_once, self._segment, self._interval = numerics, at_once, segment_of(op), interval_of(op) or self._chunk
        self._whole = self._view.offsets is None and self._segment is None

    def _sub(self) -> int:
        """Positions of the blocks whose pairs are one by one: more where rounded products are added up for gradients of decays."""
        narrow = self._op.operands[0].type.element_type.width == 16 and not self._numerics.widen  # pyright: ignore
        usual = self._numerics.sub_chunk
        if not narrow:
            return usual
        if self._view.factor is not None:
            return max(usual, _EXACT)
        return (self._numerics.sub_chunk_keys or usual) if self._view.channels.value == "key" else usual

    def build(self, targets: Mapping[str, ir.Value]) -> None:
        """Emits the program; `targets` are the outputs' memrefs by name."""
        block, head, number = (build.program_id(axis) for axis in range(3))
        first_column = arith.MulIOp(block, constant_index(self._columns)).result if self._blocks > 1 else constant_index(0)
        sequence = self._sequence(number, head)
        inputs = self._inputs(sequence, first_column)
        o = columns(targets["o"], first_column, self._columns) if "o" in targets else None
        products, diagonal = (self._products(targets.get(name), block, first_column) for name in ("products", "diagonal"))
        rows, state_columns = state_shape(self._op)
        state_row = first_column if self._transposed else constant_index(0)
        height = constant_index(self._columns if self._transposed else rows)
        at = (sequence.state, head)

        def narrow(memory: ir.Value | None) -> ir.Value | None:
            """The columns of a tensor of states that belong to this program."""
            return memory if memory is None or self._transposed else columns(memory, first_column, self._columns)

        finals = [narrow(targets[name]) for name in ("final_state", "final_state_beside") if name in targets]
        states = narrow(targets.get("states"))

        body = ChunkBlock(self._frame, self._op, inputs, sequence, self._numerics, self._sub(), at_once=self._at_once)

        def keep(chunk: Chunk, state: ir.Value, chunk_decay: ir.Value) -> None:
            if states is not None:
                seen = body.carried(chunk_decay, state) if "crossing" in self._op.attributes and not self._forward else state
                self._keep(chunk, sequence, seen, states, (rows, state_row, height))

        also = self._beside_of(inputs, sequence)
        of_beside = targets.get("o_beside")

        def step(chunk: Chunk, state: ir.Value) -> ir.Value:
            def beside(decays: Decays, state: ir.Value, k: ir.Value, v: ir.Value) -> None:
                if also is not None and of_beside is not None:
                    q = also.load(also.inputs.q, chunk, "attn.query")
                    seen = decays.for_queries(row_factors(also, chunk, queries=True))
                    also.put_rows(chunk, ChunkTerms(also, seen, state, q, v, k), of_beside)

            if self._gradient is not None:
                view, row = self._gradient.opview, self._state_row(chunk, sequence, rows)
                gradient = ChunkGradient(body, chunk, self._frame.get(view.a), self._frame.get(view.s), row, targets["d_log_decay"])
                return body.build(chunk, state, o, gradient.store, gradient.keep, beside, diagonal=_put(diagonal))
            beside_state = functools.partial(keep, chunk)
            return body.build(chunk, state, o, _put(products), beside_state, beside, diagonal=_put(diagonal))

        shape = [self._columns, state_columns] if self._transposed else [rows, self._columns]
        initial = self._initial(narrow, at, (state_row, height), shape, first_column, sequence)
        last = self._loop(sequence, initial, step)
        for final in finals:
            build.store(last, final, *at, state_row, height)

    def _beside_of(self, inputs: ChunkInputs, sequence: Sequence) -> ChunkBlock | None:
        """The chunks of the scan that shares this one's states."""
        if self._beside is None:
            return None
        view = self._beside.opview
        q = self._input(view.q, self._frame.get(view.q), sequence)
        given = ChunkInputs(q, inputs.v, inputs.k, inputs.decay, None, inputs.first_column, view.v.type.shape[3])
        return ChunkBlock(self._frame, self._beside, given, sequence, self._numerics, self._sub())

    def _sequence(self, number: ir.Value, head: ir.Value) -> Sequence:
        """Where this program's sequence, or its segment, lies in the tensors."""
        zero, one = constant_index(0), constant_index(1)
        heads = memref.DimOp(self._frame.get(with_all_heads(self._op)), one).result
        if self._view.offsets is None:
            # Segments are those of one tensor, whatever scans read, so that their chunks have equal forms.
            counted = self._view.q if self._segment is None else with_all_heads(self._op)
            end = memref.DimOp(self._frame.get(counted), constant_index(2)).result
            if self._segment is None:
                return Sequence(number, number, head, heads, zero, end)
            size = constant_index(self._segment)
            count = arith.CeilDivSIOp(end, size).result
            begin = arith.MulIOp(arith.RemSIOp(number, count).result, size).result
            end = arith.MinSIOp(end, arith.AddIOp(begin, size).result).result
            return Sequence(arith.DivSIOp(number, count).result, number, head, heads, begin, end)
        offsets = self._frame.get(self._view.offsets)
        begin, end = (
            arith.IndexCastOp(ir.IndexType.get(), memref.LoadOp(offsets, [at]).result).result
            for at in (number, arith.AddIOp(number, one).result)
        )
        return Sequence(zero, number, head, heads, begin, end)

    def _inputs(self, sequence: Sequence, first_column: ir.Value) -> ChunkInputs:
        def narrow(operand: ir.Value | None) -> ir.Value | None:
            return None if operand is None else columns(self._frame.get(operand), first_column, self._columns)

        view, get = self._view, self._frame.get
        by_value = view.channels.value == "value"
        decay = None if view.decay is None else narrow(view.decay) if by_value else get(view.decay)

        def of_heads(operand: ir.Value | None, memory: ir.Value | None) -> ChunkInput | None:
            return None if operand is None or memory is None else self._input(operand, memory, sequence)

        found = [of_heads(operand, memory) for operand, memory in ((view.q, get(view.q)), (view.k, get(view.k)), (view.v, narrow(view.v)))]
        q, k, v = (each for each in found if each is not None)
        factor = of_heads(view.factor, narrow(view.factor))
        erase, second_key, second_value = self._delta(sequence, narrow)
        return ChunkInputs(
            q, k, v, of_heads(view.decay, decay), factor, first_column, self._columns, erase, second_key, second_value
        )  # fmt: skip

    def _delta(
        self, sequence: Sequence, narrow: Callable[[ir.Value | None], ir.Value | None]
    ) -> tuple[ChunkInput | None, ChunkInput | None, ChunkInput | None]:
        """The erase key, the second writer's key and its values."""
        erase, write = eraser(self._op), writer(self._op)
        if write is not None:
            key, value = write.operands
            memory = narrow(value)
            assert memory is not None
            return None, self._input(key, self._frame.get(key), sequence), self._input(value, memory, sequence)
        if erase is None:
            return None, None, None
        key, *removed = (self._input(operand, self._frame.get(operand), sequence) for operand in erase.operands)
        return replace(key, named=sequence.head), replace(removed[0], named=sequence.head) if removed else None, None

    def _input(self, operand: ir.Value, memory: ir.Value, sequence: Sequence) -> ChunkInput:
        """An operand in memory, and the head that belongs to the program's."""
        if operand == with_all_heads(self._op):
            return ChunkInput(memory, sequence.head)
        heads = memref.DimOp(self._frame.get(operand), constant_index(1)).result
        return ChunkInput(memory, arith.DivSIOp(sequence.head, arith.DivSIOp(sequence.heads, heads).result).result)

    def _products(self, target: ir.Value | None, block: ir.Value, first_column: ir.Value) -> ir.Value | None:
        if target is None:
            return None
        if self._view.channels.value != "none":
            return columns(target, first_column, self._columns)
        return slot(target, block) if self._blocks > 1 else target

    def _initial(
        self,
        narrow: Callable[[ir.Value | None], ir.Value | None],
        at: tuple[ir.Value, ir.Value],
        rows: tuple[ir.Value, ir.Value],
        shape: list[int],
        first_column: ir.Value,
        sequence: Sequence,
    ) -> ir.Value:
        identity = identity_of(self._op)
        if identity is not None:
            return self._identity(shape, arith.AddIOp(first_column, constant_index(identity)).result)
        if self._view.initial_state is None:
            return build.fill(constant_float(_score_type(self._op), 0.0), shape, 0)
        memory = narrow(self._frame.get(self._view.initial_state))
        assert memory is not None
        if "starts" in self._op.attributes:
            number = arith.DivSIOp(sequence.begin, constant_index(self._segment or 1)).result
            first = arith.MulIOp(number, constant_index(state_shape(self._op)[0])).result
            return build.load(memory, sequence.batch, at[1], arith.AddIOp(first, rows[0]).result, rows[1], shape[0])
        return build.load(memory, *at, *rows, shape[0])

    def _identity(self, shape: list[int], first: ir.Value) -> ir.Value:
        """Columns of the identity from `first` on."""
        score = _score_type(self._op)

        def body(i: ir.Value, j: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            same = arith.CmpIOp(arith.CmpIPredicate.eq, i, arith.AddIOp(first, j).result).result
            return [arith.SelectOp(same, constant_float(score, 1.0), constant_float(score, 0.0)).result], []

        return build.map_([constant_index(n) for n in shape], [ir.RankedTensorType.get(shape, score)], [], [], body)[0][0]

    def _loop(self, sequence: Sequence, initial: ir.Value, step: Callable[[Chunk, ir.Value], ir.Value]) -> ir.Value:
        """The chunks in the order of the scan."""
        size, zero = constant_index(self._chunk), constant_index(0)
        length = sequence.end if self._whole else arith.SubIOp(sequence.end, sequence.begin).result

        def at(start: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            count = arith.MinSIOp(size, arith.SubIOp(length, start).result).result
            begin = start if self._whole else arith.AddIOp(sequence.begin, start).result
            return [step(Chunk(begin, start, count), carried[0])]

        if self._forward:
            return loop(zero, length, size, [initial], at)[0]
        chunks = arith.CeilDivSIOp(length, size).result

        def backward(n: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            number = arith.SubIOp(arith.SubIOp(chunks, constant_index(1)).result, n).result
            return at(arith.MulIOp(number, size).result, carried)

        return loop(zero, chunks, constant_index(1), [initial], backward)[0]

    def _keep(self, chunk: Chunk, sequence: Sequence, state: ir.Value, target: ir.Value, place: tuple[int, ir.Value, ir.Value]) -> None:
        """Stores the state at a boundary of the chunk, where an interval begins with it."""
        rows, state_row, height = place
        step = constant_index(self._interval)

        def write() -> None:
            row = arith.AddIOp(self._state_row(chunk, sequence, rows), state_row).result
            build.store(state, target, sequence.batch, sequence.head, row, height)

        if self._interval == self._chunk:
            write()
            return
        branch = scf.IfOp(self._ends_interval(chunk, sequence, step) if self._enters else _divides(step, chunk.start))
        with ir.InsertionPoint(branch.then_block):
            write()
            scf.YieldOp([])

    @property
    def _enters(self) -> bool:
        """Whether states are those on the way into an interval from its end."""
        return "entering" in self._op.attributes and not self._forward

    def _ends_interval(self, chunk: Chunk, sequence: Sequence, step: ir.Value) -> ir.Value:
        """Whether the chunk is the last one of an interval."""
        length = sequence.end if self._whole else arith.SubIOp(sequence.end, sequence.begin).result
        end = arith.AddIOp(chunk.start, constant_index(self._chunk)).result
        last = arith.CmpIOp(arith.CmpIPredicate.sge, end, length).result
        return arith.OrIOp(_divides(step, end), last).result

    def _state_row(self, chunk: Chunk, sequence: Sequence, rows: int) -> ir.Value:
        """Where states of so many rows have that of the chunk's interval."""
        step = constant_index(self._interval)
        number = arith.DivSIOp(chunk.start if self._segment is None else chunk.begin, step).result
        if self._view.offsets is not None:
            before = arith.AddIOp(arith.DivSIOp(sequence.begin, step).result, sequence.state).result
            number = arith.AddIOp(number, before).result
        return arith.MulIOp(number, constant_index(rows)).result
