"""What a scan gives for its positions: recognises how rows of o are made of the state and of the chunk's own pairs."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.structure import body, constant, maker, widened, yielded
from attn_mlir.backends.nvidia.hopper.scan_patterns import (
    InputTile,
    factor_of,
    input_of,
    is_copy,
    is_rest,
    made,
    need,
    rank,
    reads_of,
    sources,
    tile_at,
)
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import arith, ir


@dataclass(kw_only=True)
class OutputRows:
    """Rows of o: `output_decay` scales what the state gives to them (a map of rank 1), `weights` makes P of `scores`, `store` puts them in
    memory.

    `skip` (a map of rank 1, or None) is added to the diagonal of P; `weight` is an element of P without it, before it is rounded.
    `residual` makes the residual of P (None: it is lost). `products` stores their sums with `factor`, without pairs of a position
    with itself, which are added after: `diagonal` is their factor of v (None: o is without them, too); `diagonal_sums` stores their sums
    with `factor` (None: they are of no use). After all that, `result` (a map of rank 1, or None) scales rows. `keys` and `values` are the
    tiles that they are made of, `from_state` the products with the state: the first one, the last one that adds to it, and which factor is
    the state. `ops` is all that belongs to them alone.
    """

    q: InputTile
    factor: InputTile | None
    scores: ir.Value
    weights: ir.Operation
    weight: ir.Value
    skip: ir.Operation | None
    output_decay: ir.Operation
    store: ir.Operation
    products: ir.Operation | None
    diagonal: ir.Value | None
    diagonal_sums: ir.Operation | None
    result: ir.Operation | None
    keys: ir.Value
    values: ir.Value
    transposed: bool
    from_state: tuple[ir.Operation, ir.Operation, int]
    residual: ir.Operation | None
    ops: list[ir.Operation] = field(default_factory=list)

    @property
    def pairs(self) -> list[ir.Operation]:
        """The maps over pairs of positions."""
        return [self.weights, *([] if self.diagonal is None else [self.diagonal.owner.operation.block.owner.operation])]


def read_rows(inner: list[ir.Operation], state: ir.Value, following: ir.Value) -> OutputRows | None:
    """The rows that the ops of a loop make; None where it only makes the `following` state of each `state`."""
    stores = [op for op in inner if op.name == "tile.store"]
    outputs = [op for op in stores if rank(op.operands[0]) == 2 and op.operands[0] not in (state, following)]
    if not outputs:
        return None
    need(len(outputs) == 1)
    added = made(outputs[0].operands[0], "tile.dot_rescale", "tile.dot_add", "tile.map")
    diagonal = _DiagonalPairs(added) if added.name == "tile.map" else None
    last = made(diagonal.others, "tile.dot_rescale", "tile.dot_add") if diagonal is not None else added
    sums = last if last.name == "tile.dot_rescale" else made(last.operands[0], "tile.dot_rescale")
    (residual,) = residuals((sums, last, 0)) or (None,)
    whole = made(sums.operands[0], "tile.dot", "tile.dot_add")
    first = whole if whole.name == "tile.dot" else made(whole.operands[0], "tile.dot")
    held, output_decay, weights = (made(value, "tile.map") for value in (first.operands[1], sums.operands[1], sums.operands[2]))
    need(is_copy(held, state) and not flag(sums, "transpose_a") and not flag(sums, "transpose_b"))
    need(len(sources(weights, 2)) == 1)
    (scores,), (weight, skip) = sources(weights, 2), _weight(weights)
    product = made(scores, "tile.dot")
    need(flag(product, "transpose_b") and product.operands[0] == first.operands[0])
    factor, products, diagonal_sums = _sums(stores, last.results[0], diagonal)
    need(
        (products is not None or diagonal is None)
        and (diagonal is None or (diagonal.scores, diagonal.values) == (scores, sums.operands[3]))
    )
    ops = [whole, sums, first, held, weights, product, output_decay, outputs[0], *([] if diagonal is None else diagonal.ops)]
    ops += [last, *(op for op in (maker(product.operands[0]), products, diagonal_sums, residual, skip) if op is not None)]
    ops += [made(op.operands[0], "tile.map") for op in (products, diagonal_sums) if op is not None]
    return OutputRows(
        q=input_of(product.operands[0]), factor=None if factor is None else input_of(factor), scores=scores,
        weights=weights, weight=weight, skip=skip, output_decay=output_decay, store=outputs[0], products=products,
        diagonal=None if diagonal is None else diagonal.score, diagonal_sums=diagonal_sums,
        result=None if diagonal is None else diagonal.result,
        keys=product.operands[1], values=sums.operands[3], transposed=flag(first, "transpose_b"), from_state=(first, whole, 1),
        residual=residual, ops=ops,
    )  # fmt: skip


def _weight(op: ir.Operation) -> tuple[ir.Value, ir.Operation | None]:
    """An element of P before it is rounded, without what is added to the diagonal: i == j ? P + skip[i] : P."""
    at, whole = list(body(op).arguments), widened(yielded(body(op))[0])
    same, added, otherwise = made(whole, "arith.select").operands
    condition = made(same, "arith.cmpi", "arith.andi")
    if condition.name == "arith.andi":
        return whole, None
    weight, diagonal = made(added, "arith.addf").operands
    skip = made(diagonal, "tensor.extract")
    equal = ir.IntegerAttr(condition.attributes["predicate"]).value == arith.CmpIPredicate.eq
    need(equal and list(condition.operands) == at and list(skip.operands)[1:] == at[:1] and weight == otherwise)
    return weight, made(skip.operands[0], "tile.map")


class _DiagonalPairs:
    """A map that adds what every position gives to its own row: the diagonal of `scores`, for every row its sum, times rows of `values`.

    `result` are factors of the rows that it makes, a map of rank 1 (None: 1).
    """

    def __init__(self, op: ir.Operation) -> None:
        at = list(body(op).arguments)
        (value,) = yielded(body(op))
        top, self.result = made(value, "arith.addf", "arith.mulf"), None
        if top.name == "arith.mulf":
            whole, factor = made(top.operands[0], "arith.addf"), made(top.operands[1], "tensor.extract")
            self.result = made(factor.operands[0], "tile.map")
            need(list(factor.operands)[1:] == at[:1] and not sources(self.result, 1) and not sources(self.result, 2))
        else:
            whole = top
        other, diagonal = whole.operands
        self.others = tile_at(other, at)
        self.rows, self.values = _diagonal_part(diagonal, at)
        diagonal = made(self.rows, "tile.map")
        self.ops = [op, diagonal, *([] if self.result is None else [self.result])]
        (chosen,) = yielded(body(diagonal))
        same, score, nothing = made(chosen, "arith.select").operands
        compared, reads = made(same, "arith.cmpi"), [read for read in reads_of(diagonal) if rank(read.operands[0]) == 2]
        equal, pair = ir.IntegerAttr(compared.attributes["predicate"]).value == arith.CmpIPredicate.eq, [*body(diagonal).arguments]
        need(equal and len(reads) == 1 and [*compared.operands] == pair == list(reads[0].operands)[1:] and constant(nothing) == 0.0)
        need(diagonal.opview.kinds() == ["sum"])
        self.scores, self.score = reads[0].operands[0], score


def _diagonal_part(value: ir.Value, at: list[ir.Value]) -> tuple[ir.Value, ir.Value]:
    """The tiles of which a value is the product: one of rank 1, of rows, and one of rank 2."""
    row, column = made(value, "arith.mulf").operands
    return tile_at(row, at[:1]), tile_at(column, at)


def _sums(
    stores: list[ir.Operation], o: ir.Value, diagonal: _DiagonalPairs | None
) -> tuple[ir.Value | None, ir.Operation | None, ir.Operation | None]:
    """The sums over columns of o times a factor, and of what `diagonal` adds: the factor, the store of o's sums, that of the others."""
    factors: dict[bool, tuple[ir.Value, ir.Operation]] = {}
    for store in stores:
        if rank(store.operands[0]) != 1:
            continue
        op = made(store.operands[0], "tile.map")
        values, at = yielded(body(op)), list(body(op).arguments)
        need(op.opview.kinds() == ["sum"] and len(values) == 1)
        of_diagonal = diagonal is not None and diagonal.rows in sources(op, 1)
        if diagonal is not None and of_diagonal:
            part, other = made(values[0], "arith.mulf").operands
            need(_diagonal_part(part, at) == (diagonal.rows, diagonal.values))
            factor = tile_at(other, at)
        else:
            factor = factor_of(op, o)
        need(of_diagonal not in factors)
        factors[of_diagonal] = (factor, store)
    if not factors:
        return None, None, None
    need(False in factors and all(factor == factors[False][0] for factor, _ in factors.values()))
    return *factors[False], factors[True][1] if True in factors else None


def residuals(*products: tuple[ir.Operation, ir.Operation, int]) -> list[ir.Operation]:
    """Maps that make residuals which products add: by product, the one that adds to it, and which factor.

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
