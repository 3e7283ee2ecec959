"""What a sweep gives for its positions: recognises how rows of o are made of the state and of the chunk's own pairs."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import body, constant, maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.sweep_forms import Input, input_of, is_copy, is_rest, made, need, rank, sources
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import arith, ir


@dataclass(kw_only=True)
class Rows:
    """Rows of o: `leave` scales what the state gives to them (a map of rank 1), `weights` makes P of `scores`, `store` puts them in memory.

    `rest` makes what rounding leaves out of P (None: it is lost). `products` stores their sums with `factor`, without pairs of a position
    with itself, which are added behind: `own` is their factor of v. `keys` and `values` are the tiles that they are made of, `from_state`
    the products with the state: the first one, the last one that adds to it, and which factor is the state. `ops` is all that belongs to
    them alone.
    """

    q: Input
    factor: Input | None
    scores: ir.Value
    weights: ir.Operation
    leave: ir.Operation
    store: ir.Operation
    products: ir.Operation | None
    own: ir.Value | None
    keys: ir.Value
    values: ir.Value
    transposed: bool
    from_state: tuple[ir.Operation, ir.Operation, int]
    rest: ir.Operation | None
    ops: list[ir.Operation] = field(default_factory=list)

    @property
    def pairs(self) -> list[ir.Operation]:
        """The maps over pairs of positions."""
        return [self.weights, *([] if self.own is None else [self.own.owner.operation.block.owner.operation])]


def read_rows(inner: list[ir.Operation], state: ir.Value, following: ir.Value) -> Rows | None:
    """The rows that the ops of a loop make; None where it only makes the `following` state of each `state`."""
    stores = [op for op in inner if op.name == "tile.store"]
    outputs = [op for op in stores if rank(op.operands[0]) == 2 and op.operands[0] not in (state, following)]
    if not outputs:
        return None
    need(len(outputs) == 1)
    added = made(outputs[0].operands[0], "tile.dot_rescale", "tile.dot_add", "tile.map")
    own = _OwnPairs(added) if added.name == "tile.map" else None
    last = made(own.others, "tile.dot_rescale", "tile.dot_add") if own is not None else added
    sums = last if last.name == "tile.dot_rescale" else made(last.operands[0], "tile.dot_rescale")
    (rest,) = rests((sums, last, 0)) or (None,)
    whole = made(sums.operands[0], "tile.dot", "tile.dot_add")
    first = whole if whole.name == "tile.dot" else made(whole.operands[0], "tile.dot")
    held, leave, weights = made(first.operands[1], "tile.map"), made(sums.operands[1], "tile.map"), made(sums.operands[2], "tile.map")
    need(is_copy(held, state) and not flag(sums, "transpose_a") and not flag(sums, "transpose_b"))
    need(len(sources(weights, 2)) == 1)
    (scores,) = sources(weights, 2)
    product = made(scores, "tile.dot")
    need(flag(product, "transpose_b") and product.operands[0] == first.operands[0])
    factor, products = _products(stores, last.results[0])
    need((own is None) == (products is None) and (own is None or (own.scores, own.values) == (scores, sums.operands[3])))
    ops = [whole, sums, first, held, weights, product, leave, outputs[0], *([] if own is None else own.ops)]
    ops += [last, *(op for op in (maker(product.operands[0]), products, rest) if op is not None)]
    ops += [] if products is None else [made(products.operands[0], "tile.map")]
    return Rows(
        q=input_of(product.operands[0]), factor=factor, scores=scores, weights=weights, leave=leave, store=outputs[0], products=products,
        own=None if own is None else own.score,
        keys=product.operands[1], values=sums.operands[3], transposed=flag(first, "transpose_b"), from_state=(first, whole, 1),
        rest=rest,
        ops=ops,
    )  # fmt: skip


class _OwnPairs:
    """A map that adds what every position gives to its own row: the diagonal of `scores`, for every row its sum, times rows of `values`."""

    def __init__(self, op: ir.Operation) -> None:
        i, d = body(op).arguments
        (value,) = yielded(body(op))
        other, own = made(value, "arith.addf").operands
        factor, column = made(own, "arith.mulf").operands
        whole, row = made(other, "tensor.extract"), made(factor, "tensor.extract")
        element = made(made(column, "arith.extf").operands[0], "tensor.extract")
        need(list(whole.operands)[1:] == [i, d] and list(element.operands)[1:] == [i, d] and list(row.operands)[1:] == [i])
        diagonal = made(row.operands[0], "tile.map")
        self.others, self.values, self.ops = whole.operands[0], element.operands[0], [op, diagonal]
        at, (chosen,) = body(diagonal).arguments, yielded(body(diagonal))
        same, score, nothing = made(chosen, "arith.select").operands
        compared, reads = made(same, "arith.cmpi"), [inner for inner in operations(body(diagonal)) if inner.name == "tensor.extract"]
        reads = [read for read in reads if rank(read.operands[0]) == 2]
        equal = ir.IntegerAttr(compared.attributes["predicate"]).value == arith.CmpIPredicate.eq
        need(equal and len(reads) == 1 and [*compared.operands] == [*at] == list(reads[0].operands)[1:] and constant(nothing) == 0.0)
        need([ir.StringAttr(each).value for each in ir.ArrayAttr(diagonal.attributes["reductions"])] == ["sum"])
        self.scores, self.score = reads[0].operands[0], score


def _products(stores: list[ir.Operation], o: ir.Value) -> tuple[Input | None, ir.Operation | None]:
    """The sums over columns of o times a factor: the factor's tile and the store."""
    rows = [op for op in stores if rank(op.operands[0]) == 1]
    need(len(rows) <= 1)
    if not rows:
        return None, None
    op = made(rows[0].operands[0], "tile.map")
    values, kinds = yielded(body(op)), [ir.StringAttr(each).value for each in ir.ArrayAttr(op.attributes["reductions"])]
    need(kinds == ["sum"] and len(values) == 1)
    sides = []
    for operand in made(values[0], "arith.mulf").operands:
        side = made(operand, "arith.extf", "tensor.extract")
        side = side if side.name == "tensor.extract" else made(side.operands[0], "tensor.extract")
        need(list(side.operands)[1:] == list(body(op).arguments))
        sides.append(side.operands[0])
    others = [side for side in sides if side != o]
    need(len(others) == 1)
    return input_of(others[0]), rows[0]


def rests(*products: tuple[ir.Operation, ir.Operation, int]) -> list[ir.Operation]:
    """Maps that make what rounding leaves out, where products add that: of a product, the one that adds to it, and which factor.

    None of the products may do so, or all.
    """
    found: list[ir.Operation] = []
    for rounded, added, which in products:
        if added == rounded:
            continue
        factors, others = list(rounded.operands)[-2:], list(added.operands)[-2:]
        hi, lo = made(factors[which], "tile.map"), made(others[which], "tile.map")
        need(factors[1 - which] == others[1 - which] and is_rest(lo, hi))
        need(all(flag(rounded, name) == flag(added, name) for name in ("transpose_a", "transpose_b")))
        found.append(lo)
    need(len(found) in (0, len(products)))
    return found


def scales_rows(value: ir.Value) -> bool:
    """Whether a tile's rows are scaled by elements of another map's tile, as rows of v are that enter a state."""
    op = maker(value)
    makers = [] if op is None or op.name != "tile.map" else [maker(source) for source in sources(op, 1)]
    return any(each is not None and each.name == "tile.map" for each in makers)
