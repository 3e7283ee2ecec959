"""Bits of dropout of kernels over pairs, which the lanes of the consumers make for their own warp: see `attn_dropout.cuh`.

The rows of the bits are queries here.
"""

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.dropout import first_key, head_row, keys_along_rows, seed_words
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.mlir import ir

HEADER = "attn_dropout.cuh"
CHAINS = 4
"""Calls of Philox that a lane makes beside each other."""


def kept_of(block: ir.Block) -> list[ir.Operation]:
    """Every `attn.kept` of a step."""
    return [op for map_ in ops_of(block, "tile.map") for op in operations(body(map_)) if op.name == "attn.kept"]


def possible(kernel: PairsKernel) -> bool:
    """Whether each step asks once for what is kept, of a tile whose rows are the keys of the block, which begin at a multiple of 64."""
    begin = body(kernel.key_loop).arguments[0]
    found = [kept_of(step) for step in kernel.steps]
    return bool(found) and all(len(ops) == 1 and keys_along_rows(ops[0]) and first_key(ops[0]) == begin for ops in found)


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
