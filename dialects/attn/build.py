"""Builders for `attn` ops. All of them need an active location and, except `inline`, an insertion point."""

from collections.abc import Callable, Sequence

from attn_mlir.dialects.attn.linear_gradients import OUTPUTS as LINEAR_OUTPUTS
from attn_mlir.dialects.attn.partners import Partner
from attn_mlir.dialects.numbers import i64
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


def slope(value: ir.Value, factor: ir.Value) -> ir.Value:
    """`attn.slope`: 0 with the derivative `factor` by `value`."""
    return ir.Operation.create("attn.slope", results=[value.type], operands=[value, factor]).result


def range_(source: ir.Value, begin: Sequence[ir.Value], end: Sequence[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """`attn.range`: (min, max) of `source` over the half-open box [begin, end)."""
    index = ir.IndexType.get()
    op = ir.Operation.create("attn.range", results=[index, index], operands=[source, *begin, *end])
    return op.results[0], op.results[1]


def piece(name: str, arguments: Sequence[tuple[str, ir.Type]], body: Body, partner: Partner | None = None) -> ir.Operation:
    """Builds the piece `attn.<name>`; `body` gets the block arguments and returns what to yield. `partner`: see `attn.query`."""
    attributes: dict[str, ir.Attribute] = {}
    if partner is not None:
        attributes = {"partner": ir.StringAttr.get(partner.kind), "channels": i64(partner.channels)}
    op = ir.Operation.create(f"attn.{name}", attributes=attributes, regions=1)
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
        attributes["accumulators"] = i64(accumulators)
    name = "attn.attention" if accumulators is None else "attn.online"
    op = ir.Operation.create(name, results=list(results), operands=[q, k, v], attributes=attributes, regions=1)
    return op, op.regions[0].blocks.append()


def linear_attention(
    operands: Sequence[ir.Value | None],
    results: Sequence[ir.Type],
    outputs: Sequence[str] = (),
    heads: int = 2,
    direction: str = "forward",
    channels: str = "none",
    state: str = "kv",
    *,
    interval: int | None = None,
) -> tuple[ir.Operation, ir.Block]:
    """Builds an empty `attn.linear_attention`, and the block for its pieces.

    `operands` are q, k, v, decay, initial_state, factor and offsets; None where there is none, and those at the end may be left out.
    """
    every = [*operands, *[None] * (7 - len(operands))]
    attributes: dict[str, ir.Attribute] = {
        "heads": i64(heads),
        "direction": ir.StringAttr.get(direction),
        "channels": ir.StringAttr.get(channels),
        "state": ir.StringAttr.get(state),
        "outputs": ir.ArrayAttr.get([ir.StringAttr.get(name) for name in outputs]),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([int(value is not None) for value in every]),
        "resultSegmentSizes": ir.DenseI32ArrayAttr.get([1, *(int(name in outputs) for name in LINEAR_OUTPUTS)]),
    }
    if interval is not None:
        attributes["interval"] = i64(interval)
    given = [value for value in every if value is not None]
    op = ir.Operation.create("attn.linear_attention", results=list(results), operands=given, attributes=attributes, regions=1)
    return op, op.regions[0].blocks.append()


def erase(key: ir.Value, body: Body, score: ir.Type, removed: ir.Value | None = None, reads: str = "decayed") -> ir.Operation:
    """`attn.erase`; `body` gets (x, b, h, t, d) and returns what to yield."""
    op = ir.Operation.create(
        "attn.erase", operands=[key] if removed is None else [key, removed], attributes={"reads": ir.StringAttr.get(reads)}, regions=1
    )
    here, index = ir.Location.current, ir.IndexType.get()
    names = [("x", score), *((name, index) for name in ("b", "h", "t", "d"))]
    block = op.regions[0].blocks.append(*[type_ for _, type_ in names], arg_locs=[ir.Location.name(name, here) for name, _ in names])
    with ir.InsertionPoint(block):
        yield_(body(*block.arguments))
    return op


def of_rows(name: str, body: Body, score: ir.Type) -> None:
    """`attn.<name>`, a mod of rows of linear attention; `body` gets (x, b, h, t, d) and returns what to yield."""
    index = ir.IndexType.get()
    piece(name, [("x", score), *((each, index) for each in ("b", "h", "t", "d"))], body)


def write(key: ir.Value, value: ir.Value) -> None:
    """`attn.write`: a second writer of a linear attention's state."""
    ir.Operation.create("attn.write", operands=[key, value])


def product(query: ir.Value, key: ir.Value) -> None:
    """`attn.product`: one more product of a query and a key tensor."""
    ir.Operation.create("attn.product", operands=[query, key])


def sequences(begins: ir.Value, lengths: ir.Value, of: str) -> None:
    """`attn.sequences` of the side "query" or "key"."""
    ir.Operation.create("attn.sequences", operands=[begins, lengths], attributes={"of": ir.StringAttr.get(of)})


def pages(table: ir.Value) -> None:
    """`attn.pages`: keys in pages, which `table` finds."""
    ir.Operation.create("attn.pages", operands=[table])


def part_list() -> None:
    """`attn.part_list`: parts of the keys of packed sequences, from a list."""
    ir.Operation.create("attn.part_list")


def parts(count: ir.Value, length: ir.Value) -> None:
    """`attn.parts`: keys in so many parts of so many keys."""
    ir.Operation.create("attn.parts", operands=[count, length])


def term(value: ir.Value, output: int) -> None:
    """`attn.term`: a further tensor that an attention sums into its output number `output`."""
    ir.Operation.create("attn.term", operands=[value], attributes={"output": i64(output)})


def output(o: ir.Value, index: int, type_: ir.Type) -> ir.Value:
    """`attn.output` number `index` of the attention that makes `o`."""
    return ir.Operation.create("attn.output", results=[type_], operands=[o], attributes={"index": i64(index)}).result


def residual(o: ir.Value, index: int = 0) -> ir.Value:
    """`attn.residual` of the result `o` of an attention, or of its output number `index`."""
    attributes = {"index": i64(index)} if index else {}
    return ir.Operation.create("attn.residual", results=[o.type], operands=[o], attributes=attributes).result


def pairs() -> tuple[ir.Operation, ir.Block]:
    """Builds an empty `attn.pairs`, and the block for its pieces."""
    op = ir.Operation.create("attn.pairs", results=[ir.Type.parse("none")], regions=1)
    return op, op.regions[0].blocks.append()


def key_lists(lists: Sequence[ir.Value], block: Sequence[int]) -> None:
    """`attn.key_lists` of the tensors in the order of the op."""
    ir.Operation.create("attn.key_lists", operands=list(lists), attributes={"block": ir.DenseI64ArrayAttr.get(list(block))})


def elements(like: ir.Value, body: Body, packed: Callable[[], None] | None = None) -> ir.Value:
    """`attn.elements` over `like`; `body` gets the indices of an element and returns its weights.

    `packed` adds the `attn.sequences` of a packed tensor, if there are any.
    """
    rank = ir.RankedTensorType(like.type).rank
    op = ir.Operation.create("attn.elements", results=[ir.Type.parse("none")], operands=[like], regions=1)
    with ir.InsertionPoint(op.regions[0].blocks.append()):
        if packed is not None:
            packed()
        piece("element", [(name, ir.IndexType.get()) for name in ("b", "h", "i", "d")[:rank]], body)
    return op.result


def query_sum(of: ir.Value, terms: Sequence[ir.Value], weights: Sequence[int], type_: ir.Type) -> ir.Value:
    """`attn.query_sum` of key tensors."""
    attributes = {"weights": ir.DenseI64ArrayAttr.get(list(weights))}
    return ir.Operation.create("attn.query_sum", results=[type_], operands=[of, *terms], attributes=attributes).result


def key_sum(of: ir.Value, terms: Sequence[ir.Value], weights: Sequence[int], type_: ir.Type) -> ir.Value:
    """`attn.key_sum` of query tensors."""
    attributes = {"weights": ir.DenseI64ArrayAttr.get(list(weights))}
    return ir.Operation.create("attn.key_sum", results=[type_], operands=[of, *terms], attributes=attributes).result


def scatter(of: ir.Value, like: ir.Value, weight: int, type_: ir.Type, names: Sequence[str], index: Body) -> ir.Value:
    """`attn.scatter`; `index` gets the positions called `names` and returns where in `like` the weight belongs."""
    op = ir.Operation.create("attn.scatter", results=[type_], operands=[of, like], attributes={"weight": i64(weight)}, regions=1)
    here = ir.Location.current
    locations = [ir.Location.name(name, here) for name in names]
    block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(names), arg_locs=locations)
    with ir.InsertionPoint(block):
        yield_(index(*block.arguments))
    return op.result


def collect(of: ir.Value, weight: int, type_: ir.Type) -> ir.Value:
    """`attn.collect`: one weight of every element as a tensor."""
    return ir.Operation.create("attn.collect", results=[type_], operands=[of], attributes={"weight": i64(weight)}).result


def row_dot(a: ir.Value, b: ir.Value, type_: ir.Type, residual: ir.Value | None = None) -> ir.Value:
    """`attn.row_dot`: the sum over d of a b; `residual` is that of b."""
    return ir.Operation.create("attn.row_dot", results=[type_], operands=[a, b, *[residual] * (residual is not None)]).result


def head_sum(x: ir.Value, like: ir.Value) -> ir.Value:
    """`attn.head_sum`: the sums over groups of x's heads, as many as `like` has."""
    return ir.Operation.create("attn.head_sum", results=[x.type], operands=[x, like]).result


def decay_gradient(scans: Sequence[ir.Value], offsets: ir.Value | None, interval: int, rows: int, crossing: bool = False) -> ir.Value:
    """`attn.decay_gradient` from the products a and b and the states s and e of the two scans."""
    a, operands = scans[0], [*scans] if offsets is None else [*scans, offsets]
    attributes: dict[str, ir.Attribute] = {"interval": i64(interval), "rows": i64(rows)}
    if crossing:
        attributes["crossing"] = ir.UnitAttr.get()
    return ir.Operation.create("attn.decay_gradient", results=[a.type], operands=operands, attributes=attributes).result


def decay_gradient_sum(scans: Sequence[ir.Value], interval: int, rows: int) -> ir.Value:
    """`attn.decay_gradient_sum` from the products a, a_2, b and b_2 and the states s, e and e_2."""
    attributes = {"interval": i64(interval), "rows": i64(rows)}
    return ir.Operation.create("attn.decay_gradient_sum", results=[scans[0].type], operands=[*scans], attributes=attributes).result


def decay_sum(like: ir.Value, decay: ir.Value | None, segment: int, type_: ir.Type) -> tuple[ir.Operation, ir.Block]:
    """Builds an `attn.decay_sum`, and the block for its piece."""
    operands = [like] if decay is None else [like, decay]
    op = ir.Operation.create("attn.decay_sum", results=[type_], operands=operands, attributes={"segment": i64(segment)}, regions=1)
    return op, op.regions[0].blocks.append()


def transition_scan(
    operands: Sequence[ir.Value | None], transitions: Sequence[ir.Value], segment: int, rows: int, direction: str, final: ir.Type
) -> tuple[ir.Value, ir.Value]:
    """`attn.transition_scan`: the states before all segments, and the final state, of type `final`.

    `operands` are states, like and initial, None where there is no initial state; `transitions` the columns of the segments' matrices.
    """
    given = [value for value in operands if value is not None]
    sizes = [*(int(value is not None) for value in operands), len(transitions)]
    attributes: dict[str, ir.Attribute] = {
        "segment": i64(segment),
        "rows": i64(rows),
        "direction": ir.StringAttr.get(direction),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get(sizes),
    }
    every = [*given, *transitions]
    op = ir.Operation.create("attn.transition_scan", results=[given[0].type, final], operands=every, attributes=attributes)
    return op.results[0], op.results[1]


def state_scan(operands: Sequence[ir.Value | None], segment: int, rows: int, direction: str, final: ir.Type) -> tuple[ir.Value, ir.Value]:
    """`attn.state_scan`: the states before all segments, and the final state, of type `final`.

    `operands` are states, like, totals and initial; None where there are no totals, or no initial state.
    """
    given = [value for value in operands if value is not None]
    attributes: dict[str, ir.Attribute] = {
        "segment": i64(segment),
        "rows": i64(rows),
        "direction": ir.StringAttr.get(direction),
        "operandSegmentSizes": ir.DenseI32ArrayAttr.get([int(value is not None) for value in operands]),
    }
    op = ir.Operation.create("attn.state_scan", results=[given[0].type, final], operands=given, attributes=attributes)
    return op.results[0], op.results[1]
