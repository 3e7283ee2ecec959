"""Where maps read captured tensors: windows whose rows go along one dimension, and whose columns along the last one."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.windows import WINDOW_ELEMENTS, WINDOW_RANKS
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import find_all, maker

_NO_BOX = "a map reads a captured tensor at places that are no box of rows along one dimension and columns along the last one"


@dataclass(frozen=True)
class WindowRead:
    """A read of a map at its own row and column. `terms`: for each dimension, what its index is the sum of, beside row and column.

    `rows`: along which dimension the rows in memory are: the map's rows, or, where it is `turned`, its columns. `top`: the op of the loop's
    block `block` in which the map stands.
    """

    load: ir.Operation
    map_: ir.Operation
    rows: int
    turned: bool
    terms: tuple[tuple[ir.Value, ...], ...]
    top: ir.Operation
    warpgroup: ir.Value

    @property
    def source(self) -> ir.Value:
        """The tensor."""
        return self.load.operands[0]

    @property
    def block(self) -> ir.Block:
        """That of the loop over blocks of keys."""
        return self.top.block

    @property
    def key(self) -> object:
        """What reads of one window have in common."""
        return (
            self.source,
            self.block.owner.operation,
            (self.rows, self.turned),
            tuple(self.map_.attributes["shape"]),
            tuple((len(each), frozenset(each)) for each in self.terms),
        )

    def place(self, dimension: int, first_row: int) -> ir.Value:
        """The index of a window's first element, for the warpgroup whose first row is this one, at the current insertion point."""
        total: ir.Value | None = None
        for term in self.terms[dimension]:
            value = build.index(first_row) if is_first_row(term, self.warpgroup) else term
            total = value if total is None else arith.AddIOp(total, value).result
        return total if total is not None else build.index(0)


def read_of(load: ir.Operation, kernel: ir.Operation) -> WindowRead:
    """What a load in a map over a tile reads. Raises Refused where that is no window, or no copies of keys come with it."""
    map_ = load.parent.operation if load.parent is not None else load
    type_, (i, j) = ir.MemRefType(load.operands[0].type), list(map_.regions[0].blocks[0].arguments)
    if type_.rank not in WINDOW_RANKS or not isinstance(load.operands[0].owner, ir.Block):
        raise Refused(f"windows are those of captured tensors of 2 to 4 dimensions, not of {type_}")
    if str(type_.element_type) not in WINDOW_ELEMENTS:
        raise Refused(f"windows have elements of {', '.join(WINDOW_ELEMENTS)}, not {type_.element_type}")
    found = [_index(value, map_, kernel) for value in list(load.operands)[1:]]
    moved = [n for n, (_, moving) in enumerate(found) if moving]
    turned = found[-1][1] == [i]
    if len(moved) != 2 or [found[n][1] for n in moved] != ([[j], [i]] if turned else [[i], [j]]) or moved[1] != type_.rank - 1:
        raise Refused(_NO_BOX)
    top, warpgroup = _top(map_)
    terms = tuple(tuple(fixed) for fixed, _ in found)
    for n, each in enumerate(terms):
        own = [term for term in each if is_first_row(term, warpgroup)]
        if len(own) != (n == moved[turned]) or any(depends(term, warpgroup) for term in each if term not in own):
            raise Refused(_NO_BOX)
        if any(_is_inside(term, top) for term in each):
            raise Refused("where a window is depends on a condition of the loop over keys")
    return WindowRead(load, map_, moved[0], turned, terms, top, warpgroup)


def _index(value: ir.Value, map_: ir.Operation, kernel: ir.Operation) -> tuple[list[ir.Value], list[ir.Value]]:
    """The terms of an index that are the same for all elements of a map, and row and column if it grows with them by 1.

    A row may be cut to the last that exists, and a column to the last of its block: others take part in nothing.
    """
    block = map_.regions[0].blocks[0]
    if value in list(block.arguments):
        return [], [value]
    if isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return [value], []
    op = value.owner.operation
    if op.name == "arith.constant":
        return [value], []
    if op.name == "arith.addi":
        parts = [_index(operand, map_, kernel) for operand in op.operands]
        return [term for fixed, _ in parts for term in fixed], [place for _, moving in parts for place in moving]
    if op.name == "arith.minsi":
        column = block.arguments[1]
        if column in list(op.operands):
            return [], [column]
        for moving, limit in (tuple(op.operands), tuple(op.operands)[::-1]):
            if _is_last_row(limit, kernel):
                fixed, places = _index(moving, map_, kernel)
                if places == [block.arguments[0]]:
                    return fixed, places
    raise Refused(_NO_BOX)


def _is_last_row(value: ir.Value, kernel: ir.Operation) -> bool:
    """Whether a number is that of the last row that exists of the tensor whose blocks are copied once a tile, or of such a block."""
    less = maker(value, "arith.subi")
    return less is not None and _is_number(less.operands[1], 1) and _is_size(less.operands[0], kernel)


def _is_size(value: ir.Value, kernel: ir.Operation) -> bool:
    """Whether a number is that of the rows of such a tensor, or of those from some row on, or of a block's."""
    op = maker(value)
    if op is None:
        return False
    match op.name:
        case "memref.dim":
            copies = [each for each in find_all(kernel, "warp.copy_async") if each.operands[0] == op.operands[0]]
            return _is_number(op.operands[1], 2) and any(rings.depth(each) == 1 for each in copies)
        case "arith.subi":
            return _is_size(op.operands[0], kernel)
        case "arith.minsi":
            return any(_is_size(each, kernel) for each in op.operands)
    return False


def _is_number(value: ir.Value, wanted: int) -> bool:
    op = maker(value, "arith.constant")
    return op is not None and ir.IntegerAttr(op.attributes["value"]).value == wanted


def is_first_row(value: ir.Value, warpgroup: ir.Value) -> bool:
    """Whether a value is that of the first row of a warpgroup in its block."""
    product = maker(value, "arith.muli")
    return product is not None and product.operands[0] == warpgroup and maker(product.operands[1], "arith.constant") is not None


def depends(value: ir.Value, on: ir.Value) -> bool:
    """Whether arithmetic makes a value of another one; also where that is not known, of what loops carry."""
    todo, seen = [value], set[ir.Value]()
    while todo:
        each = todo.pop()
        if each == on:
            return True
        if each in seen or isinstance(each.owner, ir.Block):
            continue
        seen.add(each)
        todo += each.owner.operation.operands
    return False


def _top(map_: ir.Operation) -> tuple[ir.Operation, ir.Value]:
    """The op of a loop over keys in which a map stands, and the warpgroup of its role. Raises Refused where it is in no such loop."""
    top, found = map_, None
    while top.parent is not None and top.parent.operation.name != "warp.role":
        above = top.parent.operation
        if found is None and above.name == "scf.for" and rings.depth(above) > 0:
            found = top
        top = above
    if found is None or top.parent is None:
        raise Refused("a map that reads a captured tensor is in no loop over blocks of keys")
    return found, top.parent.operation.regions[0].blocks[0].arguments[0]


def _is_inside(value: ir.Value, outer: ir.Operation) -> bool:
    above = value.owner.owner.operation if isinstance(value.owner, ir.Block) else value.owner.operation
    while above is not None and above != outer:
        above = above.parent.operation if above.parent is not None else None
    return above is not None


def copies_before(op: ir.Operation, copies: Callable[[ir.Operation], bool]) -> ir.Operation:
    """The first condition of an op's block, before it, in which a warpgroup alone copies. Raises Refused without one."""
    ops = [view.operation for view in op.block.operations]
    for each in ops[: ops.index(op)]:
        if each.name == "scf.if" and copies(each):
            return each
    raise Refused("no copies of keys come before the map that reads a captured tensor")
