"""Rotation of a loop: the product that adds to what the loop carries runs one iteration later, beside the products that come before it."""

from collections.abc import Iterable
from dataclasses import dataclass

from attn_mlir.backends.nvidia.forming.dropped import before_dropout
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.dialects.numbers import i64
from attn_mlir.dialects.warp import build
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.regions import clone_op, find_all, maker, walk


@dataclass(frozen=True)
class AsyncProduct:
    """An asynchronous product and the ops that belong to it."""

    begin: ir.Operation
    op: ir.Operation
    commit: ir.Operation
    wait: ir.Operation


@dataclass(frozen=True)
class RotatedLoop:
    """A loop in two parts: `sooner`, with the product `first`; and `later`, with `last`, which adds to what is carried.

    `carried` are the numbers of what `later` alone carries, `crossing` the values of `sooner` that it uses.
    """

    loop: ir.Operation
    first: AsyncProduct
    last: AsyncProduct
    sooner: list[ir.Operation]
    later: list[ir.Operation]
    carried: set[int]
    crossing: list[ir.Value]


def is_remainder(loop: ir.Operation) -> bool:
    """Whether a loop goes from n / c * c to n by steps of c: it has an iteration or none."""
    begin, end, step = list(loop.operands)[:3]
    whole = maker(begin, "arith.muli")
    number = maker(whole.operands[0], "arith.divsi") if whole is not None and whole.operands[1] == step else None
    return number is not None and list(number.operands) == [end, step]


def parts_of(loop: ir.Operation) -> RotatedLoop:
    """Takes a loop apart. Raises Refused where it is not two products, of which the second one's sum is carried."""
    if is_remainder(loop):
        raise Refused("a loop of at most one iteration overlaps nothing")
    block = loop.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    products = [_product(op, ops) for op in ops if op.name == "warp.mma_async"]
    if len(products) != 2 or len(find_all(loop, "warp.mma_async")) != 2:
        raise Refused(f"a loop of one product that feeds another is rotated, not one of {len(find_all(loop, 'warp.mma_async'))}")
    if any(_pending(p.wait) for p in products):
        raise Refused("products are in flight together already")
    first, last = products
    sums, yielded = list(block.arguments)[1:], list(ops[-1].operands)
    number = next((n for n, value in enumerate(yielded) if value == last.wait.results[0]), None)
    count = _count_of(last.op.operands[2], sums)
    if number is None or count is None:
        raise Refused("the second product adds to nothing that the loop carries, or its second factor is in no ring")
    carried = {number, count}
    later = {last.begin, last.commit, *_reached(ops, [sums[n] for n in carried])}
    if last.op not in later or first.op in later:
        raise Refused("the first product needs what the second one adds to")
    made = {result for op in later for result in op.results}
    if any((value in made) != (n in carried) for n, value in enumerate(yielded)):
        raise Refused("something else that the loop carries depends on the sum")
    own = {*made, *(sums[n] for n in carried)}
    inside = {*block.arguments, *(result for op in ops for result in op.results)}
    later_ops = [op for op in ops if op in later]
    crossing = [v for v in dict.fromkeys(v for op in later_ops for v in _used(op)) if v in inside and v not in own]
    sooner = [op for op in ops[:-1] if op not in later]
    return RotatedLoop(loop, first, last, sooner, later_ops, carried, crossing)


def _product(op: ir.Operation, ops: list[ir.Operation]) -> AsyncProduct:
    """The ops of a product: those around it, and its wait. Raises Refused where it has others."""
    at = ops.index(op)
    begin = next((o for o in reversed(ops[:at]) if o.name in ("warp.mma_begin", "warp.mma_async")), None)
    commit = next((o for o in ops[at + 1 :] if o.name in ("warp.mma_commit", "warp.mma_async")), None)
    waits = [use.owner.operation for use in op.results[0].uses]
    if begin is None or commit is None or begin.name != "warp.mma_begin" or commit.name != "warp.mma_commit":
        raise Refused("several products are a group")
    if len(waits) != 1 or waits[0].name != "warp.mma_wait" or waits[0] not in ops:
        raise Refused("a product is waited for elsewhere")
    return AsyncProduct(begin, op, commit, waits[0])


def _pending(wait: ir.Operation) -> int:
    return ir.IntegerAttr(wait.attributes["pending"]).value


def _count_of(tile: ir.Value, carried: list[ir.Value]) -> int | None:
    """Which carried value numbers the uses of the ring that a tile is in."""
    view = maker(tile, "warp.view")
    stage = maker(view.operands[1], "warp.stage") if view is not None else None
    return carried.index(stage.operands[0]) if stage is not None and stage.operands[0] in carried else None


def _used(op: ir.Operation) -> list[ir.Value]:
    return [value for inner in (op, *walk(op)) for value in inner.operands]


def _reached(ops: list[ir.Operation], start: Iterable[ir.Value]) -> list[ir.Operation]:
    """The ops of a block, but its last, that depend on values."""
    known, found = set(start), []
    for op in ops[:-1]:
        if any(value in known for value in _used(op)):
            found.append(op)
            known |= set(op.results)
    return found


def rotate(parts: RotatedLoop) -> None:
    """Peels the first `sooner`, runs each further one beside the `later` of the iteration before, and the last `later` behind the loop."""
    loop = parts.loop
    begin, end, step, *starts = loop.operands
    with loop.location, ir.InsertionPoint(loop):
        some = arith.CmpIOp(arith.CmpIPredicate.slt, begin, end).result
        types = [result.type for result in loop.results]
        branch = ir.Operation.create("scf.if", results=types, operands=[some], regions=2)
        with ir.InsertionPoint(branch.regions[0].blocks.append()):
            ir.Operation.create("scf.yield", operands=_peeled(parts, begin, end, step, starts))
        with ir.InsertionPoint(branch.regions[1].blocks.append()):
            ir.Operation.create("scf.yield", operands=starts)
    for old, new in zip(loop.results, branch.results, strict=True):
        old.replace_all_uses_with(new)
    loop.erase()


def _peeled(parts: RotatedLoop, begin: ir.Value, end: ir.Value, step: ir.Value, starts: list[ir.Value]) -> list[ir.Value]:
    """The results of a loop that has iterations."""
    index, *arguments = parts.loop.regions[0].blocks[0].arguments
    yielded = list(parts.loop.regions[0].blocks[0].operations[-1].operation.operands)
    known = dict(zip([index, *arguments], [begin, *starts], strict=True))
    for op in parts.sooner:
        clone_op(op, known)
    states = [starts[n] if n in parts.carried else known.get(v, v) for n, v in enumerate(yielded)]
    names = [index.location, *(a.location for a in arguments), *(_location(v) for v in parts.crossing)]
    second = arith.AddIOp(begin, step).result
    made = build.loop(second, end, step, [*states, *(known.get(v, v) for v in parts.crossing)], names)
    body = made.regions[0].blocks[0]
    with ir.InsertionPoint(body):
        ir.Operation.create("scf.yield", operands=_iteration(parts, yielded, list(body.arguments)))
    results = list(made.results)
    after = {**dict(zip(arguments, results, strict=False)), **dict(zip(parts.crossing, results[len(arguments) :], strict=True))}
    for op in parts.later:
        clone_op(op, after)
    return [after.get(v, v) if n in parts.carried else results[n] for n, v in enumerate(yielded)]


def _iteration(parts: RotatedLoop, yielded: list[ir.Value], arguments: list[ir.Value]) -> list[ir.Value]:
    """What the rotated loop hands on.

    The first product is started, then the last one of the iteration before; the first is waited for. What makes the last one's factor in
    registers waits for the one in flight before: where registers that a product reads are written meanwhile, ptxas serialises all (C7513).
    """
    index, *carried = parts.loop.regions[0].blocks[0].arguments
    now = dict(zip([index, *carried], arguments, strict=False))
    before = {**now, **dict(zip(parts.crossing, arguments[1 + len(carried) :], strict=True))}
    waits = parts.later.index(parts.last.wait)
    late = parts.later[waits:]
    for op in parts.sooner:
        if before_dropout(parts.last.op.operands[1]) in list(op.results):
            late = _cloned(late, before)
        made = clone_op(op, now)
        if op == parts.first.commit:
            _cloned(parts.later[:waits], before)
        if op == parts.first.wait:
            made.attributes["pending"] = i64(1)
    _cloned(late, before)
    states = [before.get(v, v) if n in parts.carried else now.get(v, v) for n, v in enumerate(yielded)]
    return [*states, *(now.get(v, v) for v in parts.crossing)]


def _cloned(ops: list[ir.Operation], known: dict[ir.Value, ir.Value]) -> list[ir.Operation]:
    """Clones ops; none are left."""
    for op in ops:
        clone_op(op, known)
    return []


def _location(value: ir.Value) -> ir.Location:
    if isinstance(value.owner, ir.Block):
        return ir.BlockArgument(value).location
    return value.owner.operation.location
