"""Block sizes of kernels: how many rows and keys a program works on at a time, by the size of heads."""

from dataclasses import dataclass

from attn_mlir.dialects.attn.linear_erase import is_delta
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, pieces

ROWS = 128
"""Rows of a program: 32 for each of its four waves."""
_FEWEST = 8
"""Columns of values that are worth a program."""


@dataclass(frozen=True)
class AmdFacts:
    """What the choice of block sizes depends on.

    `grid`: "rows", "pairs", "elements" or "chunks"; `columns`: the most of those of q, v and other products (of chunk scans: of q);
    `products` of queries and keys that a pair needs; `terms`: tensors that are summed over keys; `plain`: the row function needs few
    registers (none or one maximum and one sum). Of scans: `values` are the columns of v, `channels` tells which ones have decays of
    their own ("none", "key", "value"), `wide` whether q, k and v are f32.
    """

    grid: str
    columns: int = 0
    products: int = 1
    terms: int = 1
    plain: bool = True
    values: int = 0
    channels: str = "none"
    wide: bool = False
    delta: bool = False


def facts_of(function: ir.Operation) -> AmdFacts | None:
    """The facts of a function before tiling; None if it is no kernel."""
    for online in find_all(function, "attn.online"):
        factors = [operand for product in pieces(online, "attn.product") for operand in list(product.operands)[:2]]
        columns = _columns([online.operands[0], online.operands[2], *factors])
        return AmdFacts("rows", columns, 1 + len(pieces(online, "attn.product")), 1 + len(pieces(online, "attn.term")), _is_plain(online))
    for pairs in find_all(function, "attn.pairs"):
        products = pieces(pairs, "attn.product")
        return AmdFacts("pairs", _columns([products[0].operands[0], products[-1].operands[0]]), len(products))
    for chunk in find_all(function, "attn.chunk"):
        keys, values = (ir.RankedTensorType(chunk.operands[number].type).shape[3] for number in (1, 2))
        channels = ir.StringAttr(chunk.attributes["channels"]).value
        wide = isinstance(ir.RankedTensorType(chunk.operands[0].type).element_type, ir.F32Type)
        return AmdFacts("chunks", keys, values=values, channels=channels, wide=wide, delta=is_delta(chunk))
    return AmdFacts("elements") if find_all(function, "attn.elements", "attn.row_dot", "attn.head_sum") else None


def default_blocks(facts: AmdFacts) -> tuple[int, int]:
    """Query rows and keys of a block ("rows"), or keys and query rows ("pairs"), or positions of a chunk and columns of v ("chunks")."""
    if facts.grid == "chunks":
        many = facts.columns > 256
        many = many or (facts.delta and facts.columns > 128)
        chunk = 16 if facts.channels != "none" or many else 32 if facts.columns > (64 if facts.wide or facts.delta else 128) else 64
        most = {"none": 512, "key": 128 if facts.wide else 256, "value": 256 if facts.wide else 512}[facts.channels]
        if facts.delta and facts.channels == "key":  # what is read of the state, and its factors, are beside it
            most = min(most, 192)
        widest = 16 if facts.columns > most else 32 if many else 64
        sizes = [size for size in (widest, 32, 16) if facts.values % size == 0]
        if facts.values > widest and (facts.wide or many):  # all columns at a time are too many for shared memory
            sizes += [size for size in range(widest, _FEWEST - 1, -1) if facts.values % size == 0]
        return chunk, next(iter(sizes), facts.values)
    if facts.grid == "rows":
        if facts.products > 1 or facts.terms > 1:
            return ROWS, 64 if facts.columns <= 64 else 32
        return ROWS, 128 if facts.columns <= 64 and facts.plain else 64 if facts.columns <= 128 else 32
    if facts.grid == "pairs":
        return ROWS, 64 if facts.columns <= 64 else 32
    return 128, 128


def _is_plain(online: ir.Operation) -> bool:
    kinds = [ir.StringAttr(op.attributes["kind"]).value for op in find_all(online, "attn.reduce")]
    return sorted(kinds) in ([], ["max", "sum"])


def _columns(values: list[ir.Value]) -> int:
    return max(ir.RankedTensorType(value.type).shape[-1] for value in values)
