"""Builders for the tiles of captured tensors. All of them need an active location and insertion point."""

from collections.abc import Callable, Sequence

from attn_mlir.mlir import ir

Steps = tuple[Sequence[int], Sequence[int]]


def load_window(source: ir.Value, extents: tuple[ir.Value, ir.Value, int], offsets: Sequence[ir.Value], steps: Steps) -> ir.Value:
    """`tile.load_window`; `extents` are its rows, its columns, and the rows of the tile."""
    rows, columns, most = extents
    result = ir.RankedTensorType.get([most, ir.ShapedType.get_dynamic_size()], ir.MemRefType(source.type).element_type)
    operands = [source, rows, columns, *offsets]
    return ir.Operation.create("tile.load_window", results=[result], operands=operands, attributes=_steps(steps)).result


def add_window(tile: ir.Value, target: ir.Value, extents: Sequence[ir.Value], offsets: Sequence[ir.Value], steps: Steps) -> None:
    """`tile.add_window` of so many rows and columns."""
    ir.Operation.create("tile.add_window", operands=[tile, target, *extents, *offsets], attributes=_steps(steps))


def band(extents: Sequence[ir.Value], made: tuple[int, ir.Type], body: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """`tile.band` of `body(i, j)`; `made` are the rows of the tile and its type of elements."""
    result = ir.RankedTensorType.get([made[0], ir.ShapedType.get_dynamic_size()], made[1])
    op = ir.Operation.create("tile.band", results=[result], operands=list(extents), regions=1)
    _fill(op, lambda i, j: [body(i, j)])
    return op.result


def add_band(tile: ir.Value, target: ir.Value, extents: Sequence[ir.Value], body: Callable[[ir.Value, ir.Value], list[ir.Value]]) -> None:
    """`tile.add_band` of so many rows and columns, to the indices `body(i, j)`."""
    _fill(ir.Operation.create("tile.add_band", operands=[tile, target, *extents], regions=1), body)


def _fill(op: ir.Operation, body: Callable[[ir.Value, ir.Value], list[ir.Value]]) -> None:
    here = ir.Location.current
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * 2, arg_locs=[ir.Location.name(name, here) for name in ("i", "j")])
    with ir.InsertionPoint(block):
        values = body(*block.arguments)
        segments = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([len(values), 0])}
        ir.Operation.create("tile.yield", operands=values, attributes=segments)


def _steps(steps: Steps) -> dict[str, ir.Attribute]:
    return {name: ir.DenseI64ArrayAttr.get(list(each)) for name, each in zip(("row_steps", "column_steps"), steps, strict=True)}
