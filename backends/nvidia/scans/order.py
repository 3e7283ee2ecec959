"""The order in which a chunk's ops are printed where products run beside other work."""

from itertools import pairwise

from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations
from attn_mlir.backends.nvidia.scans.layout import DOTS, carried
from attn_mlir.dialects.numbers import flag
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk

_ADDED = ("tile.dot", "tile.dot_add")
"""Products that need not wait for those that they are added to."""
_NEXT = 100
"""By how much what the next chunk needs comes before what it does not."""
_STORED = 200
"""The same of stores of carried tiles."""


def ordered(loop: ir.Operation) -> list[ir.Operation]:
    """The ops of a loop's body: a result of products is waited for only once nothing else is left to do.

    Of what can be done, that comes first which most products wait for. What reads a carried tile comes before the product that changes it,
    and what stores one before all products: ptxas lets no product run at a branch in which registers are read that products change.

    Products take turns on the tensor cores in the order in which they are started. So of those that what is waited for does not need, one at
    a time is started before a wait, and its time is that of the threads' own work between two products that need each other.
    """
    *every, end = operations(body(loop))
    rows = helping(loop)
    ops = [op for op in every if op not in rows]
    needs = {op: _needs(op, body(loop)) - rows for op in ops}
    for op, readers in _changes(loop).items():
        needs[op] |= readers - {op}
    heights = _heights(loop, ops, needs)
    made: list[ir.Operation] = []
    running: list[ir.Operation] = []
    beside: set[ir.Operation] = set()
    left = dict.fromkeys(ops)
    while left:
        ready = [op for op in left if not needs[op] & left.keys()]
        if not ready:
            raise UnsupportedError(f"scans: a carried tile is read after it was changed ({loop.location})")
        waits = {op: op.name not in _ADDED and any(other in running for other in needs[op]) for op in ready}
        urgent = max((heights[op] for op in ready if waits[op]), default=0)
        full = bool(running) and running[-1] in beside
        later = {op: waits[op] or (full and op.name in DOTS and heights[op] < urgent) for op in ready}
        op = min(ready, key=lambda each: (later[each], -heights[each] - (each.name in DOTS)))
        if waits[op]:
            last = max(number for number, other in enumerate(running) if other in needs[op])
            running = running[last + 1 :]
        if op.name in DOTS:
            running.append(op)
            if heights[op] < urgent:
                beside.add(op)
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
        users = {_outer(use.owner.operation, block) for result in op.results for use in result.uses}
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


def paired(order: list[ir.Operation]) -> dict[ir.Operation, ir.Operation]:
    """The products that are printed together with the next one, of the same left factor, which is added to them."""
    found: dict[ir.Operation, ir.Operation] = {}
    dots = [op for op in order if op.name in DOTS]
    for op, after in pairwise(dots):
        same = after.name == "tile.dot_add" and after.operands[0] == op.results[0] and after.operands[-2] == op.operands[-2]
        alone = len(list(op.results[0].uses)) == 1 and flag(after, "transpose_a") == flag(op, "transpose_a")
        if same and alone and op not in found.values():
            found[op] = after
    return found


def scaled_early(loop: ir.Operation, order: list[ir.Operation]) -> list[ir.Operation]:
    """The products that scale a carried tile of which all other reads come before the first product: it can be scaled before that."""
    together = paired(order)
    first = next((number for number, op in enumerate(order) if op.name in DOTS and op not in together), len(order))
    changes = {op: readers - {op} for op, readers in _changes(loop).items() if op.name == "tile.dot_rescale"}
    return [op for op, readers in changes.items() if readers <= set(order[:first])]


def _changes(loop: ir.Operation) -> dict[ir.Operation, set[ir.Operation]]:
    """The first product that changes a carried tile, with all readers of the tile."""
    return {op: {_outer(use.owner.operation, body(loop)) for use in argument.uses} for argument, op in changed(loop).items()}


def _outer(op: ir.Operation, block: ir.Block) -> ir.Operation:
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


def _heights(loop: ir.Operation, ops: list[ir.Operation], needs: dict[ir.Operation, set[ir.Operation]]) -> dict[ir.Operation, int]:
    """How many products, one after another, wait for each op."""
    heights = dict.fromkeys(ops, 0)
    arguments = [argument for _, argument, _, _ in carried(loop)]
    heights.update({op: _STORED for op in ops if not list(op.results) and any(value in arguments for value in _read(op))})
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
