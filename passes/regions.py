"""Finding ops and pieces, and copying region bodies; shared by the passes."""

from collections.abc import Iterable, Mapping, Sequence

from attn_mlir.dialects.regions import around, maker, walk
from attn_mlir.mlir import ir, rewrite


def find_all(root: ir.Operation | ir.OpView, *names: str) -> list[ir.Operation]:
    """All operations inside `root` with one of the given names, outermost first.

    MLIR looks for them, in a fiftieth of the time of a walk in Python.
    """
    found: list[ir.Operation] = []

    def no_match(view: ir.OpView, _: rewrite.PatternRewriter) -> bool:
        op, place = view.operation, len(found)
        if len(op.regions):  # the driver comes to an op after what is inside
            while place and op in around(found[place - 1]):
                place -= 1
        found.insert(place, op)
        return True

    patterns = rewrite.RewritePatternSet(root.operation.context)
    for name in names:
        patterns.add(name, no_match)
    rewrite.walk_and_apply_patterns(root.operation, patterns.freeze())
    return found


def makers_in(block: ir.Block, values: Iterable[ir.Value]) -> list[ir.Operation]:
    """The ops of a block that values are made of, in their order."""
    found, todo = set[ir.Operation](), list(values)
    while todo:
        made = maker(todo.pop())
        if made is not None and made.block == block and made not in found:
            found.add(made)
            todo += made.operands
    return [view.operation for view in block.operations if view.operation in found]


def types_in(root: ir.Operation) -> set[ir.Type]:
    """The types of all values inside `root`."""
    found: set[ir.Type] = set()

    def note(op: ir.Operation) -> ir.WalkResult:
        found.update(op.results.types)
        if len(op.regions):
            found.update([argument.type for region in op.regions for block in region.blocks for argument in block.arguments])
        return ir.WalkResult.ADVANCE

    root.walk(note)
    return found


def is_constant(value: ir.Value) -> bool:
    """Whether an `arith.constant` makes it."""
    return maker(value, "arith.constant") is not None


def pieces(attention: ir.Operation, name: str) -> list[ir.Operation]:
    """The pieces of an `attn.attention` or `attn.online` called `name`, e.g. "attn.step", in order."""
    return [op.operation for op in attention.regions[0].blocks[0].operations if op.operation.name == name]


def piece(attention: ir.Operation, name: str) -> ir.Operation | None:
    """The only piece called `name`, or None."""
    found = pieces(attention, name)
    return found[0] if found else None


def block_of(piece_: ir.Operation) -> ir.Block:
    """The block of a piece (or of any op with one region of one block)."""
    return piece_.regions[0].blocks[0]


def returned_by(function: ir.Operation) -> list[ir.Value]:
    """What a function of one block returns."""
    return list(function.regions[0].blocks[0].operations[-1].operation.operands)


def end_with(block: ir.Block, name: str, values: Sequence[ir.Value]) -> None:
    """Lets a block end with a terminator of this name, of these values."""
    last = block.operations[-1].operation
    with last.location, ir.InsertionPoint(last):
        ir.Operation.create(name, operands=list(values))
    last.erase()


def erase_unused(block: ir.Block, *kept: str) -> None:
    """Erases the ops of a block, the last one first, whose results nothing uses, but those with `kept` names."""
    for op in reversed([view.operation for view in block.operations]):
        if len(op.results) and op.name not in kept and not any(True for result in op.results for _ in result.uses):
            op.erase()


def alike(a: ir.Block, b: ir.Block) -> bool:
    """Whether two blocks of ops without regions compute the same from their arguments and from values outside."""
    known = dict(zip(a.arguments, b.arguments, strict=False))
    if [x.type for x in a.arguments] != [x.type for x in b.arguments] or len(list(a.operations)) != len(list(b.operations)):
        return False
    for x, y in zip([view.operation for view in a.operations], [view.operation for view in b.operations], strict=True):
        kinds = [(op.name, [r.type for r in op.results], {name: op.attributes[name] for name in op.attributes}) for op in (x, y)]
        if kinds[0] != kinds[1] or len(x.regions) or len(y.regions):
            return False
        if [known.get(value, value) for value in x.operands] != list(y.operands):
            return False
        known.update(zip(x.results, y.results, strict=True))
    return True


def scores_in(block: ir.Block) -> int:
    """How many numbers come before b, h and q_idx in a piece's arguments: the scores of an `attn.row` or `attn.step`."""
    arguments = list(block.arguments)
    return next((i for i, argument in enumerate(arguments) if isinstance(argument.type, ir.IndexType)), len(arguments))


def clone_op(op: ir.Operation, mapping: dict[ir.Value, ir.Value]) -> ir.Operation:
    """Clones `op` at the current insertion point, its operands (also in nested regions) taken through `mapping`."""
    clone = op.clone()
    for i, operand in enumerate(op.operands):
        if operand in mapping:
            clone.operands[i] = mapping[operand]
    for source, target in zip(walk(op), walk(clone), strict=True):
        for i, operand in enumerate(source.operands):
            if operand in mapping:
                target.operands[i] = mapping[operand]
    mapping.update(zip(op.results, clone.results, strict=True))
    return clone


def clone_as(name: str, mod: ir.Operation, mapping: Mapping[ir.Value, ir.Value]) -> ir.Operation:
    """Copies a piece to the current insertion point as one of another name, values from outside taken through `mapping`."""
    body = block_of(mod)
    made = ir.Operation.create(name, regions=1, loc=mod.location)
    inner = made.regions[0].blocks.append(*[a.type for a in body.arguments], arg_locs=[a.location for a in body.arguments])
    with ir.InsertionPoint(inner):
        known = {**mapping, **dict(zip(body.arguments, inner.arguments, strict=True))}
        for each in body.operations:
            clone_op(each.operation, known)
    return made


def inline(block: ir.Block, arguments: Sequence[ir.Value], mapping: dict[ir.Value, ir.Value] | None = None) -> list[ir.Value]:
    """Copies the ops of `block` to the current insertion point with its arguments replaced by `arguments`.

    Values from outside the block stay as they are (unless `mapping` has them). Returns the terminator's operands.
    """
    mapping = {} if mapping is None else mapping
    mapping.update(zip(block.arguments, arguments, strict=True))
    operations = list(block.operations)
    for op in operations[:-1]:
        clone_op(op.operation, mapping)
    return [mapping.get(value, value) for value in operations[-1].operation.operands]
