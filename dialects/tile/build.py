"""Builders for `tile` ops. All of them need an active location and insertion point."""

from collections.abc import Callable, Sequence

from attn_mlir.dialects.numbers import i64
from attn_mlir.mlir import ir

MapBody = Callable[..., tuple[Sequence[ir.Value], Sequence[ir.Value]]]


def program_id(axis: int) -> ir.Value:
    """`tile.program_id`: 0 is the block of rows, 1 the head, 2 the batch."""
    attributes = {"axis": i64(axis)}
    return ir.Operation.create("tile.program_id", results=[ir.IndexType.get()], attributes=attributes).result


def load(
    source: ir.Value, b: ir.Value, h: ir.Value, row: ir.Value, count: ir.Value, rows: int | None = None, element: ir.Type | None = None
) -> ir.Value:
    """`tile.load` of `count` rows; a static number of `rows` pads by repeating the last one.

    `element` is the type of the tile's, None that of memory's.
    """
    result = _rows_of(source, rows, element)
    return ir.Operation.create("tile.load", results=[result], operands=[source, b, h, row, count]).result


def gather(
    source: ir.Value, b: ir.Value, h: ir.Value, rows: ir.Value, first: ir.Value, count: ir.Value, element: ir.Type | None = None
) -> ir.Value:
    """`tile.gather` of the `count` rows that `rows` names from `first` on; for `element` see `load`."""
    result = _rows_of(source, None, element)
    return ir.Operation.create("tile.gather", results=[result], operands=[source, b, h, rows, count, first]).result


def load_pages(
    source: ir.Value, table: ir.Value, place: Sequence[ir.Value], count: ir.Value, rows: int | None = None, element: ir.Type | None = None
) -> ir.Value:
    """`tile.load_pages` of `count` rows of sequence b from `place`, (b, h, row), on; for `rows` and `element` see `load`."""
    result = _rows_of(source, rows, element)
    return ir.Operation.create("tile.load_pages", results=[result], operands=[source, table, *place, count]).result


def _rows_of(source: ir.Value, rows: int | None, element: ir.Type | None) -> ir.Type:
    """The tile of so many rows of memory, None: as many as are asked for."""
    type_ = ir.MemRefType(source.type)
    extent = ir.ShapedType.get_dynamic_size() if rows is None else rows
    return ir.RankedTensorType.get([extent, type_.shape[3]], element or type_.element_type)


def store(tile: ir.Value, target: ir.Value, b: ir.Value, h: ir.Value, row: ir.Value, count: ir.Value) -> None:
    """`tile.store` of the first `count` rows."""
    ir.Operation.create("tile.store", operands=[tile, target, b, h, row, count])


def fill(value: ir.Value, shape: Sequence[int], accumulator: int) -> ir.Value:
    """`tile.fill`: a tile of one value, to start accumulator number `accumulator` from."""
    attributes = {"accumulator": i64(accumulator)}
    result = ir.RankedTensorType.get(shape, value.type)
    return ir.Operation.create("tile.fill", results=[result], operands=[value], attributes=attributes).result


def dot(a: ir.Value, b: ir.Value, element: ir.Type, transpose_b: bool) -> ir.Value:
    """`tile.dot`: a b or a b^T, accumulated in `element`."""
    rows, columns = ir.RankedTensorType(a.type).shape[0], ir.RankedTensorType(b.type).shape[0 if transpose_b else 1]
    result = ir.RankedTensorType.get([rows, columns], element)
    attributes = {"transpose_b": ir.BoolAttr.get(transpose_b)}
    return ir.Operation.create("tile.dot", results=[result], operands=[a, b], attributes=attributes).result


def dot_accumulate(
    c: ir.Value, scale: ir.Value | None, a: ir.Value, b: ir.Value, transpose_a: bool = False, transpose_b: bool = False
) -> ir.Value:
    """`tile.dot_add`, or `tile.dot_rescale` when a row scale is given."""
    attributes = {"transpose_b": ir.BoolAttr.get(transpose_b), **({"transpose_a": ir.BoolAttr.get(True)} if transpose_a else {})}
    name, operands = ("tile.dot_add", [c, a, b]) if scale is None else ("tile.dot_rescale", [c, scale, a, b])
    return ir.Operation.create(name, results=[c.type], operands=operands, attributes=attributes).result


def cumsum(tile: ir.Value, reverse: bool = False) -> ir.Value:
    """`tile.cumsum` along the first dimension."""
    return ir.Operation.create("tile.cumsum", results=[tile.type], operands=[tile], attributes={"reverse": ir.BoolAttr.get(reverse)}).result


def solve_unit(a: ir.Value, b: ir.Value, upper: bool) -> ir.Value:
    """`tile.solve_unit`: X with (I + a) X = b, for a strictly lower or upper triangle a."""
    attributes = {"upper": ir.BoolAttr.get(upper)}
    return ir.Operation.create("tile.solve_unit", results=[b.type], operands=[a, b], attributes=attributes).result


def decay_channels(q: ir.Value, k: ir.Value, decays: ir.Value, count: ir.Value, reverse: bool) -> tuple[ir.Value, ...]:
    """`tile.decay_channels`: what leaves, what enters, pairs, and what carries the state."""
    of_q, of_decays = ir.RankedTensorType(q.type), ir.RankedTensorType(decays.type)
    size, keys = of_q.shape
    pairs, carry = ir.RankedTensorType.get([size, size], of_q.element_type), ir.RankedTensorType.get([keys], of_decays.element_type)
    results, attributes = [q.type, q.type, pairs, carry], {"reverse": ir.BoolAttr.get(reverse)}
    op = ir.Operation.create("tile.decay_channels", results=results, operands=[q, k, decays, count], attributes=attributes)
    return tuple(op.results)


def decay_values(
    scores: ir.Value, outside: ir.Value, v: ir.Value, decays: ir.Value, count: ir.Value, reverse: bool
) -> tuple[ir.Value, ...]:
    """`tile.decay_values`: what other positions give, rows with each position's own, what enters, and what carries the state."""
    of_decays = ir.RankedTensorType(decays.type)
    carry = ir.RankedTensorType.get([of_decays.shape[1]], of_decays.element_type)
    results, attributes = [decays.type] * 3 + [carry], {"reverse": ir.BoolAttr.get(reverse)}
    operands = [scores, outside, v, decays, count]
    return tuple(ir.Operation.create("tile.decay_values", results=results, operands=operands, attributes=attributes).results)


def map_(
    extents: Sequence[ir.Value], tiles: Sequence[ir.Type], rows: Sequence[ir.Type], reductions: Sequence[str], body: MapBody
) -> tuple[list[ir.Value], list[ir.Value]]:
    """`tile.map`: `body(i, j)` (or `body(i)`) returns the elements of the tiles and the contributions to the reductions."""
    attributes = {
        "reductions": ir.ArrayAttr.get([ir.StringAttr.get(kind) for kind in reductions]),
        "resultSegmentSizes": ir.DenseI32ArrayAttr.get([len(tiles), len(rows)]),
    }
    op = ir.Operation.create("tile.map", results=[*tiles, *rows], operands=list(extents), attributes=attributes, regions=1)
    here = ir.Location.current
    names = ("i", "j")[: len(extents)]
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(extents), arg_locs=[ir.Location.name(n, here) for n in names])
    with ir.InsertionPoint(block):
        of_tiles, of_rows = body(*block.arguments)
        segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(of_tiles), len(of_rows)])}
        ir.Operation.create("tile.yield", operands=[*of_tiles, *of_rows], attributes=segments)
    results = list(op.results)
    return results[: len(tiles)], results[len(tiles) :]


def accumulate(a: ir.Value, b: ir.Value, target: ir.Value, place: Sequence[ir.Value], count: ir.Value) -> None:
    """`tile.accumulate` of `count` rows at `place`: slot, batch, head and first row."""
    ir.Operation.create("tile.accumulate", operands=[a, b, target, *place, count])


ScatterBody = Callable[..., tuple[ir.Value, ir.Value, Sequence[ir.Value]]]


def scatter_add(target: ir.Value, extents: Sequence[ir.Value], body: ScatterBody) -> None:
    """`tile.scatter_add`: `body(i, j)` (or `body(i)`) returns a value, whether it is to be added, and the indices."""
    op = ir.Operation.create("tile.scatter_add", operands=[target, *extents], regions=1)
    here = ir.Location.current
    names = ("i", "j")[: len(extents)]
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(extents), arg_locs=[ir.Location.name(n, here) for n in names])
    with ir.InsertionPoint(block):
        value, present, indices = body(*block.arguments)
        ir.Operation.create("tile.scatter_yield", operands=[value, present, *indices])
