"""Builds the tiled kernel of one `attn.online`."""

from collections.abc import Sequence
from dataclasses import replace

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, memref
from attn_mlir.passes.key_lists import key_lists_of
from attn_mlir.passes.regions import block_of, piece, pieces
from attn_mlir.passes.sequences import packing_of, pages_of
from attn_mlir.passes.tiling.block import BlockBuilder, GridTile, RowSource, is_constant
from attn_mlir.passes.tiling.frame import argument_number, branch, in_memory, loop
from attn_mlir.passes.tiling.listed import Limits, Range, keys_of, listed_keys, range_of, rows_in, rows_of
from attn_mlir.passes.tiling.narrow import ProductTypes
from attn_mlir.passes.tiling.results import TiledResult, returned
from attn_mlir.passes.tiling.scalars import ScalarEmitter, clone_scalar, constant_float, constant_index
from attn_mlir.passes.tiling.segments import Segment, plan_segments
from attn_mlir.passes.tiling.work import (
    COLUMNS,
    PART_COLUMNS,
    item_of,
    item_types,
    lengths_of,
    part_of,
    ragged_numbers,
    read,
    share_reads,
    span_of,
)


class KernelBuilder:
    """Turns `func.func @f(tensors...) -> (tensors...)` holding an `attn.online` into a kernel on memrefs.

    The kernel's outputs are what the function returns, in that order; what only others need is not computed.
    """

    def __init__(
        self, function: ir.Operation, online: ir.Operation, blocks: Sequence[int], types: ProductTypes, whole: bool = False
    ) -> None:
        self._function = function
        self._online = online
        self._lists = key_lists_of(online)
        block_q, block_kv = blocks
        self._block_q = block_q if self._lists is None else rows_of(self._lists, block_q)
        self._block_kv = block_kv if self._lists is None else keys_of(self._lists, block_kv)
        self._whole = whole
        self._score = self._score_type()
        self._types = types
        self._accumulators = ir.IntegerAttr(online.attributes["accumulators"]).value
        sources = online.attributes["sources"] if "sources" in online.attributes else None
        self._sources = [0] * self._accumulators if sources is None else list(ir.DenseI64ArrayAttr(sources))
        self._packed = packing_of(online, "query")
        self._parts = piece(online, "attn.parts")
        self._part_list = piece(online, "attn.part_list") is not None
        self._entry: ir.Value | None = None
        """The entry of the results that a program makes; None: that of the queries."""
        self._limits: tuple[ir.Value, ir.Value] | None = None
        """The keys of the program's part."""
        self._range: Range | None = None
        """The entries of the program's list."""
        self._results: list[TiledResult] = []
        self._live: list[int] = []

    def build(self) -> bool:
        """Inserts the kernel before the function, under the same name; False after an error."""
        entry = self._function.regions[0].blocks[0]
        results = returned(self._function, self._online)
        if results is None or not self._sums_one_type():
            return False
        self._results, self._live = results, self._live_accumulators(results)
        with self._online.location, ir.InsertionPoint(self._function):
            inputs = [in_memory(argument.type) for argument in entry.arguments]
            outputs = [in_memory(result.type) for result in results]
            name = ir.StringAttr(self._function.attributes["sym_name"]).value
            lists = item_types(False, PART_COLUMNS if self._part_list else COLUMNS) if self._packed is not None else []
            types = [*inputs, *outputs, *(type_ for _, type_ in lists)]
            kernel = func.FuncOp(name, ir.FunctionType.get(types, []), loc=self._function.location)
            i64 = ir.IntegerType.get_signless(64)
            sizes = {"block_q": ir.IntegerAttr.get(i64, self._block_q), "block_kv": ir.IntegerAttr.get(i64, self._block_kv)}
            over = argument_number(self._online.operands[0])
            if over:
                sizes["over"] = ir.IntegerAttr.get(i64, over)
                sizes["score"] = ir.TypeAttr.get(self._score)
            if self._packed is not None:
                sizes.update(lengths_of(self._online))
                if self._whole:
                    sizes["ragged"] = self._views(range(len(inputs), len(inputs) + len(outputs)))
                    paged, table = self._numbers(self._of_keys()), pages_of(self._online)
                    if paged and table is not None:
                        sizes["paged"] = ragged_numbers(paged)
                        sizes["table"] = ir.IntegerAttr.get(i64, argument_number(table))
                keys = argument_number(self._online.operands[1])
                if keys not in (None, 1):
                    sizes["keys"] = ir.IntegerAttr.get(i64, keys)
            if self._lists is not None:
                sizes["list"] = ir.IntegerAttr.get(i64, self._lists.queries)
            kernel.attributes["tile.kernel"] = ir.DictAttr.get(sizes)
            names = [*_argument_names(entry), *[result.name for result in results], *(name for name, _ in lists)]
            block = ir.Block.create_at_start(kernel.regions[0], types, [ir.Location.name(n, self._online.location) for n in names])
        with self._online.location, ir.InsertionPoint(block):
            outer = ScalarEmitter(dict(zip(entry.arguments, block.arguments, strict=False)))
            self._build_body(outer, list(block.arguments), len(inputs))
            func.ReturnOp([])
        if self._whole and self._packed is not None:
            share_reads(block, self._online)
        return True

    def _of_keys(self) -> list[ir.Value]:
        """The tensors of the keys' side."""
        _, *keys = list(self._online.operands)[:3]
        products = [list(op.operands)[1] for op in pieces(self._online, "attn.product")]
        return [*keys, *products, *(op.operands[0] for op in pieces(self._online, "attn.term"))]

    def _numbers(self, values: list[ir.Value]) -> list[int]:
        return [number for number in map(argument_number, values) if number is not None]

    def _views(self, outputs: range) -> ir.Attribute:
        """The arguments that are ragged views: those of the keys' side, and of the queries' where their positions are rows."""
        keys = self._of_keys() if pages_of(self._online) is None else []
        by_rows = self._packed is not None and not self._packed.by_heads
        products = [next(iter(op.operands)) for op in pieces(self._online, "attn.product")]
        queries = [self._online.operands[0], *products] if by_rows else []
        return ragged_numbers([*self._numbers([*keys, *queries]), *(outputs if by_rows and not self._part_list else ())])

    def _sums_one_type(self) -> bool:
        """Weights have one type in a kernel: that of what they multiply."""
        for term in pieces(self._online, "attn.term"):
            type_ = ir.RankedTensorType(term.operands[0].type).element_type
            of_values = ir.RankedTensorType(self._online.operands[2].type).element_type
            if type_ != of_values:
                term.location.emit_error(f"attn-tile-rows: sums tensors of one element type, v's {of_values}, got {type_}")
                return False
        return True

    def _live_accumulators(self, results: list[TiledResult]) -> list[int]:
        """Those that a returned value reads, without the ones that stay zero because their weight is."""
        region = block_of(pieces(self._online, "attn.finalize")[0])
        yielded = list(region.operations[-1].operation.operands)
        read = _arguments_read(region, [yielded[result.number] for result in results])
        *_, last = pieces(self._online, "attn.step")
        rest = list(block_of(last).operations[-1].operation.operands)[-2 * self._accumulators :]
        weights, scales = rest[: self._accumulators], rest[self._accumulators :]
        stays_zero = [is_constant(w, 0.0) and is_constant(s, 1.0) for w, s in zip(weights, scales, strict=True)]
        return [number for number in range(self._accumulators) if number in read and not stays_zero[number]]

    def _score_type(self) -> ir.Type:
        """f32 or f64: the type of the states, or of the accumulators where there are none."""
        return block_of(pieces(self._online, "attn.step")[0]).arguments[0].type

    def _build_body(self, outer: ScalarEmitter, arguments: list[ir.Value], inputs: int) -> None:
        for op in list(self._online.block.operations):
            if op.operation == self._online:
                break
            clone = clone_scalar(op.operation, [outer.emit(operand) for operand in op.operation.operands])
            for old, new in zip(op.operation.results, clone.results, strict=True):
                outer.set(old, new)
        self._fill_body(outer, arguments, inputs)

    def _fill_body(self, outer: ScalarEmitter, arguments: list[ir.Value], inputs: int) -> None:
        program = self._program(outer, arguments[-1])
        block = BlockBuilder(self._online, program, self._live, self._sources)
        initial = self._initial_states(program)
        carried, states = [*initial, *self._initial_accumulators(program)], len(initial)
        steps = pieces(self._online, "attn.step")
        for step in steps[:-1]:
            carried[:states] = self._kv_pass(block, step, carried[:states])
        carried = self._kv_pass(block, steps[-1], carried)
        self._finalize(program, carried[:states], dict(zip(self._live, carried[states:], strict=True)), arguments[inputs:])

    def _program(self, outer: ScalarEmitter, work: ir.Value) -> GridTile:
        """`work` is the list of work, where tensors are packed."""
        q, k, v = (outer.emit(operand) for operand in self._online.operands)
        query_block, h, b = (build.program_id(axis) for axis in range(3))
        self._entry = b
        if self._parts is not None:
            b = self._part_of(outer, self._parts, b)
        one, size = constant_index(1), constant_index(self._block_q)
        group = arith.DivSIOp(memref.DimOp(q, one).result, memref.DimOp(k, one).result).result
        if self._lists is not None:
            of_queries, of_keys = span_of(None, b, q, outer), span_of(None, b, k, outer)
            number, begin, end = rows_in(self._lists, query_block, self._block_q, of_queries.length)
            self._range = range_of(self._lists.ranges, b, h, memref.DimOp(q, one).result, number, outer)
        elif self._packed is None:
            of_queries, of_keys = span_of(None, b, q, outer), span_of(None, b, k, outer)
            begin = arith.MulIOp(query_block, size).result
            end = arith.MinSIOp(arith.AddIOp(begin, size).result, of_queries.length).result
        else:
            item = item_of(work, query_block)
            b, begin, end = item.b, item.begin, item.end
            if self._part_list:
                self._entry, self._limits = item.slot, part_of(work, query_block)
            of_queries = span_of(packing_of(self._online, "query"), b, q, outer, self._whole)
            of_keys = span_of(packing_of(self._online, "key"), b, k, outer, self._whole and pages_of(self._online) is None)
        rows = arith.SubIOp(end, begin).result
        last = arith.SubIOp(of_queries.length, one).result
        if self._whole and self._packed is not None:
            rows = self._asked(outer, rows, b)
            end = arith.AddIOp(begin, rows).result
            last = arith.MaxSIOp(last, constant_index(0)).result  # lists that GPUs make end with items without rows
        kv_head = arith.DivSIOp(h, group).result
        spans = of_queries, of_keys
        program = GridTile(self._types, self._score, b, h, kv_head, begin, end, rows, last, *spans, outer, self._block_q, self._block_kv)
        if self._lists is not None and self._lists.names_keys:
            program.listed = outer.emit(self._lists.entries)
        table = pages_of(self._online)
        program.pages = None if table is None else outer.emit(table)
        program.paged_views = self._whole
        products = [[outer.emit(operand) for operand in product.operands] for product in pieces(self._online, "attn.product")]
        terms = [outer.emit(term.operands[0]) for term in pieces(self._online, "attn.term")]
        tiles: dict[ir.Value, ir.Value] = {}
        for query in (q, *[query for query, _ in products]):
            tiles[query] = tiles.get(query) or build.load(
                query, of_queries.batch, h, of_queries.row(begin), rows, self._block_q, self._types.element
            )
        changed = program.modify(piece(self._online, "attn.query"), tiles[q], size, h, program.q_idx)
        program.queries = [changed, *[tiles[query] for query, _ in products]]
        program.keys = [RowSource(k, piece(self._online, "attn.key")), *[RowSource(key) for _, key in products]]
        program.sources = [RowSource(v, piece(self._online, "attn.value")), *map(RowSource, terms)]
        return program

    def _asked(self, outer: ScalarEmitter, rows: ir.Value, b: ir.Value) -> ir.Value:
        """So many rows, or none, where heads are the rows of the one query of sequence b, and it has none."""
        if self._packed is None or not self._packed.by_heads:
            return rows
        queries = read(outer.emit(self._packed.lengths), [b])
        return arith.MulIOp(rows, arith.MinSIOp(queries, constant_index(1)).result).result

    def _part_of(self, outer: ScalarEmitter, parts: ir.Operation, entry: ir.Value) -> ir.Value:
        """The batch entry of an entry of the results, whose keys are within `_limits` from now on."""
        count, length = (outer.emit(operand) for operand in parts.operands)
        begin = arith.MulIOp(arith.RemSIOp(entry, count).result, length).result
        self._limits = begin, arith.AddIOp(begin, length).result
        return arith.DivSIOp(entry, count).result

    def _within(self, segment: Segment) -> Segment:
        """What of a segment is in the program's part."""
        if self._limits is None:
            return segment
        first, last = self._limits
        return replace(segment, begin=arith.MaxSIOp(segment.begin, first).result, end=arith.MinSIOp(segment.end, last).result)

    def _initial_states(self, program: GridTile) -> list[ir.Value]:
        init = block_of(pieces(self._online, "attn.init")[0])
        count = len(init.operations[-1].operation.operands)
        if count == 0:
            return []

        def body(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            return program.scalars().inline(init, [program.b, program.h, program.q_idx(i)]), []

        row = ir.RankedTensorType.get([self._block_q], self._score)
        return build.map_([constant_index(self._block_q)], [row] * count, [], [], body)[0]

    def _initial_accumulators(self, program: GridTile) -> list[ir.Value]:
        if not self._live:
            return []
        zero = constant_float(self._score, 0.0)
        columns = [ir.MemRefType(program.sources[source].memory.type).shape[3] for source in self._sources]
        return [build.fill(zero, [self._block_q, columns[number]], number) for number in self._live]

    def _kv_pass(self, block: BlockBuilder, step: ir.Operation, carried: list[ir.Value]) -> list[ir.Value]:
        """Runs `step` over all keys that the rows can see; returns the carried values after it."""
        if not carried:
            return []
        program, bounds = block.program, piece(self._online, "attn.bounds")
        masked, classified = block.mask is not None, piece(self._online, "attn.block_mask") is not None
        limits = None
        if masked and bounds is not None:
            limits = program.scalars().inline(block_of(bounds), [program.b, program.h, program.begin, program.end])
        if self._lists is not None and self._range is not None:
            entries, known = program.outer.emit(self._lists.entries), Limits(limits, masked)

            def body(kv: ir.Value, count: ir.Value, inside: list[ir.Value], with_mask: bool) -> list[ir.Value]:
                return block.build(step, kv, count, inside, masked=with_mask)

            return listed_keys(self._lists, entries, self._range, self._block_kv, program.kv_len, known, carried=carried, body=body)
        for segment in plan_segments(program.kv_len, limits, masked, classified, self._block_kv, self._whole):
            carried = self._loop(block, step, self._within(segment), carried)
        return carried

    def _loop(self, block: BlockBuilder, step: ir.Operation, segment: Segment, carried: list[ir.Value]) -> list[ir.Value]:
        size = constant_index(self._block_kv)

        def body(kv: ir.Value, inside: list[ir.Value]) -> list[ir.Value]:
            count = size if segment.whole else arith.MinSIOp(size, arith.SubIOp(segment.end, kv).result).result
            return self._block(block, step, kv, count, inside, segment.kind)

        return loop(segment.begin, segment.end, size, carried, body)

    def _block(
        self, block: BlockBuilder, step: ir.Operation, kv: ir.Value, count: ir.Value, carried: list[ir.Value], kind: str
    ) -> list[ir.Value]:
        if kind != "classify":
            return block.build(step, kv, count, carried, masked=kind == "partial")
        program = block.program
        region = block_of(pieces(self._online, "attn.block_mask")[0])
        end = arith.AddIOp(kv, count).result
        some, every = program.scalars().inline(region, [program.b, program.h, program.begin, program.end, kv, end])

        def partial_or_full() -> list[ir.Value]:
            return branch(
                every,
                carried,
                lambda: block.build(step, kv, count, carried, masked=False),
                lambda: block.build(step, kv, count, carried, masked=True),
            )

        return branch(some, carried, partial_or_full, lambda: carried)

    def _finalize(self, program: GridTile, states: list[ir.Value], live: dict[int, ir.Value], targets: list[ir.Value]) -> None:
        region = block_of(pieces(self._online, "attn.finalize")[0])
        yielded = list(region.operations[-1].operation.operands)
        arguments = list(region.arguments)
        accumulators, indices = arguments[: self._accumulators], arguments[self._accumulators :][:3]
        state_arguments = arguments[self._accumulators + 3 :]
        rows = constant_index(self._block_q)

        def scalars(i: ir.Value, j: ir.Value | None) -> ScalarEmitter:
            tiles = dict(zip(state_arguments, states, strict=True))
            if j is not None:
                tiles.update({accumulators[number]: tile for number, tile in live.items()})
            emitter = program.reading(tiles, i, j)
            for argument, value in zip(indices, (program.b, program.h, program.q_idx(i)), strict=True):
                emitter.set(argument, value)
            for number in range(self._accumulators if j is not None else 0):
                if number not in live:
                    emitter.set(accumulators[number], constant_float(self._score, 0.0))
            return emitter

        def row_outputs(i: ir.Value) -> tuple[list[ir.Value], list[ir.Value]]:
            emitter = scalars(i, None)
            return [emitter.emit(yielded[result.number]) for result, _ in of_rows], []

        entry, first = program.of_queries.batch, program.of_queries.row(program.begin)
        if self._entry is not None and (self._packed is None or self._part_list):
            entry, first = self._entry, program.begin
        place = entry, program.h, first, program.rows
        outputs = list(zip(self._results, targets, strict=False))
        of_rows = [(result, target) for result, target in outputs if result.is_row]
        for result, target in outputs:
            if result.is_row:
                continue

            def output(i: ir.Value, j: ir.Value, result: TiledResult = result) -> tuple[list[ir.Value], list[ir.Value]]:
                return [result.element(scalars(i, j).emit(yielded[result.number]))], []

            columns = ir.MemRefType(target.type).shape[3]
            type_ = ir.RankedTensorType.get([self._block_q, columns], ir.MemRefType(target.type).element_type)
            (tile,), _ = build.map_([rows, constant_index(columns)], [type_], [], [], output)
            build.store(tile, target, *place)
        if of_rows:
            row = ir.RankedTensorType.get([self._block_q], self._score)
            tiles, _ = build.map_([rows], [row] * len(of_rows), [], [], row_outputs)
            for tile, (_, target) in zip(tiles, of_rows, strict=True):
                build.store(tile, target, *place)


def _arguments_read(block: ir.Block, values: list[ir.Value]) -> set[int]:
    """The numbers of the block's arguments that `values` depend on."""
    found: set[int] = set()
    seen: set[ir.Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        if isinstance(value, ir.BlockArgument):
            found |= {value.arg_number} if value.owner == block else set()
        elif value.owner.operation.block == block:
            todo.extend(value.owner.operation.operands)
    return found


def _argument_names(entry: ir.Block) -> list[str]:
    """The arguments' names from their locations; q, k, v and their position where there is none."""
    names = []
    for position, argument in enumerate(entry.arguments):
        location = argument.location
        named = isinstance(location, ir.NameLoc)
        names.append(location.name_str if named else ("q", "k", "v")[position] if position < 3 else f"arg{position}")
    return names
