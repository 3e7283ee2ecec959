"""Maps on tiles as maps on fragments: parts of reductions, rows of a warpgroup, and columns that do not exist."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import padded
from attn_mlir.dialects.warp.layouts import INSTRUCTIONS
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import maker, walk

INSTRUCTION = "wgmma"
"""Of a chip with TMA."""
LARGEST = 3.4028234663852886e38
_IDENTITY = {"sum": 0.0, "max": -LARGEST, "min": LARGEST}
_DOTS = {"tile.dot": 0, "tile.dot_add": 1, "tile.dot_rescale": 2, "tile.accumulate": 0}
"""Ops that multiply, and which operand is what is computed."""
_READS = ("memref.load", "memref.dim")
"""All that a kernel does with a tensor that it only reads numbers of."""
_SCALAR = ("arith.", "math.", "memref.load", "memref.dim", "tensor.extract", "attn.kept")


@dataclass(frozen=True)
class FragmentMap:
    """How tiles become fragments: rows of a block and of a warpgroup, columns of a tile whose number is not static, the instruction.

    `first` is the warpgroup's first row in the block; `scalar` and `tile` give what stands for a value of the tiled kernel.
    """

    block: int
    rows: int
    columns: int
    instruction: str
    first: ir.Value
    scalar: Callable[[ir.Value], ir.Value]
    tile: Callable[[ir.Value], ir.Value]

    def type_of(self, type_: ir.Type) -> ir.Type:
        """The fragment that a tile of a block of rows becomes. Raises Refused for tiles of other things."""
        tile = ir.RankedTensorType(type_)
        if tile.rank not in (1, 2) or tile.shape[0] != self.block:
            raise Refused(f"computes a tile of other rows than the {self.block} of a block: {type_}")
        shape = [self.rows, *(self.columns if n < 0 else self.columns_for(n) for n in tile.shape[1:])]
        return build.fragment_type(self.instruction, "tile" if tile.rank == 2 else "rows", shape, tile.element_type)

    def columns_for(self, columns: int) -> int:
        """Those of a fragment for so many of a tile: `padded` where TMA fills the rest with zeros, and leaves it out of what it stores."""
        return padded(columns) if self.instruction == INSTRUCTION else columns


def form(op: ir.Operation, where: FragmentMap) -> list[ir.Value]:
    """The results of a `tile.map` as fragments. Raises Refused."""
    block, extents = op.regions[0].blocks[0], list(op.operands)
    last = block.operations[-1].operation
    kinds = ["", *[""] * len(op.results)][: len(op.results) - len(op.opview.kinds())] + op.opview.kinds()
    _check(block)
    shape = [where.rows]
    if len(extents) == 2:
        shape.append(_columns(op, where))
    make, multiple = INSTRUCTIONS[where.instruction]
    parts = [where.rows, make(multiple).parts]
    types = []
    for result, kind in zip(op.results, kinds, strict=True):
        element = ir.RankedTensorType(result.type).element_type
        types.append(build.fragment_type(where.instruction, "parts", parts, element) if kind else where.type_of(result.type))
    limit = where.scalar(extents[1]) if len(extents) == 2 and _is_open(op, extents[1], shape[1]) else None
    guarded = [bool(kind) or _multiplied(result) for result, kind in zip(op.results, kinds, strict=True)]
    tiles = {inner.operands[0]: where.tile(inner.operands[0]) for inner in walk(op) if inner.name == "tensor.extract"}
    same, each = _shared(block)
    of_all: dict[ir.Value, ir.Value] = {}
    for inner in same:
        _clone(inner, of_all, (), tiles, where)

    def body(*places: ir.Value) -> list[ir.Value]:
        known = {**of_all, **_places(block, places, limit, where)}
        for inner in each:
            _clone(inner, known, places, tiles, where)
        values = [known.get(v) or where.scalar(v) for v in last.operands]
        if limit is None:
            return values
        exists = arith.CmpIOp(arith.CmpIPredicate.slt, places[1], limit).result
        return [_or_else(exists, v, kind) if guard else v for v, kind, guard in zip(values, kinds, guarded, strict=True)]

    try:
        made = build.map_(shape, types, kinds, body)
    except ValueError as error:
        raise Refused(f"a map {error}") from None
    return [_whole(value, kind, result, where) for value, kind, result in zip(made, kinds, op.results, strict=True)]


def _shared(block: ir.Block) -> tuple[list[ir.Operation], list[ir.Operation]]:
    """The ops of a map's region that are the same for all elements, which stand before the map, and the others."""
    varying: set[ir.Value] = set(block.arguments)
    same: list[ir.Operation] = []
    each: list[ir.Operation] = []
    for view in list(block.operations)[:-1]:
        op = view.operation
        if op.name == "tensor.extract" or any(value in varying for value in op.operands):
            varying |= set(op.results)
            each.append(op)
        else:
            same.append(op)
    return same, each


def _check(block: ir.Block) -> None:
    for view in list(block.operations)[:-1]:
        if not view.operation.name.startswith(_SCALAR):
            raise Refused(f"'{view.operation.name}' stands in a map")


def _columns(op: ir.Operation, where: FragmentMap) -> int:
    """The columns of what a map goes over: those of its tiles, of the tiles that it reads, or its static extent."""
    reads = [inner.operands[0].type for inner in walk(op) if inner.name == "tensor.extract"]
    widths = {ir.RankedTensorType(t).shape[1] for t in [*(r.type for r in op.results), *reads] if ir.RankedTensorType(t).rank == 2}
    found = {where.columns if n < 0 else where.columns_for(n) for n in widths} or {_constant(op.operands[1]) or where.columns}
    if len(found) > 1:
        raise Refused(f"a map goes over tiles of {', '.join(map(str, sorted(found)))} columns")
    return found.pop()


def _is_open(op: ir.Operation, extent: ir.Value, columns: int) -> bool:
    """Whether fewer columns may exist than a fragment has."""
    return _constant(extent) != columns


def _constant(value: ir.Value) -> int | None:
    op = None if isinstance(value.owner, ir.Block) else value.owner.operation
    return ir.IntegerAttr(op.attributes["value"]).value if op is not None and op.name == "arith.constant" else None


def _multiplied(result: ir.Value) -> bool:
    """Whether a product sums over the columns of a tile: those that do not exist must be zeros."""
    uses = [(use.owner.operation.name, use.operand_number) for use in result.uses]
    return any(_DOTS.get(name) == number for name, number in uses)


def _places(block: ir.Block, places: tuple[ir.Value, ...], limit: ir.Value | None, where: FragmentMap) -> dict[ir.Value, ir.Value]:
    """The row in the block, and the column, at most the last that exists where captured tensors are read at it."""
    known = {block.arguments[0]: arith.AddIOp(where.first, places[0]).result}
    if len(places) == 2:
        column, depends = places[1], dependence(block)
        loads = [view.operation for view in block.operations if view.operation.name == "memref.load"]
        reads = any(1 in depends.get(index, frozenset()) for load in loads for index in list(load.operands)[1:])
        if limit is not None and reads:
            last = arith.MaxSIOp(arith.SubIOp(limit, build.index(1)).result, build.index(0)).result
            column = arith.MinSIOp(column, last).result
        known[block.arguments[1]] = column
    return known


def _clone(
    op: ir.Operation, known: dict[ir.Value, ir.Value], places: tuple[ir.Value, ...], tiles: dict[ir.Value, ir.Value], where: FragmentMap
) -> None:
    if op.name == "tensor.extract":
        source, *indices = op.operands
        if [ir.BlockArgument(i).arg_number if isinstance(i.owner, ir.Block) else -1 for i in indices] != list(range(len(indices))):
            raise Refused("a map reads a tile at another place than its own")
        made = ir.Operation.create("tensor.extract", results=[op.results[0].type], operands=[tiles[source], *places[: len(indices)]])
        known[op.results[0]] = made.result
        return
    clone = op.clone()
    for n, value in enumerate(op.operands):
        clone.operands[n] = known.get(value) or where.scalar(value)
    known.update(zip(op.results, clone.results, strict=True))


def _or_else(exists: ir.Value, value: ir.Value, kind: str) -> ir.Value:
    """A value where the column exists; what is rounded afterwards is chosen before, so that pairs are rounded at once."""
    rounded = maker(value, "arith.truncf")
    if rounded is not None:
        return arith.TruncFOp(value.type, _or_else(exists, rounded.operands[0], kind)).result
    other = arith.ConstantOp(value.type, _IDENTITY.get(kind, 0.0)).result
    return arith.SelectOp(exists, value, other).result


def _whole(value: ir.Value, kind: str, result: ir.Value, where: FragmentMap) -> ir.Value:
    """Row values of parts, at once."""
    return build.op("reduce", [value], [where.type_of(result.type)], kind=kind).result if kind else value


def scaled(sums: ir.Value, *factors: ir.Value) -> ir.Value:
    """A tile, its rows multiplied by a factor each where there is one."""
    if not factors:
        return sums
    (factor,), type_ = factors, ir.RankedTensorType(sums.type)

    def body(i: ir.Value, j: ir.Value) -> list[ir.Value]:
        one = ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[sums, i, j]).result
        other = ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[factor, i]).result
        return [arith.MulFOp(one, other).result]

    return build.map_(type_.shape, [type_], [""], body)[0]


def narrowed(fragment: ir.Value, element: ir.Type) -> ir.Value:
    """A fragment, rounded to another element type if it has one."""
    type_ = ir.RankedTensorType(fragment.type)
    if type_.element_type == element:
        return fragment
    made = ir.RankedTensorType.get(type_.shape, element, type_.encoding)

    def body(*places: ir.Value) -> list[ir.Value]:
        value = ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[fragment, *places]).result
        return [arith.TruncFOp(element, value).result]

    return build.map_(type_.shape, [made], [""], body)[0]


def number_in(value: ir.Value, block: ir.Block) -> Hashable:
    """What a number of a map's region `block` is, so that equal numbers of two maps have the same."""
    if isinstance(value.owner, ir.Block):
        return ("place", ir.BlockArgument(value).arg_number) if value.owner == block else value
    op = value.owner.operation
    if op.block != block:
        return value
    attributes = tuple((name, str(op.attributes[name])) for name in op.attributes)
    return (op.name, attributes, *(number_in(operand, block) for operand in op.operands))


def constant_beside(op: ir.Operation, value: ir.Value, name: str) -> ir.Attribute | None:
    """The constant with which an op of this name combines a value of f32; None for another op, or other operands."""
    if op.name != name or str(value.type) != "f32":
        return None
    others = [other for other in op.operands if other != value]
    made = maker(others[0], "arith.constant") if len(others) == 1 else None
    return made.attributes["value"] if made is not None else None


def is_free(op: ir.Operation) -> bool:
    """Whether an op may stand anywhere that knows its operands: it computes, or reads a tensor which the kernel never writes."""
    if op.name == "memref.load":
        source = op.operands[0]
        return isinstance(source.owner, ir.Block) and all(use.owner.operation.name in _READS for use in source.uses)
    return op.name.startswith(("arith.", "math.")) or op.name in ("memref.dim", "warp.map", "warp.yield")
