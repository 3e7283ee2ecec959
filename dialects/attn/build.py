"""Builders for `attn` ops. All of them need an active location and, except `inline`, an insertion point."""

from collections.abc import Callable, Sequence

from attn_mlir.mlir import ir

Body = Callable[..., Sequence[ir.Value]]


def yield_(values: Sequence[ir.Value]) -> None:
    """Ends a piece with `values`."""
    ir.Operation.create("attn.yield", operands=list(values))


def reduce(value: ir.Value, kind: str) -> ir.Value:
    """`attn.reduce` of `value` by "sum", "max" or "min"."""
    attributes = {"kind": ir.StringAttr.get(kind)}
    return ir.Operation.create("attn.reduce", results=[value.type], operands=[value], attributes=attributes).result


def detach(value: ir.Value) -> ir.Value:
    """`attn.detach` of `value`."""
    return ir.Operation.create("attn.detach", results=[value.type], operands=[value]).result


def range_(source: ir.Value, begin: Sequence[ir.Value], end: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """`attn.range`: (min, max) of `source` over the half-open box [begin, end)."""
    index = ir.IndexType.get()
    op = ir.Operation.create("attn.range", results=[index, index], operands=[source, *begin, *end])
    return op.results[0], op.results[1]


def piece(name: str, arguments: Sequence[tuple[str, ir.Type]], body: Body) -> ir.Operation:
    """Builds the piece `attn.<name>`; `body` gets the block arguments and returns what to yield."""
    op = ir.Operation.create(f"attn.{name}", regions=1)
    here = ir.Location.current
    locations = [ir.Location.name(argument, here) for argument, _ in arguments]
    block = op.regions[0].blocks.append(*[type_ for _, type_ in arguments], arg_locs=locations)
    with ir.InsertionPoint(block):
        yield_(body(*block.arguments))
    return op


def attention(
    q: ir.Value, k: ir.Value, v: ir.Value, results: Sequence[ir.Type], outputs: Sequence[str], accumulators: int | None = None
) -> tuple[ir.Operation, ir.Block]:
    """Builds an empty `attn.attention`, or `attn.online` when `accumulators` is given, and the block for its pieces."""
    attributes: dict[str, ir.Attribute] = {"outputs": ir.ArrayAttr.get([ir.StringAttr.get(name) for name in outputs])}
    if accumulators is not None:
        attributes["accumulators"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), accumulators)
    name = "attn.attention" if accumulators is None else "attn.online"
    op = ir.Operation.create(name, results=list(results), operands=[q, k, v], attributes=attributes, regions=1)
    return op, op.regions[0].blocks.append()
