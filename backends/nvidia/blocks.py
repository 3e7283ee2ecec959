"""Block sizes of kernels: how many rows and keys a program works on at a time, by the size of heads."""

from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.nvidia import narrow_windows, thresholds
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, pieces, walk

_BRIEF = frozenset({"arith.constant", "arith.mulf", "arith.subf", "arith.addf", "math.exp", "tensor.extract", "attn.yield"})
"""Ops of pairs whose weights leave enough registers for blocks of 80 queries: those of softmax."""
_QUOTIENT = _BRIEF - {"tensor.extract"} | {"arith.negf", "arith.minimumf", "arith.divf", "arith.cmpf", "arith.select"}
"""Ops of pairs whose weights are quotients of exponentials: those of sigmoid."""
_OF_HEAD = frozenset({"arith.cmpi", "arith.select", "arith.floordivsi", "tensor.extract"})
"""How a number of a batch entry and head is found, besides what multiplies scores."""
_ADDRESS = frozenset({"arith.constant", "arith.addi", "arith.index_cast", "tensor.extract"})
_COMPARED = frozenset({"arith.constant", "arith.addi", "arith.subi", "arith.cmpi", "tensor.dim", "attn.yield"})
_WINDOW = frozenset({"arith.constant", "arith.subi", "arith.cmpi", "arith.andi", "arith.ori", "attn.yield"})
_QUERY = 2
"""Where the query stands among the positions of a scatter."""


@dataclass(frozen=True)
class NvidiaFacts:
    """What the choice of block sizes depends on.

    `grid`: "rows", "pairs", "elements", "heads" (sums over heads) or "chunks" (then `head` and `value` are a state's rows and columns);
    `head` and `value` are the columns of q and of v, `bits` of an element of them; `masked`: some blocks are skipped or partial;
    `products`: how many products of queries and keys a pair needs; `biased`: scores read f32 of a captured tensor for every pair;
    `by_query`, `by_pair`: there is a gradient of a captured tensor whose index depends on the query alone, or on its key, too, and which is
    no dense bias; `scattered`: of a dense bias, which is not added by tiles of 16 bits where it is `apart`: it has 32, an order is
    asked for, or weights are dropped. `widened`: k and v have fewer bits than q.
    `brief`: all that pairs need beside products are values of their query, and few ops, or a row is softmax; `by_head`: a row is softmax,
    and scores are multiplied by what may depend on the head; `quotient`: nothing but
    a quotient of an exponential, as of sigmoid; `placed`: a mask compares positions and lengths; `windowed`: it
    compares differences of positions with at most two bounds; `sided`: on both sides, and nothing else. `packed`: tensors hold sequences.
    """

    grid: str
    head: int = 0
    value: int = 0
    bits: int = 16
    masked: bool = False
    products: int = 1
    biased: bool = False
    widened: bool = False
    scattered: bool = False
    by_query: bool = False
    by_pair: bool = False
    apart: bool = False
    brief: bool = False
    by_head: bool = False
    quotient: bool = False
    placed: bool = False
    windowed: bool = False
    sided: bool = False
    packed: bool = False


def facts_of(function: ir.Operation) -> NvidiaFacts | None:
    """The facts of a function before tiling; None if it is no kernel."""
    for online in find_all(function, "attn.online"):
        head, value, bits = _columns([online.operands[0], online.operands[2]])
        products = 1 + len(pieces(online, "attn.product"))
        masked = bool(pieces(online, "attn.mask"))
        widened = ir.RankedTensorType(online.operands[1].type).element_type.width < bits
        return NvidiaFacts(
            "rows",
            head,
            value,
            bits,
            masked,
            products,
            _is_biased(online),
            widened,
            brief=_is_brief_row(online),
            by_head=_is_brief_row(online, True),
            sided=masked and all(map(narrow_windows.is_window, pieces(online, "attn.mask"))),
        )
    for pairs in find_all(function, "attn.pairs"):
        products = pieces(pairs, "attn.product")
        head, value, bits = _columns([products[0].operands[0], products[-1].operands[0]])
        dense = [op for op in find_all(function, "attn.scatter") if _has_places(op.regions[0].blocks[0], _QUERY)]
        scattered, ordered = bool(dense), bool(attributes.read(function, attributes.CHOICES).get("deterministic"))
        other = [_query_and_key(op.regions[0].blocks[0]) for op in find_all(function, "attn.scatter") if op not in dense]
        wide = any(ir.RankedTensorType(op.operands[1].type).element_type.width > 16 for op in dense)
        apart = wide or ordered or bool(find_all(pairs, "attn.kept"))
        masked = bool(pieces(pairs, "attn.mask"))
        return NvidiaFacts(
            "pairs", head, value, bits, masked, len(products), scattered=scattered, apart=apart,
            by_query={_QUERY} in other, by_pair={_QUERY, _QUERY + 1} in other,
            brief=_is_brief(function, pairs, _BRIEF, thresholds.BRIEF_OPS),
            quotient=_is_brief(function, pairs, _QUOTIENT, thresholds.QUOTIENT_OPS) and _is_bare(function, pairs),
            placed=masked and all(map(_is_placed, pieces(pairs, "attn.mask"))),
            windowed=masked and all(map(_compares_differences, pieces(pairs, "attn.mask"))),
            sided=masked and all(map(narrow_windows.is_window, pieces(pairs, "attn.mask"))),
            packed=bool(pieces(pairs, "attn.sequences")),
        )  # fmt: skip
    for chunk in find_all(function, "attn.chunk"):
        head, value, bits = _columns([chunk.operands[1], chunk.operands[2]])
        return NvidiaFacts("chunks", head, value, bits)
    for sums in find_all(function, "attn.head_sum"):
        type_ = ir.RankedTensorType(sums.operands[0].type)
        return NvidiaFacts("heads", type_.shape[3] if type_.rank > 3 else 0)
    return NvidiaFacts("elements") if find_all(function, "attn.elements", "attn.row_dot") else None


def default_blocks(facts: NvidiaFacts) -> tuple[int, int]:
    """Query rows and keys of a block ("rows"), or keys and query rows ("pairs")."""
    columns = max(facts.head, facts.value)
    if facts.grid == "rows" and facts.bits == 8:
        return (192, 128) if columns <= 64 else (128, 192) if columns <= 128 else (128, 128) if columns <= 192 else (128, 64)
    if facts.grid == "rows":
        if facts.products > 1:
            return (128, 64) if columns <= 128 else (64, 64 if columns <= 192 else 32)
        return (192, 128) if columns <= 64 else (128, 128) if columns <= 128 else (128, 80) if columns <= 192 else (128, 64)
    if facts.grid == "pairs":
        if facts.products > 2:
            return 64, 64
        return (128, 128) if columns <= 64 else (128, 64) if columns <= 128 else (64, 64 if columns <= 192 else 32)
    if facts.grid == "heads":
        # A thread has one row, so that thread blocks are many.
        return (64 if facts.head <= 32 else 32 if facts.head <= 64 else 16), 128
    if facts.grid == "chunks":
        return 64, facts.value
    return 128, 128


def of_eight_bit(facts: NvidiaFacts) -> Fields:
    """What is chosen for softmax of 8-bit elements where that is faster than `default_blocks`; other rows would spill."""
    if facts.grid != "rows" or facts.bits != 8 or not facts.by_head or facts.head != facts.value:
        return {}
    fields = dict(thresholds.EIGHT_BIT_SOFTMAX.get(facts.head, {}))
    return fields | thresholds.HELD_KEYS if fields and not facts.masked else fields


def turned_values(facts: NvidiaFacts) -> tuple[int, Fields]:
    """Queries of each key from which on values of 8 bits are transposed before the kernel, and what is chosen then; 0 where never."""
    none: tuple[int, Fields] = (0, {})
    known = facts.grid == "rows" and facts.bits == 8 and facts.head == facts.value
    known = known and (bool(of_eight_bit(facts)) or facts.brief)
    return thresholds.TURNED_VALUES.get((facts.head, facts.masked), none) if known else none


def long_eight_bit(facts: NvidiaFacts) -> Fields:
    """What is chosen for 8-bit elements on many keys (`thresholds.LONG_KEYS`), where that is faster: larger blocks, which have no registers
    left for scales of scores, other rows than softmax, and masks of more than positions.
    """
    if facts.grid != "rows" or facts.bits != 8 or not facts.brief or facts.head != facts.value:
        return {}
    return dict(thresholds.LONG_EIGHT_BIT.get((facts.head, facts.masked), {}))


def blocks_of_brief_pairs(facts: NvidiaFacts) -> tuple[int, int] | None:
    """Those of Hopper's backward passes of few registers.

    Heads of 128 columns without a mask take steps of 80 queries; of 64, a warpgroup of its own makes the sums over keys.
    """
    if facts.grid != "pairs" or not facts.brief or facts.packed or facts.head != facts.value or facts.bits != 16 or facts.products != 2:
        return None
    if facts.head == 64 and (facts.placed or facts.windowed or not facts.masked):
        return thresholds.NARROW_PAIRS
    return thresholds.BRIEF_PAIRS if facts.head == 128 and not facts.masked else None


def blocks_of_quotients(facts: NvidiaFacts) -> tuple[int, int] | None:
    """Those of backward passes of quotients, of 64 columns: the `warp` dialect's, where a warpgroup makes the sums over keys.

    The Hopper emitter's products would wait for each other: it has too few registers. On packed sequences those of few registers have them,
    too, of which that emitter makes blocks of 128 queries.
    """
    narrow = facts.grid == "pairs" and facts.head == facts.value == 64 and facts.bits == 16 and facts.products == 2
    known = facts.quotient or (facts.packed and facts.brief)
    seen = facts.placed or not facts.masked or (facts.packed and facts.sided)
    return thresholds.NARROW_PAIRS if narrow and known and seen else None


def synchronous_blocks(facts: NvidiaFacts) -> tuple[int, int]:
    """Those of kernels whose warps multiply and copy for themselves: two stages of keys and of values fit beside the queries.

    4 warps of 32 rows where rows are narrow, else 8 warps of 16, or 4 where a block of 128 rows does not fit.
    """
    columns = max(facts.head, facts.value)
    if facts.grid == "rows":
        keys = 64 if columns * facts.products <= 192 else 32
        return (128 if facts.products == 1 and columns <= 192 else 64), keys
    if facts.grid == "pairs" and columns > 128:  # `nvidia-split-pairs` leaves one sum over queries to each kernel
        return (128, 64) if facts.products == 1 else (64, 64)
    return default_blocks(facts)


def blocks_with_captures(facts: NvidiaFacts) -> tuple[int, int] | None:
    """The blocks of kernels that read or add to captured tensors for every pair, where these need other ones."""
    columns = max(facts.head, facts.value)
    if facts.biased and 64 < columns <= 128 and facts.products == 1:
        return 128, 96  # shared memory has room for a window of f32 beside two stages of keys
    if columns > 128 or facts.products != 2:
        return None
    if facts.scattered and (facts.apart or columns > 64):
        return 128, 64
    # Weights of pairs stay in f32, too, where their gradients go to elements.
    if (facts.by_query or facts.by_pair) and columns <= 64:
        return 128, 64
    return (128, 64) if facts.by_query and not facts.by_pair and facts.head == facts.value == 128 else None


def _is_brief_row(online: ir.Operation, by_head: bool = False) -> bool:
    """Whether scores are multiplied by numbers at most, masks compare positions, and a step needs no more than one of softmax.

    `by_head`: they may be multiplied by what depends on the head alone, as scales do.
    """
    blocks = [score.regions[0].blocks[0] for score in pieces(online, "attn.score")]
    scores = [view.operation for block in blocks for view in block.operations]
    if by_head:
        used = [[len(list(argument.uses)) for argument in block.arguments] for block in blocks]
        if any(uses[0] != 1 or any(uses[3:]) for uses in used):  # the score; after batch and head, positions
            return False
        scores = [op for op in scores if op.name not in _OF_HEAD]
    steps = [len(list(step.regions[0].blocks[0].operations)) for step in pieces(online, "attn.step")]
    kinds = [ir.StringAttr(op.attributes["kind"]).value for step in pieces(online, "attn.step") for op in find_all(step, "attn.reduce")]
    plain = kinds == ["max", "sum"] and all(op.name in ("arith.constant", "arith.mulf", "attn.yield") for op in scores)
    return plain and all(map(_is_placed, pieces(online, "attn.mask"))) and all(ops <= thresholds.SOFTMAX_OPS for ops in steps)


def _is_brief(function: ir.Operation, pairs: ir.Operation, allowed: frozenset[str], most: int) -> bool:
    """Whether a function is one map over pairs, each of which needs few ops, one exponential, and nothing that depends on its key alone."""
    parts = {view.operation.name for view in pairs.regions[0].blocks[0].operations}
    sums = [len(find_all(function, f"attn.{name}")) for name in ("query_sum", "key_sum", "scatter")]
    if parts - {"attn.mask", "attn.query_bounds", "attn.sequences"} != {"attn.product", "attn.pair"} or sums != [1, 2, 0]:
        return False
    (pair,) = pieces(pairs, "attn.pair")
    block = pair.regions[0].blocks[0]
    position = list(block.arguments)[-1]
    packed = bool(pieces(pairs, "attn.sequences"))  # then numbers of queries lie where their sequence begins
    names = [view.operation.name for view in block.operations if not (packed and _is_address(view.operation))]
    return len(names) <= most and allowed.issuperset(names) and "math.exp" in names and not list(position.uses)


def _is_address(op: ir.Operation) -> bool:
    """Whether an op reads or adds integers."""
    return op.name in _ADDRESS and isinstance(op.results[0].type, (ir.IndexType, ir.IntegerType))


def _is_bare(function: ir.Operation, pairs: ir.Operation) -> bool:
    """Whether a function takes nothing but tensors [B, H, S, D], and where sequences lie in these, and its mask, if there is one, compares
    one sum of positions and lengths.

    What else there may be (lengths, lists, captured values, several bounds), `warp/preferred.py` leaves to the Hopper emitter.
    """
    arguments = list(function.regions[0].blocks[0].arguments)
    ops = [op.name for mask in pieces(pairs, "attn.mask") for op in walk(mask)]
    places = {value for given in pieces(pairs, "attn.sequences") for value in given.operands}
    four = all(isinstance(each.type, ir.RankedTensorType) and each.type.rank == 4 for each in arguments if each not in places)
    return four and _COMPARED.issuperset(ops) and ops.count("arith.cmpi") <= 1


def _compares_differences(mask: ir.Operation) -> bool:
    """Whether a mask compares differences of positions with numbers, as a sliding window does."""
    names = {view.operation.name for view in mask.regions[0].blocks[0].operations}
    return _WINDOW.issuperset(names) and _is_placed(mask, thresholds.WINDOW_OPS)


def _is_placed(mask: ir.Operation, most: int = thresholds.PLACED_OPS) -> bool:
    """Whether a mask needs few ops, and nothing but positions and lengths."""
    block = mask.regions[0].blocks[0]
    ops = [view.operation for view in block.operations]
    inside = {*block.arguments, *(result for op in ops for result in op.results)}
    return len(ops) <= most and all(value in inside or isinstance(value.type, ir.IndexType) for op in ops for value in op.operands)


def _is_biased(online: ir.Operation) -> bool:
    """Whether a score function reads a dense bias of f32: one index is that of the query, another one that of the key."""
    for score in pieces(online, "attn.score"):
        block = score.regions[0].blocks[0]
        last = len(list(block.arguments)) - 1
        for view in block.operations:
            op = view.operation
            if op.name == "tensor.extract" and isinstance(op.results[0].type, ir.F32Type) and _places(op, block, last - 1):
                return True
    return False


def _has_places(block: ir.Block, query: int) -> bool:
    """Whether a scatter goes to a dense bias."""
    return _places(block.operations[-1].operation, block, query)


def _query_and_key(block: ir.Block) -> frozenset[int]:
    """Which of these two the indices of a scatter depend on."""
    depends = dependence(block)
    indices = [depends.get(value, frozenset()) for value in block.operations[-1].operation.operands]
    return frozenset[int]().union(*indices) & {_QUERY, _QUERY + 1}


def _places(op: ir.Operation, block: ir.Block, query: int) -> bool:
    """Whether one of its indices depends on the query alone (argument `query` of the block), another one on the key, the next."""
    depends = dependence(block)
    places = [depends.get(value, frozenset()) & {query, query + 1} for value in op.operands]
    return {query} in places and {query + 1} in places


def _columns(values: list[ir.Value]) -> tuple[int, int, int]:
    types = [ir.RankedTensorType(value.type) for value in values]
    return types[0].shape[-1], types[1].shape[-1], types[0].element_type.width


def blocks_of_matrices(op: ir.Operation) -> list[int] | None:
    """Rows of a tile and columns of a program of an `attn.transition_scan` where warpgroups can multiply; None elsewhere.

    A warpgroup has 64 columns of the state, and a thread all of its rows in a column. Matrices of f32 are cut into two pieces of bf16,
    as states are, where programs have inputs of 16 bits.
    """
    rows, columns = op.opview.rows.value, ir.RankedTensorType(op.opview.states.type).shape[3]
    narrow = ir.RankedTensorType(op.opview.like.type).element_type.width == 16
    single = isinstance(ir.RankedTensorType(op.opview.states.type).element_type, ir.F32Type)
    fits = rows in (64, 128) and columns % 64 == 0 and rows <= columns
    return [rows, 64] if narrow and single and fits else None
