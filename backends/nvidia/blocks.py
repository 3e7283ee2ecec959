"""Block sizes of kernels: how many rows and keys a program works on at a time, by the size of heads."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, pieces
from attn_mlir.passes.tiling.scatter import depends_on

_QUERY = 2
"""Where the query stands among the positions of a scatter."""


@dataclass(frozen=True)
class NvidiaFacts:
    """What the choice of block sizes depends on.

    `grid`: "rows", "pairs", "elements", "heads" (sums over heads) or "chunks" (then `head` and `value` are a state's rows and columns);
    `head` and `value` are the columns of q and of v, `bits` of an element of them; `masked`: some blocks are skipped or partial;
    `products`: how many products of queries and keys a pair needs; `biased`: scores read f32 of a captured tensor for every pair;
    `scattered`: there is a gradient of a captured tensor whose index depends on the query.
    """

    grid: str
    head: int = 0
    value: int = 0
    bits: int = 16
    masked: bool = False
    products: int = 1
    biased: bool = False
    scattered: bool = False


def facts_of(function: ir.Operation) -> NvidiaFacts | None:
    """The facts of a function before tiling; None if it is no kernel."""
    for online in find_all(function, "attn.online"):
        head, value, bits = _columns([online.operands[0], online.operands[2]])
        products = 1 + len(pieces(online, "attn.product"))
        return NvidiaFacts("rows", head, value, bits, bool(pieces(online, "attn.mask")), products, _is_biased(online))
    for pairs in find_all(function, "attn.pairs"):
        products = pieces(pairs, "attn.product")
        head, value, bits = _columns([products[0].operands[0], products[-1].operands[0]])
        scattered = any(depends_on(op.regions[0].blocks[0], _QUERY) for op in find_all(function, "attn.scatter"))
        return NvidiaFacts("pairs", head, value, bits, bool(pieces(pairs, "attn.mask")), len(products), scattered=scattered)
    for chunk in find_all(function, "attn.chunk"):
        head, value, bits = _columns([chunk.operands[1], chunk.operands[2]])
        return NvidiaFacts("chunks", head, value, bits)
    if find_all(function, "attn.head_sum"):
        return NvidiaFacts("heads")
    return NvidiaFacts("elements") if find_all(function, "attn.elements", "attn.row_dot") else None


def default_blocks(facts: NvidiaFacts) -> tuple[int, int]:
    """Query rows and keys of a block ("rows"), or keys and query rows ("pairs")."""
    columns = max(facts.head, facts.value)
    if facts.grid == "rows":
        if facts.products > 1:
            return (128, 64) if columns <= 128 else (64, 64 if columns <= 192 else 32)
        return (192, 128) if columns <= 64 else (128, 128) if columns <= 128 else (128, 80) if columns <= 192 else (128, 64)
    if facts.grid == "pairs":
        if facts.products > 2:
            return 64, 64
        return (128, 128) if columns <= 64 else (128, 64) if columns <= 128 else (64, 64 if columns <= 192 else 32)
    if facts.grid == "heads":
        return 64, 128
    if facts.grid == "chunks":
        return 64, facts.value
    return 128, 128


def blocks_with_captures(facts: NvidiaFacts) -> tuple[int, int] | None:
    """The blocks of kernels that read or add to captured tensors for every pair, where these need other ones."""
    columns = max(facts.head, facts.value)
    if facts.biased and 64 < columns <= 128 and facts.products == 1:
        return 128, 96  # shared memory has room for a window of f32 beside two stages of keys
    return (128, 64) if facts.scattered and columns <= 128 and facts.products == 2 else None


def _is_biased(online: ir.Operation) -> bool:
    """Whether a score function reads a dense bias of f32: one index is that of the query, another one that of the key."""
    for score in pieces(online, "attn.score"):
        block = score.regions[0].blocks[0]
        count, depends = len(list(block.arguments)), dependence(block)
        for view in block.operations:
            op = view.operation
            if op.name == "tensor.extract" and isinstance(op.results[0].type, ir.F32Type):
                places = [depends.get(index, frozenset()) & {count - 2, count - 1} for index in list(op.operands)[1:]]
                if {count - 2} in places and {count - 1} in places:
                    return True
    return False


def _columns(values: list[ir.Value]) -> tuple[int, int, int]:
    types = [ir.RankedTensorType(value.type) for value in values]
    return types[0].shape[-1], types[1].shape[-1], types[0].element_type.width
