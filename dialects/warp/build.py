"""Builders for `warp` ops and types. All of them need an active location and insertion point."""

from collections.abc import Callable, Sequence

from attn_mlir.dialects.numbers import i64
from attn_mlir.dialects.warp.kinds import runs, settled, stages_and_arrivals
from attn_mlir.mlir import arith, ir


def fragment_type(instruction: str, form: str, shape: Sequence[int], element: ir.Type) -> ir.Type:
    """A tile, row values or parts in the registers of a matrix instruction."""
    encoding = ir.Attribute.parse(f'#warp.layout<"{instruction}", "{form}">')
    return ir.RankedTensorType.get(list(shape), element, encoding)


def shared_type(shape: Sequence[int], element: ir.Type, swizzle: int) -> ir.Type:
    """Shared memory."""
    return ir.MemRefType.get(list(shape), element, memory_space=ir.Attribute.parse(f"#warp.shared<{swizzle} : i64>"))


def op(name: str, operands: Sequence[ir.Value] = (), results: Sequence[ir.Type] = (), **attributes: int | bool | str) -> ir.Operation:
    """An op without regions; numbers become i64, flags bool."""
    boxed: dict[str, ir.Attribute] = {}
    for key, value in attributes.items():
        boxed[key] = (
            ir.BoolAttr.get(value) if isinstance(value, bool) else i64(value) if isinstance(value, int) else ir.StringAttr.get(value)
        )
    return ir.Operation.create(f"warp.{name}", results=list(results), operands=list(operands), attributes=boxed)


def _attribute(value: int | bool | str) -> ir.Attribute:
    if isinstance(value, bool):
        return ir.BoolAttr.get(value)
    return i64(value) if isinstance(value, int) else ir.StringAttr.get(value)


def index(value: int) -> ir.Value:
    """A constant."""
    return arith.ConstantOp(ir.IndexType.get(), value).result


def named(name: str) -> ir.Location:
    """The location at hand, with a name for the value that is made."""
    return ir.Location.name(name, ir.Location.current)


def loop(begin: ir.Value, end: ir.Value, step: ir.Value, starts: Sequence[ir.Value], names: Sequence[ir.Location]) -> ir.Operation:
    """`scf.for` whose block is empty; `names` are the locations of its index and of what it carries."""
    made = ir.Operation.create("scf.for", results=[v.type for v in starts], operands=[begin, end, step, *starts], regions=1)
    made.regions[0].blocks.append(ir.IndexType.get(), *[v.type for v in starts], arg_locs=list(names))
    return made


def barrier(stages: int, arrivals: int) -> ir.Value:
    """Mbarriers of a ring."""
    return op("mbarrier", results=[barrier_type(stages, arrivals)]).result


def barrier_type(stages: int, arrivals: int) -> ir.Type:
    """Theirs."""
    return ir.Type.parse(f"!warp.barrier<{stages} : i64, {arrivals} : i64>")


def add_arrivals(barriers: ir.Value, count: int) -> None:
    """Lets mbarriers wait for so many more who arrive."""
    stages, arrivals = stages_and_arrivals(barriers.type)
    barriers.set_type(barrier_type(stages, arrivals + count))


def stage(count: ir.Value, stages: int) -> tuple[ir.Value, ir.Value]:
    """The stage and the phase of a ring's use number `count`."""
    made = op("stage", [count], [ir.IndexType.get()] * 2, stages=stages)
    return made.results[0], made.results[1]


def elect() -> ir.Block:
    """A region for one thread."""
    return ir.Operation.create("warp.elect", regions=1).regions[0].blocks.append()


Body = Callable[..., Sequence[ir.Value]]


def map_(shape: Sequence[int], results: Sequence[ir.Type], reductions: Sequence[str], body: Body) -> list[ir.Value]:
    """`warp.map`: `body(i, j)` or `body(i)` gives an element of each result. Raises ValueError for results of too many types."""
    order = sorted(range(len(results)), key=lambda n: list(map(str, results)).index(str(results[n])))
    types = [results[n] for n in order]
    attributes = {
        "reductions": ir.ArrayAttr.get([ir.StringAttr.get(reductions[n]) for n in order]),
        "shape": ir.DenseI64ArrayAttr.get(list(shape)),
        "resultSegmentSizes": _segments(types),
    }
    made = ir.Operation.create("warp.map", results=types, attributes=attributes, regions=1)
    here = ir.Location.current
    names = ("i", "j")[: len(shape)]
    block = made.regions[0].blocks.append(*[ir.IndexType.get()] * len(shape), arg_locs=[ir.Location.name(n, here) for n in names])
    with ir.InsertionPoint(block):
        values = list(body(*block.arguments))
        yield_([values[n] for n in order])
    found = dict(zip(order, made.results, strict=True))
    return [found[n] for n in range(len(results))]


def each_warp(types: Sequence[ir.Type]) -> ir.Operation:
    """`warp.each_warp` whose block is empty. Raises ValueError for results of too many types."""
    made = ir.Operation.create("warp.each_warp", results=list(types), attributes={"resultSegmentSizes": _segments(types)}, regions=1)
    made.regions[0].blocks.append()
    return made


def yield_(values: Sequence[ir.Value]) -> None:
    """`warp.yield`."""
    ir.Operation.create("warp.yield", operands=list(values), attributes={"operandSegmentSizes": _segments([v.type for v in values])})


def _segments(types: Sequence[ir.Type]) -> ir.Attribute:
    lengths = runs(types)
    if len(lengths) > 3:
        raise ValueError(f"has values of more than three types: {', '.join(map(str, types))}")
    return ir.DenseI32ArrayAttr.get(lengths)


def mma_async(accumulator: ir.Value, a: ir.Value, b: ir.Value, keep: ir.Value, transpose: tuple[bool, bool]) -> ir.Value:
    """Starts a product; `!warp.pending` of its accumulator, which may be pending. `transpose`: whether a and b are stored the other way."""
    pending = ir.Type.parse(f"!warp.pending<{settled(accumulator.type)}>")
    return op("mma_async", [accumulator, a, b, keep], [pending], transpose_a=transpose[0], transpose_b=transpose[1]).result


def mma_wait(product: ir.Value, type_: ir.Type, pending: int) -> ir.Value:
    """The fragment that a product has made when all but the newest groups are done."""
    return op("mma_wait", [product], [type_], pending=pending).result
