"""The order in which a chunk's ops are printed where products run beside other work."""

from collections.abc import Mapping

from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations
from attn_mlir.backends.nvidia.scans.layout import carried
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

_ADDED = ("tile.dot", "tile.dot_add")
"""Products that need not wait for those that they are added to."""
_NEXT = 100
"""By how much what the next chunk needs comes before what it does not."""


def ordered(loop: ir.Operation, cuts: Mapping[ir.Operation, ir.Operation]) -> list[ir.Operation]:
    """The ops of a loop's body: a result of products is waited for only once nothing else is left to do.

    Tiles that are cut as they come (`cuts`: maps, with their loads) are not among them. Of what can be done, that comes first which most
    products wait for. What reads a carried tile comes before the product that changes it.
    """
    *every, end = operations(body(loop))
    rows = helping(loop) | cuts.keys() | set(cuts.values())
    ops = [op for op in every if op not in rows]
    needs = {op: _needs(op, body(loop)) - rows for op in ops}
    for op, readers in _changes(loop).items():
        needs[op] |= readers - {op}
    # A state that is stored late stays in registers, which what is added to products of matrices needs.
    heights = _heights(loop, ops, needs, [op for op in ops if op.name == "tile.store"] if cuts else [])
    made: list[ir.Operation] = []
    running: list[ir.Operation] = []
    left = dict.fromkeys(ops)
    while left:
        ready = [op for op in left if not needs[op] & left.keys()]
        if not ready:
            raise UnsupportedError(f"scans: a carried tile is read after it was changed ({loop.location})")
        waits = {op: op.name not in _ADDED and any(other in running for other in needs[op]) for op in ready}
        op = min(ready, key=lambda each: (waits[each], -heights[each] - (each.name in DOTS)))
        if waits[op]:
            last = max(number for number, other in enumerate(running) if other in needs[op])
            running = running[last + 1 :]
        if op.name in DOTS:
            running.append(op)
        made.append(op)
        del left[op]
    return [*made, end]


def helping(loop: ir.Operation) -> set[ir.Operation]:
    """The ops of a loop's body that make numbers of rows, and what these alone need: they need no products, and run before a chunk."""
    block = body(loop)
    found: set[ir.Operation] = set()
    for op in reversed(operations(block)):
        if op.name == "scf.yield" or not list(op.results):
            continue
        users = {outer(use.owner.operation, block) for result in op.results for use in result.uses}
        if all(is_row(result.type) for result in op.results) or (op.name != "tile.load" and users and users <= found):
            found.add(op)
    if any(is_tile(value) and not is_row(value.type) for op in found for value in _read(op)):
        raise UnsupportedError(f"scans: numbers of rows are made of tiles ({loop.location})")
    return found


def changed(loop: ir.Operation) -> dict[ir.Value, ir.Operation]:
    """The carried tiles that products change in place, with the first of these products."""
    found: dict[ir.Value, ir.Operation] = {}
    for _, argument, value, _ in carried(loop):
        first: ir.Operation | None = None
        while not isinstance(value.owner, ir.Block) and value.owner.operation.name in DOTS[1:]:
            product = value.owner.operation
            first, value = product, product.operands[0]
            if value != argument and len(list(value.uses)) > 1:
                break
        if first is not None and value == argument:
            found[argument] = first
    return found


def _changes(loop: ir.Operation) -> dict[ir.Operation, set[ir.Operation]]:
    """The first product that changes a carried tile, with all readers of the tile."""
    return {op: {outer(use.owner.operation, body(loop)) for use in argument.uses} for argument, op in changed(loop).items()}


def outer(op: ir.Operation, block: ir.Block) -> ir.Operation:
    """The op of a block that an op is, or lies in."""
    while op.block != block:
        op = op.parent
    return op


def _read(op: ir.Operation) -> list[ir.Value]:
    """What an op and those in its regions read."""
    return [value for each in [op, *walk(op)] for value in each.operands]


def _needs(op: ir.Operation, block: ir.Block) -> set[ir.Operation]:
    """The ops of the block whose results an op reads."""
    owners = [value.owner.operation for value in _read(op) if not isinstance(value.owner, ir.Block)]
    return {owner for owner in owners if owner.block == block}


def _heights(
    loop: ir.Operation, ops: list[ir.Operation], needs: dict[ir.Operation, set[ir.Operation]], first: list[ir.Operation]
) -> dict[ir.Operation, int]:
    """How many products, one after another, wait for each op; those of `first` come before all of them."""
    heights = {op: 2 * _NEXT if op in first else 0 for op in ops}
    for _, _, value, _ in carried(loop):
        if not isinstance(value.owner, ir.Block) and value.owner.operation in heights:
            heights[value.owner.operation] = _NEXT
    moved = True
    while moved:
        moved = False
        for op in reversed(ops):
            for other in needs[op]:
                least = heights[op] + (1 if op.name in DOTS else 0)
                if heights[other] < least:
                    heights[other] = least
                    moved = True
    return heights
