"""Builds the kernel of one `attn.pairs` and the sums of its weights: one pass over the pairs, key block by key block.

A program has one key head of one batch, and a chunk of its keys; of packed tensors, chunks of some sequences.
Key rows lie along the first dimension of tiles: the
weights of a block are [keys, queries]. Sums over queries stay in tiles until the key block is done; sums over keys are
added to memory for every block, as are scatters, except that what is scattered by key only is summed over queries first.
"""

from collections.abc import Sequence

from attn_mlir.dialects.tile import build
from attn_mlir.mlir import arith, func, ir, memref
from attn_mlir.passes.key_lists import key_lists_of
from attn_mlir.passes.regions import block_of, piece, pieces
from attn_mlir.passes.sequences import packing_of
from attn_mlir.passes.tiling.frame import Frame, Output, argument_number, branch, loop
from attn_mlir.passes.tiling.listed import Limits, listing_queries, range_of
from attn_mlir.passes.tiling.pair_block import KeyBlock, PairBlocks, PairPlan
from attn_mlir.passes.tiling.scalars import constant_float, constant_index
from attn_mlir.passes.tiling.scatter import disjoint
from attn_mlir.passes.tiling.segments import Segment, plan_segments
from attn_mlir.passes.tiling.work import Item, Span, item_of, item_types, lengths_of, ragged_numbers, read, share_reads, span_of

_KINDS = {"attn.query_sum": "accumulate", "attn.key_sum": "store", "attn.scatter": "scatter"}


def build_pairs(function: ir.Operation, pairs: ir.Operation, makers: Sequence[ir.Operation], blocks: tuple[int, int], whole: bool) -> None:
    """Inserts the kernel before the function, for `blocks` of keys and queries.

    `makers` are the ops that make the function's results; for `whole` see `attn-tile-rows`.
    """
    keys, queries = blocks
    cluster = [pairs, *[use.owner.operation for use in pairs.results[0].uses]]
    packing, lists = packing_of(pairs, "key"), key_lists_of(pairs)
    keys = keys if lists is None else lists.tile
    apart = {op: disjoint(op, 3, packed=packing is not None) if op.name == "attn.scatter" else () for op in makers}
    outputs = [Output(op, _KINDS[op.name], apart[op]) for op in makers]
    query, key = pieces(pairs, "attn.product")[0].operands
    with pairs.location:
        frame = Frame(function, cluster, outputs, ["chunk"] if packing is None else item_types(not whole))
        plan = PairPlan(pairs, makers)
        attributes: dict[str, ir.Attribute | int | str] = {
            "grid": "pairs",
            "block_q": keys,
            "block_kv": queries,
            "over": argument_number(key),
            "score": ir.TypeAttr.get(plan.score),
        }
        if lists is not None and whole:
            attributes["listed"] = ir.DenseI64ArrayAttr.get([argument_number(lists.kept) or 0, lists.keys // lists.tile])
        if packing is not None:
            attributes.update(lengths_of(pairs))
            if whole:
                tensors = [
                    operand for op in (*pieces(pairs, "attn.product"), *makers) if op.name != "attn.scatter" for operand in op.operands
                ]
                read = [number for number in map(argument_number, tensors) if number is not None]
                kinds = enumerate(outputs, len(function.regions[0].blocks[0].arguments))
                attributes["ragged"] = ragged_numbers([*read, *(number for number, output in kinds if output.kind != "scatter")])
        frame.describe(attributes, outputs)
        with ir.InsertionPoint(frame.block):
            frame.copy_scalars()
            if makers:
                _Kernel(frame, plan, (frame.get(query), frame.get(key)), (keys, queries), whole).build()
            func.ReturnOp([])
        if packing is not None and whole:
            share_reads(frame.block, pairs)


class _Kernel:
    def __init__(self, frame: Frame, plan: PairPlan, tensors: tuple[ir.Value, ir.Value], sizes: tuple[int, int], whole: bool) -> None:
        """`tensors` are one of queries and one of keys, `sizes` those of their blocks."""
        self._frame, self._plan, self._whole = frame, plan, whole
        query, key = tensors
        self._keys, self._queries = sizes
        self._lists = key_lists_of(plan.pairs)
        self._chunk, self._kv_head, self._b = (build.program_id(axis) for axis in range(3))
        self._query, self._key, one = query, key, constant_index(1)
        self._group = arith.DivSIOp(memref.DimOp(query, one).result, memref.DimOp(key, one).result).result

    def build(self) -> None:
        """Emits the loop over the chunk's blocks of keys; of packed tensors, over the items of the group."""
        frame = self._frame
        if packing_of(self._plan.pairs, "key") is None:
            first = arith.MulIOp(self._chunk, frame.extra[0]).result
            of_queries, of_keys = (span_of(None, self._b, tensor, frame.outer) for tensor in (self._query, self._key))
            stop = arith.MinSIOp(arith.AddIOp(first, frame.extra[0]).result, of_keys.length).result
            self._keys_of(Item(self._b, first, stop, self._chunk), of_queries, of_keys)
            return
        if self._whole:
            item = item_of(frame.extra[0], self._chunk)
            self._keys_of(item, *self._spans(item))
            return
        items, groups = frame.extra
        begin, end = (read(groups, [number]) for number in (self._chunk, arith.AddIOp(self._chunk, constant_index(1)).result))

        def work(number: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            item = item_of(items, number)
            self._keys_of(item, *self._spans(item))
            return []

        loop(begin, end, constant_index(1), [], work)

    def _spans(self, item: Item) -> list[Span]:
        """Where the queries and the keys of an item's sequence lie."""
        packings = [packing_of(self._plan.pairs, side) for side in ("query", "key")]
        both = zip(packings, (self._query, self._key), strict=True)
        return [span_of(packing, item.b, tensor, self._frame.outer, self._whole) for packing, tensor in both]

    def _keys_of(self, item: Item, of_queries: Span, of_keys: Span) -> None:
        """The blocks of keys of an item."""
        size = constant_index(self._keys)

        def block(kv: ir.Value, _: list[ir.Value]) -> list[ir.Value]:
            count = arith.MinSIOp(size, arith.SubIOp(item.end, kv).result).result
            self._key_block(KeyBlock((self._chunk, item.slot), item.b, self._kv_head, kv, count, self._keys, of_queries, of_keys))
            return []

        loop(item.begin, item.end, size, [], block)

    def _key_block(self, keys: KeyBlock) -> None:
        plan, frame = self._plan, self._frame
        blocks = PairBlocks(plan, frame, keys)
        zero = constant_float(plan.score, 0.0)
        sums = []
        for number, position in enumerate(plan.key_sums):
            columns = ir.MemRefType(frame.outputs[position].type).shape[3]
            sums.append(build.fill(zero, [self._keys, columns], number))

        def head(member: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
            blocks.h = arith.AddIOp(arith.MulIOp(self._kv_head, self._group).result, member).result
            rows = [build.fill(zero, [self._keys], len(sums) + n) for n in range(blocks.row_states)]
            after = self._kv_pass(blocks, keys, [*carried, *rows])
            blocks.scatter_rows(after[len(sums) :])
            return after[: len(sums)]

        sums = loop(constant_index(0), self._group, constant_index(1), sums, head)
        for tile, position in zip(sums, plan.key_sums, strict=True):
            build.store(tile, frame.outputs[position], *keys.place())

    def _kv_pass(self, blocks: PairBlocks, keys: KeyBlock, carried: list[ir.Value]) -> list[ir.Value]:
        """Runs over all queries that see some of the keys."""
        pairs = self._plan.pairs
        bounds, limits = piece(pairs, "attn.query_bounds"), None
        masked, classified = self._plan.mask is not None, piece(pairs, "attn.block_mask") is not None
        if masked and bounds is not None:
            limits = self._frame.scalars().inline(block_of(bounds), [keys.b, blocks.h, keys.kv, keys.end()])
        if self._lists is not None:
            return self._listed(blocks, keys, Limits(limits, masked), carried)
        for segment in plan_segments(keys.of_queries.length, limits, masked, classified, self._queries, self._whole):
            carried = self._loop(blocks, keys, segment, carried)
        return carried

    def _listed(self, blocks: PairBlocks, keys: KeyBlock, limits: Limits, carried: list[ir.Value]) -> list[ir.Value]:
        """Runs over the queries that list some of the keys."""
        lists, outer = self._lists, self._frame.outer
        if lists is None:
            raise ValueError("no lists to run over")
        number = arith.DivSIOp(keys.kv, constant_index(lists.tile)).result
        heads = memref.DimOp(self._query, constant_index(1)).result
        span = range_of(lists.back_ranges, keys.b, blocks.h, heads, number, outer)
        back, kept = outer.emit(lists.back), outer.emit(lists.kept)

        def body(place: ir.Value, row: ir.Value, count: ir.Value, inside: list[ir.Value], masked: bool) -> list[ir.Value]:
            blocks.kept = read(kept, [place]) if lists.names_keys else None
            return blocks.build(row, count, inside, masked)

        length = keys.of_queries.length
        return listing_queries(lists, back, span, self._queries, length, limits, carried=carried, body=body, whole=self._whole)

    def _loop(self, blocks: PairBlocks, keys: KeyBlock, segment: Segment, carried: list[ir.Value]) -> list[ir.Value]:
        size = constant_index(self._queries)

        def block(row: ir.Value, inside: list[ir.Value]) -> list[ir.Value]:
            count = size if segment.whole else arith.MinSIOp(size, arith.SubIOp(segment.end, row).result).result
            if segment.kind != "classify":
                return blocks.build(row, count, inside, masked=segment.kind == "partial")
            region = block_of(pieces(self._plan.pairs, "attn.block_mask")[0])
            positions = [keys.b, blocks.h, row, arith.AddIOp(row, count).result, keys.kv, keys.end()]
            some, every = self._frame.scalars().inline(region, positions)

            def present() -> list[ir.Value]:
                return branch(
                    every,
                    inside,
                    lambda: blocks.build(row, count, inside, masked=False),
                    lambda: blocks.build(row, count, inside, masked=True),
                )

            return branch(some, inside, present, lambda: inside)

        return loop(segment.begin, segment.end, size, carried, block)
