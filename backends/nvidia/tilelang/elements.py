"""Loops over the elements of tiles: the regions of `tile.map` and `tile.scatter_add`, and stores."""

from collections.abc import Mapping, Sequence

from attn_mlir.backends.nvidia.tilelang.context import INDENT, Context
from attn_mlir.backends.nvidia.tilelang.expressions import Expressions, strip
from attn_mlir.backends.nvidia.tilelang.tiles import bound
from attn_mlir.dialects.regions import element_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_CHUNK = 64
"""Columns that a loop takes at a time where their number is not known."""
INDICES = ("i", "j")


class ParallelLoop:
    """A `T.Parallel` over the elements of a region: its header, its guards, and the printer of its body.

    `bounds` are the sizes of the loop; where an extent is less, positions in memory are clamped to it, and `guards` says which elements
    exist. A loop that does nothing but reduce rows has columns by a power of two, so that threads can share every row evenly.
    """

    def __init__(self, context: Context, extents: Sequence[ir.Value | int], block: ir.Block | None = None, reduces: bool = False) -> None:
        self._context, self._block = context, block
        limits = [extent if isinstance(extent, int) else bound(extent) for extent in extents]
        if limits[0] is None:
            raise UnsupportedError("tilelang: a tile has no known number of rows")
        self.bounds = list(context.shape([_CHUNK if limit is None else limit for limit in limits]))
        self.endless = limits[-1] is None
        if reduces and not context.multiplies:
            self.bounds[-1] = 1 << (self.bounds[-1] - 1).bit_length()
        counts = [str(extent) if isinstance(extent, int) else context.text(extent) for extent in extents]
        self._counts = [None if count == str(size) else count for count, size in zip(counts, self.bounds, strict=True)]
        self._loads = _loads(block) if block is not None else set()
        self.deeper = 2 if self.endless else 1

    @property
    def guards(self) -> list[str]:
        """Conditions that hold for elements that exist."""
        return [f"{index} < {count}" for index, count in zip(INDICES, self._counts, strict=False) if count is not None]

    def guard(self, dim: int) -> str | None:
        """The condition that an index of this dimension exists; None where all do."""
        count = self._counts[dim] if dim < len(self._counts) else None
        return None if count is None else f"{INDICES[dim]} < {count}"

    def open(self, dims: Sequence[int] | None = None) -> Expressions:
        """Prints the header, of a loop over some of the dimensions; returns the printer of the body."""
        context = self._context
        dims = range(len(self.bounds)) if dims is None else dims
        names, sizes = ", ".join(INDICES[d] for d in dims), ", ".join(str(self.bounds[d]) for d in dims)
        if self.endless:
            context.line(f"for first in T.serial(0, {self._counts[-1]}, {_CHUNK}):")
            context.line(f"for {names[:-1]}column in T.Parallel({sizes}):", 1)
            context.line("j = first + column", 2)
        else:
            context.line(f"for {names} in T.Parallel({sizes}):")
        indent = INDENT * (context.depth + self.deeper)
        body = context.scalars.inside(self._read, context.lines, indent)
        if self._block is not None:
            for dim in dims:
                body.bind(self._block.arguments[dim], self._position(dim, indent))
        return body

    def _position(self, dim: int, indent: str) -> str:
        index, count = INDICES[dim], self._counts[dim]
        if count is None or dim not in self._loads:
            return index
        name = self._context.names.new({"i": "row", "j": "column"}[index])
        limit = str(int(count) - 1) if count.isdigit() else f"{count} - 1"
        self._context.lines.append(f"{indent}{name} = T.min({index}, {limit})")
        return name

    def line(self, text: str, deeper: int = 0) -> None:
        """A line of the body."""
        self._context.line(text, self.deeper + deeper)

    def _read(self, op: ir.Operation, indices: list[str]) -> str:
        if op.name == "memref.load":
            return self._context.read(op, indices)
        arguments = list(self._block.arguments) if self._block is not None else []
        positions = [
            INDICES[arguments.index(operand)] if operand in arguments else text
            for operand, text in zip(list(op.operands)[1:], indices, strict=True)
        ]
        straight = positions == list(INDICES[: len(positions)])
        return (self._context.tile if straight else self._context.shared)(op.operands[0]).at(*positions)


def dependence(block: ir.Block) -> dict[ir.Value, frozenset[int]]:
    """Which of the block's arguments each value in it depends on."""
    found: dict[ir.Value, frozenset[int]] = {argument: frozenset((n,)) for n, argument in enumerate(block.arguments)}
    for view in block.operations:
        op = view.operation
        on = frozenset().union(*(found.get(operand, frozenset()) for operand in op.operands))
        found.update({result: on for result in op.results})
    return found


def _loads(block: ir.Block) -> set[int]:
    """The dimensions that reads of memory depend on."""
    found = dependence(block)
    loads = [view.operation for view in block.operations if view.operation.name == "memref.load"]
    return {dim for op in loads for dim in found[op.results[0]]}


def column_values(block: ir.Block) -> list[ir.Value]:
    """Values read from memory, or made of such, that are the same for all rows, and that others, which are not, use."""
    found = dependence(block)
    loaded: set[ir.Value] = set()
    operations = [view.operation for view in block.operations]
    columns = frozenset((1,))
    wanted: dict[ir.Value, None] = {}
    for op in operations:
        if op.name == "memref.load" or any(operand in loaded for operand in op.operands):
            loaded.update(op.results)
        of_columns = bool(op.results) and found[op.results[0]] == columns
        if not of_columns:
            wanted.update({operand: None for operand in op.operands if operand in loaded and found[operand] == columns})
    return list(wanted)


def reads_fragment(context: Context, block: ir.Block) -> bool:
    """Whether a region reads elements of a fragment of rank 2."""
    extracts = [view.operation for view in block.operations if view.operation.name == "tensor.extract"]
    tiles = [context.where.get(op.operands[0]) for op in extracts]
    return any(tile is not None and tile.scope == "fragment" and len(tile.shape) == 2 for tile in tiles)


def print_store(context: Context, op: ir.Operation) -> None:
    """`tile.store`, together with the map that makes the tile where that was put off."""
    value, target, b, h, row, count = op.operands
    place = [context.text(b), context.text(h), f"{context.text(row)} + i"]
    rows = context.text(count)
    maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
    if maker is not None and maker in context.later:
        block = maker.regions[0].blocks[0]
        loop = ParallelLoop(context, list(maker.operands), block)
    else:
        block, loop = None, ParallelLoop(context, list(ir.RankedTensorType(value.type).shape))
    columns = loop.guard(1)
    body = loop.open()
    conditions = [f"i < {rows}", *([columns] if columns else [])]
    indices = list(INDICES[: len(loop.bounds)])
    if block is None:
        text = context.tile(value).at(*indices)
    else:
        text = body.emit(element_of(value))
    loop.line(f"if {' and '.join(conditions)}:")
    loop.line(f"{context.memory.element(target, [*place, *indices[1:]])} = {strip(text)}", 1)


def print_scatter(context: Context, op: ir.Operation) -> None:
    """`tile.scatter_add`: atomic additions of the elements that are present."""
    target, *extents = op.operands
    block = op.regions[0].blocks[0]
    if context.deterministic and not _apart(block):
        _print_in_turn(context, op)
        return
    loop = ParallelLoop(context, extents, block)
    guards = loop.guards
    body = loop.open()
    value, present, *indices = block.operations[-1].operation.operands
    condition = body.emit(present)
    guards += [] if condition == "True" else [condition]
    texts = [body.emit(index) for index in indices]
    amount = body.emit(value)
    if guards:
        loop.line(f"if {' and '.join(guards)}:")
    loop.line(f"T.atomic_add({context.memory.name(target)}[{', '.join(texts)}], {amount})", 1 if guards else 0)


def _print_in_turn(context: Context, op: ir.Operation) -> None:
    """One thread adds all values, in order."""
    target, *extents = op.operands
    block = op.regions[0].blocks[0]
    loop = ParallelLoop(context, extents, block)
    if loop.endless:
        raise UnsupportedError("tilelang: scattered sums in a fixed order over columns of any number; use another emitter")
    values = context.tiles.new("values", "shared", loop.bounds, "float32")
    present = context.tiles.new("present", "shared", loop.bounds, "bool")
    value, condition, *indices = block.operations[-1].operation.operands
    guards, at = loop.guards, INDICES[: len(loop.bounds)]
    body = loop.open()
    texts = {present: " and ".join([*guards, strip(body.emit(condition))]), values: strip(body.emit(value))}
    for tile, text in texts.items():
        loop.line(f"{tile.at(*at)} = {text}")
    context.line("if T.get_thread_binding() == 0:")
    for depth, (index, size) in enumerate(zip(at, loop.bounds, strict=True), 1):
        context.line(f"for {index} in T.serial({size}):", depth)
    depth = len(at) + 1
    context.line(f"if {present.at(*at)}:", depth)
    inner = context.scalars.inside(context.read, context.lines, INDENT * (context.depth + depth + 1))
    for argument, index in zip(block.arguments, at, strict=True):
        inner.bind(argument, index)
    place = f"{context.memory.name(target)}[{', '.join(inner.emit(index) for index in indices)}]"
    context.line(f"{place} = {place} + {values.at(*at)}", depth + 1)


def _apart(block: ir.Block) -> bool:
    """Whether no two elements are added at one place: for each dimension of the loop, some index is its position."""
    indices, found = list(block.operations[-1].operation.operands)[2:], dependence(block)
    return all(any(_is_position(index, argument, found) for index in indices) for argument in block.arguments)


def _is_position(value: ir.Value, argument: ir.Value, found: Mapping[ir.Value, frozenset[int]]) -> bool:
    """Whether a value is an index of the loop plus something of the program; clamping does not change elements that exist."""
    if value == argument:
        return True
    if isinstance(value.owner, ir.Block) or not found.get(value):
        return False
    op = value.owner.operation
    varying = [operand for operand in op.operands if found.get(operand)]
    return op.name in ("arith.addi", "arith.minsi") and len(varying) == 1 and _is_position(varying[0], argument, found)
