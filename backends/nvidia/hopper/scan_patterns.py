"""Forms of maps and memory in kernels of grid "chunks" that `scan_read` recognises."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from attn_mlir.backends.gpu.emitters import Refusal
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.structure import body, maker, operations, widened, yielded
from attn_mlir.mlir import ir

_Scan = TypeVar("_Scan")


class OtherKernelError(Exception):
    """The kernel is not one that this emitter knows."""


@dataclass(frozen=True)
class TensorView:
    """A tensor in memory, or columns of it from `column` on (None: from the first); `slot`: the index along its first dimension."""

    argument: ir.Value
    column: ir.Value | None = None
    slot: ir.Value | None = None


@dataclass
class InputTile:
    """A tile of q, k or v: its load, the factors of rows that its mod multiplies it with, or the mod itself if it does more."""

    load: ir.Operation
    view: TensorView
    factors: list[ir.Value] = field(default_factory=list)
    mod: ir.Operation | None = None

    @property
    def columns(self) -> int:
        return ir.RankedTensorType(self.load.results[0].type).shape[1]


def need(condition: bool, reason: str = "", op: ir.Operation | None = None) -> None:
    """Raises OtherKernelError unless the condition holds; with a `reason` where a user can do something about it."""
    if not condition:
        raise OtherKernelError(reason, op)


def why_not(read: Callable[[ir.Operation], object], kernel: ir.Operation) -> Refusal:
    """Why `read` does not know a kernel, or why what it knows does not fit."""
    try:
        read(kernel)
    except OtherKernelError as error:
        return Refusal(*error.args) if error.args and error.args[0] else Refusal("what a chunk computes has another form than its scans")
    return Refusal("the state and its tiles need more shared memory or registers than there are")


def known(read: Callable[[ir.Operation], _Scan], kernel: ir.Operation) -> _Scan | None:
    """The scan that `read` makes of a kernel; None for a kernel of another form."""
    try:
        return read(kernel)
    except OtherKernelError:
        return None


def made(value: ir.Value, *names: str) -> ir.Operation:
    """The op of one of these names that makes a value. Raises OtherKernelError for other values."""
    op = maker(value)
    if op is None or op.name not in names:
        raise OtherKernelError
    return op


def rank(value: ir.Value) -> int:
    """Of a tile."""
    return ir.RankedTensorType(value.type).rank


def reads_of(op: ir.Operation) -> list[ir.Operation]:
    """The elements of tiles that a map reads."""
    return [inner for inner in operations(body(op)) if inner.name == "tensor.extract"]


def sources(op: ir.Operation, of_rank: int) -> list[ir.Value]:
    """The tiles of that rank that a map reads."""
    return [value for value in dict.fromkeys(read.operands[0] for read in reads_of(op)) if rank(value) == of_rank]


def tile_at(value: ir.Value, at: list[ir.Value]) -> ir.Value:
    """The tile of which a value is the element there, as it is or widened. Raises OtherKernelError for other values."""
    read = made(value, "arith.extf", "tensor.extract")
    read = read if read.name == "tensor.extract" else made(read.operands[0], "tensor.extract")
    need(list(read.operands)[1:] == at)
    return read.operands[0]


def factor_of(op: ir.Operation, tile: ir.Value) -> ir.Value:
    """The tile that a map multiplies another by, element by element. Raises OtherKernelError for other maps."""
    values = yielded(body(op))
    need(len(values) == 1)
    sides = [tile_at(side, list(body(op).arguments)) for side in made(values[0], "arith.mulf").operands]
    need(tile in sides)
    return sides[1 - sides.index(tile)]


def view_of(value: ir.Value) -> TensorView:
    """What part of which argument a memref is. Raises OtherKernelError for parts of another form."""
    if maker(value) is None:
        return TensorView(value)
    op = made(value, "memref.subview")
    source, *dynamic = op.operands
    offsets, steps = (list(ir.DenseI64ArrayAttr(op.attributes[name])) for name in ("static_offsets", "static_strides"))
    of_source, of_view = (ir.MemRefType(each.type).rank for each in (source, value))
    moved = [dim for dim, offset in enumerate(offsets) if offset != 0]
    need(maker(source) is None and all(step == 1 for step in steps) and len(moved) <= 1)
    if not moved:
        need(of_view == of_source)
        return TensorView(source)
    need(ir.ShapedType.is_dynamic_size(offsets[moved[0]]))
    if moved[0] == 0:
        need(of_view == of_source - 1)
        return TensorView(source, slot=dynamic[0])
    need(moved[0] == of_source - 1 and of_view == of_source)
    return TensorView(source, column=dynamic[0])


def _peel(value: ir.Value, depends: dict[ir.Value, frozenset[int]], leaves: list[ir.Value]) -> list[ir.Value] | None:
    """The factors of rows of a product with an element; `leaves` gets the `tensor.extract` that remains. None for other code."""
    op = maker(value)
    if op is None:
        return None
    if op.name in ("arith.extf", "arith.truncf"):
        return _peel(op.operands[0], depends, leaves)
    if op.name == "tensor.extract" and depends[value] == {0, 1}:
        leaves.append(value)
        return []
    if op.name == "arith.mulf":
        for one, other in (list(op.operands), list(op.operands)[::-1]):
            if depends.get(other, frozenset()) <= {0}:
                inner = _peel(one, depends, leaves)
                return None if inner is None else [*inner, other]
    return None


def _scaled_rows(op: ir.Operation) -> tuple[ir.Value, list[ir.Value]] | None:
    """The tile that a map of rank 2 multiplies by factors of rows, and these; None for other maps."""
    block = body(op)
    values, leaves = yielded(block), list[ir.Value]()
    if len(values) != 1 or len(list(block.arguments)) != 2:
        return None
    factors = _peel(values[0], dependence(block), leaves)
    if factors is None:
        return None
    read = made(leaves[0], "tensor.extract")
    return (read.operands[0], factors) if list(read.operands)[1:] == list(block.arguments) else None


def is_rest(op: ir.Operation, of: ir.Operation) -> bool:
    """Whether a map makes the residual of rounding, round(x - round(x)), of another map that makes round(x)."""
    values, others = yielded(body(op)), yielded(body(of))
    difference = maker(widened(values[0])) if len(values) == len(others) == 1 else None
    again = maker(difference.operands[1]) if difference is not None and difference.name == "arith.subf" else None
    part = maker(again.operands[0]) if again is not None and again.name == "arith.extf" else None
    if difference is None or part is None:
        return False
    arguments, whole = dict(zip(body(op).arguments, body(of).arguments, strict=False)), difference.operands[0]
    if part.name == "tensor.extract":
        same = part.operands[0] == of.results[0] and list(part.operands)[1:] == list(body(op).arguments)
    else:
        same = part.name == "arith.truncf" and part.operands[0] == whole
    return same and _same_number(whole, widened(others[0]), arguments)


def _same_number(x: ir.Value, y: ir.Value, known: dict[ir.Value, ir.Value]) -> bool:
    """Whether two values are computed alike, from values outside and what is `known` to be the same, which gets what is found."""
    if known.get(x, x) == y:
        return True
    a, b = maker(x), maker(y)
    if x in known or a is None or b is None or a.name != b.name or len(a.results) != 1 or len(a.regions):
        return False
    kinds = [(op.results[0].type, {name: op.attributes[name] for name in op.attributes}) for op in (a, b)]
    pairs = zip(a.operands, b.operands, strict=False)
    if kinds[0] != kinds[1] or len(a.operands) != len(b.operands) or not all(_same_number(s, t, known) for s, t in pairs):
        return False
    known[x] = y
    return True


def is_copy(op: ir.Operation, tile: ir.Value) -> bool:
    """Whether a map only rounds a tile."""
    found = _scaled_rows(op)
    return found is not None and found[0] == tile and not found[1]


def scaled(op: ir.Operation) -> tuple[ir.Value, ir.Operation]:
    """The tile that a map multiplies by the values of another map, one for each row, and that map."""
    found = _scaled_rows(op)
    if found is None or len(found[1]) != 1:
        raise OtherKernelError
    read = made(found[1][0], "tensor.extract")
    need(list(read.operands)[1:] == [next(iter(body(op).arguments))])
    return found[0], made(read.operands[0], "tile.map")


def input_of(value: ir.Value) -> InputTile:
    """The input that a tile is, as it is loaded or after its mod."""
    op = made(value, "tile.load", "tile.map")
    if op.name == "tile.load":
        return InputTile(op, view_of(op.operands[0]))
    found = sources(op, 2)
    need(len(found) == 1)
    load = made(found[0], "tile.load")
    rows = _scaled_rows(op)
    if rows is not None:
        return InputTile(load, view_of(load.operands[0]), rows[1])
    need(all(list(read.operands) == [found[0], *body(op).arguments] for read in reads_of(op)))
    return InputTile(load, view_of(load.operands[0]), [], op)


def varies(value: ir.Value) -> bool:
    """Whether a factor of rows differs between rows."""
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    depends = dependence(block) if isinstance(block.owner.operation.name, str) and block.owner.operation.name == "tile.map" else {}
    return bool(depends.get(value, frozenset()))
