"""Pieces of programs: those that would not fill all multiprocessors a last time are shared by all of them.

2048 equal programs take 132 multiprocessors 16 rounds, the last of which is half empty. Here the thread blocks run 15 rounds of whole
programs, and each gets as many steps of the 68 that are left. Sums over queries of a program that has several pieces go through global
memory, in f32: the thread block that has the program's last steps adds the others', in their order, and writes the results.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, as_int, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.pairs_results import RESULTS
from attn_mlir.backends.nvidia.hopper.tiles import RegTile
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker

HEADER = "attn_pieces.cuh"
"""The file of helpers."""
FIELD = "pieces"
"""In schedules: pieces that a program has at most."""
WORDS = "partial_words"
"""In schedules: int32 words of memory that a launch needs for partial sums."""
_WORKERS = 144
"""Thread blocks that share programs at most: the multiprocessors of a whole chip."""
_FLAGS = 8
"""Where the flags of workers begin behind the counter of programs."""


def check_pieces(kernel: PairsKernel, layout: BackwardLayout, fields: Mapping[str, int | str]) -> None:
    """Raises UnsupportedError for kernels whose programs have no pieces."""
    reason = ""
    if fields.get("order", "dynamic") != "dynamic":
        reason = 'programs that are drawn (order = "dynamic")'
    elif fields.get("deterministic") or fields.get("reduction_warps"):
        reason = "additions in no fixed order, by threads that compute (deterministic, reduction_warps)"
    elif kernel.states or kernel.scatters or layout.words or layout.windows or layout.bands:
        reason = "no dropout, no gradients of captured tensors that are carried over queries, and no captured windows"
    elif not _are_even(kernel):
        reason = "blocks of keys that are seen by all queries, in tensors that are not packed (no mask)"
    if reason:
        raise UnsupportedError(f"hopper: programs that are shared by thread blocks need {reason} (pieces)")


def _are_even(kernel: PairsKernel) -> bool:
    """Whether all programs have the same steps: a loop over all queries, or one over whole steps and one over what is left."""
    block, key = kernel.query_loop, kernel.key_loop.regions[0].blocks[0].arguments[0]
    loops, places = ops_of(block, "scf.for"), ops_of(kernel.function.regions[0].blocks[0], "tile.program_id")
    fields = ir.DictAttr(kernel.function.attributes["tile.kernel"])
    if ops_of(block, "scf.if") or not 1 <= len(loops) <= 2 or "lengths" in fields:
        return False
    inner = [op for loop in loops for op in ops_of(loop.regions[0].blocks[0], "scf.if", "scf.for")]
    moving = [key, kernel.query_loop.arguments[0], *(op.results[0] for op in places)]
    bounds = [bound for loop in loops for bound in list(loop.operands)[:2]]
    if inner or any(depends(bound, value) for bound in bounds for value in moving):
        return False
    if any(_number(loop.operands[2]) != kernel.queries for loop in loops) or _number(loops[0].operands[0]) != 0:
        return False
    return len(loops) == 1 or _is_multiple(loops, kernel.queries)


def _number(value: ir.Value) -> int | None:
    op = maker(value, "arith.constant")
    return None if op is None else ir.IntegerAttr(op.attributes["value"]).value


def _is_multiple(loops: list[ir.Operation], queries: int) -> bool:
    """Whether the second loop begins where the first one ends, at a multiple of the queries of a step."""
    end, product = loops[0].operands[1], maker(loops[0].operands[1], "arith.muli")
    return end == loops[1].operands[0] and product is not None and _number(product.operands[1]) == queries


def choose_pieces(kernel: PairsKernel, layout: BackwardLayout, fields: Fields, choices: Mapping[str, int | str], limit: int) -> Fields:
    """What the schedule says of pieces; `limit`: bytes of shared memory. Raises UnsupportedError where they were asked for in vain."""
    wanted = int(choices.get(FIELD, thresholds.PIECES["pieces"]))
    if not wanted:
        return {FIELD: 0}
    try:
        check_pieces(kernel, layout, {**choices, **fields})
        if _room(layout) > limit:
            raise UnsupportedError("hopper: there is no room in shared memory for what is known of pieces (pieces)")
    except UnsupportedError:
        if FIELD in choices:
            raise
        return {}
    return {FIELD: wanted, WORDS: _WORKERS * layout.warpgroups * 128 * _registers(kernel)}


def _room(layout: BackwardLayout) -> int:
    return layout.pieces_at + 32 + 16 * layout.PIECE_SLOTS


def make_room(layout: BackwardLayout) -> None:
    """Reserves shared memory for what is known of pieces."""
    layout.pieces, layout.bytes = layout.pieces_at, _room(layout)


def _registers(kernel: PairsKernel) -> int:
    """Numbers of sums over queries that a thread holds."""
    return sum(-(-ir.RankedTensorType(op.results[0].type).shape[1] // 8) * 4 for op in kernel.fills)


class Pieces:
    """Prints how programs are shared, and how sums of their pieces become one."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, most: int) -> None:
        """`most`: pieces of a program."""
        self.core, self.kernel, self.layout, self.most = core, kernel, layout, most
        self.at = f"shared + {layout.pieces}"
        self.counter = core.arguments.counter(_FLAGS + _WORKERS * layout.warpgroups)

    def plan(self, over: ir.Value) -> None:
        """Prints how many rows of queries the steps of a head have, and what one thread finds out before the roles part."""
        core, kernel = self.core, self.kernel
        last = ops_of(kernel.query_loop, "scf.for")[-1]
        heads, batches = core.arguments.size(over, 1), core.arguments.size(over, 0)
        end = as_int(core, last.operands[1])
        numbers = ", ".join(str(number) for number in (_WORKERS, self.most, thresholds.PIECES["least"], thresholds.PIECES["gain"]))
        programs = f"{core.blocks()} * {heads} * {batches}"
        core.writer.line(f"const int rows_of_head = ({end} + {kernel.queries - 1}) / {kernel.queries} * {kernel.queries};")
        with core.scope("if (threadIdx.x == 0)"):
            total = f"rows_of_head / {kernel.queries} * {as_int(core, kernel.heads.operands[1])}"
            core.writer.line(f"attn::store_sharing({self.at}, attn::shared_programs({programs}, gridDim.x, {total}, {numbers}));")

    @contextmanager
    def summed(self, slot: str, stores: list[ir.Operation]) -> Iterator[None]:
        """Around the stores of results: only who has the last steps of a program stores them, with the sums of its other pieces.

        `slot`: where the piece is. `stores`: those of this warpgroup.
        """
        core, writer, groups = self.core, self.core.writer, self.layout.warpgroups
        tiles = [tile for op in stores if isinstance(tile := core.tiles[op.operands[0]], RegTile)]
        places, vectors = [], 0
        for tile in tiles:
            places.append((tile.name, 128 * vectors))
            vectors += tile.registers // 4
        meet = f"attn::named_sync({RESULTS} + warpgroup, 128);"
        memory, numbers = core.arguments.partial_sums(), f"attn::load_shared_int4({self.at})"

        def place(worker: str) -> str:
            return f"{memory} + ({groups} * {worker} + warpgroup) * {32 * _registers(self.kernel)} + threadIdx.x % 128"

        def flag(worker: str) -> str:
            return f"{self.counter} + {_FLAGS} + {groups} * {worker} + warpgroup"

        writer.line(f"const int piece = attn::load_shared_int({slot} + 12), worker = piece / 4; // -1: a whole program")
        with core.scope("if (piece >= 0 && (piece & attn::kWaitedFor))"):
            writer.line(f"float4 *to = {place('worker')};")
            writer.all(f"attn::store_partial(to + {first}, {name});" for name, first in places)
            # All have written when one thread tells so.
            writer.line(meet, f"if (threadIdx.x % 128 == 0) attn::semaphore_pass({flag('worker')}, 1);")
        with core.scope("else"):
            writer.line(f"int other = piece >= 0 && (piece & attn::kWaits) ? attn::first_worker(program, {numbers}) : worker;")
            writer.line("#pragma unroll 1")
            with core.scope("for (; other < worker; ++other)"):
                with writer.block("if (threadIdx.x % 128 == 0)"):
                    writer.line(f"attn::semaphore_wait({flag('other')}, 1);", f"*({flag('other')}) = 0; // as it was found")
                writer.line(meet)
                writer.line(f"const float4 *from = {place('other')};")
                writer.all(f"attn::add_partial(from + {first}, {name});" for name, first in places)
            yield
