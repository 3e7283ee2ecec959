"""Keeps the first factor of a loop's products in registers, where the loop leaves it as it is."""

from collections.abc import Iterator
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.facts import chosen
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels, change_parts
from attn_mlir.dialects.numbers import number
from attn_mlir.dialects.warp import build
from attn_mlir.dialects.warp.kinds import STEP, settled
from attn_mlir.dialects.warp.layouts import Fragment, fragment
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker, walk

_OTHERS = 38
"""Registers beside those of tiles: row values, addresses, counts, and what a loop's instructions pass on."""
_POSITIONS = 16
"""Where scores have terms of positions: rows and columns as floats. Without them 520 bytes of ALiBi's registers spilled (D 128)."""


@dataclass(frozen=True)
class HoldFactors(Pass):
    """Reads the first factor of a loop's product, 16-bit elements in shared memory, into registers before the loop, if it is the same in
    each iteration: the queries of a pass over keys, keys and values of a pass over queries. The product then reads one operand of shared
    memory instead of two. It is read once, before the outermost loop in which it stays the same.

    Where nothing else reads the stage that it came from, this is given back before the loop, so that the next one is loaded meanwhile.
    Where there is no room for a factor, `held` in `warp.schedule` lets its first columns, so many times 16, be in registers (`warp.hold`).

    A kernel stays as it is, with the reason in `warp.refused`, where no loop multiplies such a factor, or the registers of the role do not
    suffice for it beside the tiles of the loop.
    """

    name = "warp-hold-factors"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _hold)
        return True


def _hold(kernel: ir.Operation) -> None:
    products = [(role, op) for role in find_all(kernel, "warp.role") for op in find_all(role, "warp.mma_async")]
    some = chosen(kernel, "held", 0, 0)
    change_parts(products, lambda place: _change(*place, some), "no loop multiplies")


def _change(role: ir.Operation, product: ir.Operation, some: int) -> None:
    """`some`: how many times 16 columns are held of a factor for which there is no room."""
    loop = product.parent.operation if product.parent is not None else product
    view = maker(product.operands[1], "warp.view")
    if loop.name != "scf.for" or view is None or not _is_same(view, loop):
        raise Refused("no loop multiplies a factor in shared memory that stays the same")
    type_ = ir.MemRefType(view.results[0].type)
    if str(type_.element_type) not in ("f16", "bf16") or ir.BoolAttr(product.attributes["transpose_a"]).value:
        raise Refused("factors of registers have 16 bits, and rows as they are stored")
    sum_ = fragment(settled(product.results[0].type))
    assert sum_ is not None
    held = Fragment(sum_.instruction, "tile", tuple(type_.shape), str(type_.element_type))
    needed, given = held.registers + _beside(loop) + sum(tile.registers for tile in _tiles(loop)), number(role, "registers")
    if needed > given:
        if not some:
            raise Refused(f"a factor in registers would make {needed} of a thread, which has {given}")
        if not 0 < STEP * some < held.shape[1]:
            raise Refused(f"`held` is 1 to {held.shape[1] // STEP - 1} of a factor of {held.shape[1]} columns, not {some}")
        _hold_some(product, view, loop, Fragment(held.instruction, held.form, (held.shape[0], STEP * some), held.element))
        return
    buffer, stage = view.operands[0], view.operands[1]
    while (above := loop.parent) is not None and above.operation.name == "scf.for" and _is_same(view, above.operation):
        loop = above.operation
    product.operands[1], behind = _read(view, loop, held)
    if not list(view.results[0].uses):
        view.erase()
    frees = [op for op in find_all(role, "warp.arrive") if op.operands[1] == stage]
    views = [op for op in find_all(role, "warp.view") if op.operands[0] == buffer and op != behind and list(op.results[0].uses)]
    if len(frees) == 1 and not views and frees[0].block == loop.block:
        frees[0].move_before(loop)


def _read(view: ir.Operation, loop: ir.Operation, held: Fragment) -> tuple[ir.Value, ir.Operation]:
    """The fragment of a factor, and the view that it is read from: that of an earlier product if there is one, else before a loop."""
    ops = [each.operation for each in loop.block.operations]
    for op in ops[: ops.index(loop)]:
        known = maker(op.operands[0], "warp.view") if op.name == "warp.read" else None
        if known is not None and list(known.operands) == list(view.operands) and known.results[0].type == view.results[0].type:
            return op.results[0], known
    with view.location, ir.InsertionPoint(loop):
        place = build.op("view", list(view.operands), [view.results[0].type])
        made = build.fragment_type(held.instruction, held.form, held.shape, ir.MemRefType(view.results[0].type).element_type)
        return build.op("read", [place.result], [made]).result, place


def _hold_some(product: ir.Operation, view: ir.Operation, loop: ir.Operation, held: Fragment) -> None:
    """Lets a product take the first columns of its factor from registers, which are read before all loops in which it stays the same."""
    while (above := loop.parent) is not None and above.operation.name == "scf.for" and _is_same(view, above.operation):
        loop = above.operation
    shared = ir.MemRefType(view.results[0].type)
    with view.location, ir.InsertionPoint(view):
        part = ir.MemRefType.get(held.shape, shared.element_type, memory_space=shared.memory_space)
        first = build.op("view", list(view.operands), [part])
        some, _ = _read(first, loop, held)
        first.erase()
        with ir.InsertionPoint(product):
            product.operands[1] = build.op("hold", [view.results[0], some], [shared]).result


def _is_same(view: ir.Operation, loop: ir.Operation) -> bool:
    """Whether a view of shared memory depends on nothing of a loop."""
    inside = {result for op in walk(loop) for result in op.results} | set(loop.regions[0].blocks[0].arguments)
    return not any(operand in inside for operand in view.operands)


def _beside(loop: ir.Operation) -> int:
    """Registers of a loop beside those of tiles."""
    return _OTHERS + (_POSITIONS if any(op.name in ("arith.sitofp", "arith.uitofp") for op in walk(loop)) else 0)


def _tiles(loop: ir.Operation) -> Iterator[Fragment]:
    """The tiles that a loop holds at once: what it carries, other sums of products, and their first factors in registers.

    A loop of more than two products, which `warp-overlap-products` leaves, makes factors in the registers of the sums that they come from.
    """
    carried, products = list(loop.regions[0].blocks[0].arguments), find_all(loop, "warp.mma_async")
    values, inside = carried.copy(), {result for op in walk(loop) for result in op.results} if len(products) > 2 else set[ir.Value]()
    for op in products:
        if op.operands[0] not in carried and maker(op.operands[0], "warp.registers") is not None:
            values.append(op.results[0])
        if op.operands[1] not in inside:
            values.append(op.operands[1])
    for value in dict.fromkeys(values):
        found = fragment(settled(value.type))
        if found is not None and found.form == "tile":
            yield found
