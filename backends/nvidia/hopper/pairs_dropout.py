"""Bits of dropout that warps of the producer make for kernels over pairs, a stage of queries ahead: see `attn_dropout.cuh`.

They travel with the values of query rows: the same barriers, the same stages. The rows of the bits are queries here.
"""

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import first_key, head_row, keys_along_rows, print_seeds, seed_words
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.mlir import ir

IDLE = 2
"""Warps of the producer that neither load nor write values of rows nor add."""
CHAINS = 4
"""Calls of Philox that a lane makes beside each other."""
_STAGE = "stage"
"""`pairs_loop.STAGE`, which imports what prints maps."""


def kept_of(block: ir.Block) -> list[ir.Operation]:
    """Every `attn.kept` of a step."""
    return [op for map_ in ops_of(block, "tile.map") for op in operations(body(map_)) if op.name == "attn.kept"]


def possible(kernel: PairsKernel) -> bool:
    """Whether each step asks once for what is kept, of a tile whose rows are the keys of the block, which begin at a multiple of 64."""
    begin = body(kernel.key_loop).arguments[0]
    found = [kept_of(step) for step in kernel.steps]
    return bool(found) and all(len(ops) == 1 and keys_along_rows(ops[0]) and first_key(ops[0]) == begin for ops in found)


def makers(layout: BackwardLayout) -> int:
    """How many warps make them: those that have nothing else to do, or else that of the values of rows."""
    return 0 if layout.bits is None else 1 if layout.reduction_warps else IDLE


def print_share(core: Core, layout: BackwardLayout, block: ir.Block, worker: str) -> None:
    """One warp's share of the bits of a step, once its stage is free."""
    (op,) = kept_of(block)
    seed, offset, drop, heads, b, h, query, _ = op.operands
    base = first_key(op)
    assert layout.bits is not None and base is not None
    with core.scope(""):
        first = f"attn::uniform({core.scalars.emit(base)})"  # in uniform registers, since there are few others
        numbers = (*seed_words(core, seed), seed_words(core, offset)[0], f"(unsigned)({core.scalars.emit(drop)})")
        row = f"(unsigned)attn::uniform((int)({head_row(core, b, heads, h)}))"
        core.writer.line(f"const attn::Dropout of = {{{', '.join(numbers)}, {row}}};")
        with core.writer.block("const auto query_of = [&](int row)"), core.scope(None):
            core.scalars.bind(op.block.arguments[1], "row")
            core.writer.line(f"return (unsigned)({core.scalars.emit(query)});")
        core.writer.lines[-1] += ";"
        to = f"shared + {layout.bits.offset} + {layout.bits.bytes} * {_STAGE}"
        table = f"shared + {layout.bit_tables} + ({worker}) * {layout.table_bytes}"
        size = f"{layout.kernel.queries}, {layout.kernel.keys}, {makers(layout)}, 2, true"
        core.writer.line(f"attn::dropout_block<{size}>(of, {worker}, {first}, {to}, {table}, query_of);")


def print_seeds_of(core: Core, kernel: PairsKernel) -> None:
    """Before the loops over queries of one head."""
    print_seeds(core, [op for step in kernel.steps for op in kept_of(step)])


def print_bits(core: Core, layout: BackwardLayout) -> str:
    """Before the loops over a tile: where the thread's bits are, and which they are; the name of their address."""
    bits, at, mask = layout.bits, core.names.fresh("kept_at"), core.names.fresh("kept_mask")
    assert bits is not None
    own = "attn::opaque(threadIdx.x)"
    core.writer.line(f"const unsigned {at}_of = {own}, {mask} = 1u << ({at}_of / 4 % 2 * 8 + 7 - {at}_of / 32 % 4);")
    place = f"({at}_of / 128 * {layout.kernel.queries} + {at}_of % 4 * 2) * 16 + {at}_of / 8 % 4 * 4"
    core.writer.line(f"const uint32_t {at} = shared + {bits.offset} + {bits.bytes} * {_STAGE} + {place};")
    return f"{at} {mask}"


def print_two_bits(core: Core, op: ir.Operation, names: str) -> None:
    """In the loop over `c`: the words of two queries, of which an element takes a bit by `h` and `e`."""
    at, mask = names.split()
    word = core.names.fresh("kept_here")
    loads = ", ".join(f"(unsigned)attn::load_shared_int({at} + 128 * c{more})" for more in ("", " + 16"))
    core.writer.line(f"const unsigned {word}[2] = {{{loads}}};")
    core.scalars.bind(op.results[0], f"(({word}[e] & {mask} << 16 * h) != 0)")


# ---- the consumers' own lanes


def print_lane_words(core: Core, layout: BackwardLayout, op: ir.Operation) -> None:
    """Before the loops over a tile: each lane makes the bits of some queries and its warp's 16 keys."""
    seed, offset, drop, heads, b, h, query, _ = op.operands
    base = first_key(op)
    assert base is not None
    with core.scope(""):
        numbers = (*seed_words(core, seed), seed_words(core, offset)[0], f"(unsigned)({core.scalars.emit(drop)})")
        row = f"(unsigned)attn::uniform((int)({head_row(core, b, heads, h)}))"
        core.writer.line(f"const attn::Dropout of = {{{', '.join(numbers)}, {row}}};")
        core.writer.line(f"const unsigned group = attn::uniform(({core.scalars.emit(base)} + row - lane / 4) / 16);")
        with core.writer.block("const auto query_of = [&](int n)"), core.scope(None):
            core.scalars.bind(op.block.arguments[1], "(n + 2 * lane)")
            core.writer.line(f"return (unsigned)({core.scalars.emit(query)});")
        core.writer.lines[-1] += ";"
        queries = layout.kernel.queries
        core.writer.line(f"attn::dropout_of_keys<{queries}, {min(CHAINS, queries // 32)}>(of, group, {_own_words(layout)}, query_of);")


def print_lane_bits(core: Core, layout: BackwardLayout, op: ir.Operation) -> None:
    """In the loop over `c`: the word of two queries, of which an element takes a bit by `h` and `e`."""
    bits = core.names.fresh("kept_here")
    word = f"(unsigned)attn::load_shared_int({_own_words(layout)} + 16 * c + lane % 4 * 4)"
    core.writer.line(f"const unsigned {bits} = {word} >> (lane / 4 % 2 * 8 + 3 - lane / 8);")
    core.scalars.bind(op.results[0], f"(({bits} >> (16 * h + 4 - 4 * e) & 1u) != 0)")


def _own_words(layout: BackwardLayout) -> str:
    """Where the words of this warp are."""
    assert layout.words is not None
    return f"shared + {layout.words.offset} + attn::thread_again() / 32 * {2 * layout.kernel.queries}"
