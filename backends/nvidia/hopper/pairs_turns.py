"""Tiles of gradients of dense captured tensors that are stored: nothing is zero before, and batch entries that share them take turns.

Each tile of such a gradient is made once in each batch entry. Where a tensor is read by every entry in its own place, or there is one
entry, tiles are stored. Else the program of the first entry stores, and that of each further one adds what it has once the one before is
there, which a counter of steps in global memory tells: so sums have one order. Programs of batch entries follow each other, so that they
run at a time, and bias and gradient are in the L2 cache when the second one wants them. Warps of the producer send the tiles, and write
zeros for the first queries where a mask hides those: where no program comes.
"""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.outputs import ENTRIES, ROWS, STORED
from attn_mlir.backends.gpu.structure import body, yielded
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_claims import sees_last_queries
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of, semaphore_tensor
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.pairs_loop import STAGE, STEP, RolePrinter
from attn_mlir.backends.nvidia.hopper.pairs_tiles import WindowSums, apart_along, elements_of, tiled_scatters
from attn_mlir.backends.nvidia.hopper.windows import same_for_batches
from attn_mlir.backends.nvidia.ordered_sums import depends
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker

WARPS = "tile_warps"
"""In a schedule: 1 where warps of the producer send tiles."""
_WARPGROUPS = 2
"""Of consumers, where tiles are stored."""
_FULL = 10
"""Named barrier of the first warpgroup and stage: its tile is in shared memory. One for each stage, as consumers may be two steps ahead of
who sends: they come to one again only when their stage was given back."""


def stored_tiles(layout: BackwardLayout) -> list[ir.Operation]:
    """The scatters of a step whose tiles are all made, but for those of the first queries, each once in a batch entry.

    That is so whatever the lengths are.
    """
    kernel = layout.kernel
    if not layout.by_tiles or not kernel.steps or not sees_last_queries(kernel):
        return []
    loops, tiled = ops_of(kernel.query_loop, "scf.for"), list(tiled_scatters(kernel.steps[0]))
    targets = [op.operands[0] for op in tiled]
    if any([op.operands[0] for op in tiled_scatters(step)] != targets for step in kernel.steps[1:]):
        return []  # what one step stores, another one would add to
    found = [op for op in tiled if all(apart_along(kernel, op)[:2]) and _is_query(yielded(body(op))[-2], op, loops[0])]
    batches = [op.results[0] for op in find_all(kernel.function, "tile.program_id") if ir.IntegerAttr(op.attributes["axis"]).value == 2]
    same = not any(depends(loops[0].operands[0], batch) for batch in batches)
    return [op for op in found if same or apart_along(kernel, op)[2]]


def first_query(kernel: PairsKernel) -> ir.Value | None:
    """Where steps begin, None where that is the first query."""
    begin = ops_of(kernel.query_loop, "scf.for")[0].operands[0]
    op = maker(begin, "arith.constant")
    return None if op is not None and ir.IntegerAttr(op.attributes["value"]).value == 0 else begin


def _is_query(index: ir.Value, scatter: ir.Operation, loop: ir.Operation) -> bool:
    """Whether an index is the query's own position: that of another place would leave elements that no program comes to."""
    op = maker(index, "arith.addi")
    own = [loop.regions[0].blocks[0].arguments[0], body(scatter).arguments[1]]
    return op is not None and all(any(operand == value for value in own) for operand in op.operands)


def shares_batches(layout: BackwardLayout) -> bool:
    """Whether batch entries add to one tile."""
    return any(not apart_along(layout.kernel, op)[2] for op in stored_tiles(layout))


def tile_fields(layout: BackwardLayout, choices: Mapping[str, int | str], semaphores: Fields) -> Fields:
    """The part of a schedule that says who sends tiles, and which are stored. `semaphores`: those of programs."""
    stored = stored_tiles(layout)
    # Programs of one warpgroup, as of second derivatives, have not run so on a GPU; for three the producer has no warps that send.
    if not stored or not choices.get(STORED, 1) or layout.warpgroups != _WARPGROUPS:
        return {}
    shared = shares_batches(layout)
    if shared and choices.get("order", "dynamic") != "dynamic":
        return {}  # entries wait for programs that were drawn before
    if shared and not same_for_batches(layout.kernel.function, layout.kernel.step_ops("tile.load_window")):
        return {}
    needed = shared or first_query(layout.kernel) is not None
    if not (warps := int(choices.get(WARPS, needed))) and needed:
        return {}
    arguments = list(layout.kernel.function.regions[0].blocks[0].arguments)
    elements = elements_of(layout)
    told = ",".join(f"{arguments.index(op.operands[0]) + 1 - len(arguments)}:{elements[op]}" for op in stored)
    turns: Fields = {**semaphores, **dict(zip((ENTRIES, ROWS), _turns(layout.kernel), strict=True))} if shared else {}
    return {STORED: told} | ({WARPS: 1} if warps else {}) | turns


class TileSender(RolePrinter):
    """Warps of the producer, one for each warpgroup of consumers, that store and add its tiles: here, or beside sums over keys."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout) -> None:
        super().__init__(core, kernel, layout)
        self.tiles = WindowSums(core, kernel, layout)

    def begin_program(self) -> None:
        """Declares the counters of this program and of the one before, which has the batch entry before."""
        core, layout = self.core, self.layout
        if not layout.turns:
            return
        heads, blocks = core.arguments.size(self.kernel.over, 1), core.blocks()
        place = f"((batch * {heads} + head) * {blocks} + block) * {layout.warpgroups} + part"
        core.writer.line(
            f"int *const turn = {core.arguments.semaphores()} + {place};",
            f"const int *const before = turn - {heads} * {blocks} * {layout.warpgroups};",
            f"const uint32_t begun = {STEP};",
        )

    def after_heads(self, block: ir.Block) -> None:
        """Makes 0 what no step comes to."""
        begin = first_query(self.kernel)
        if begin is None:
            return
        core = self.core
        for op in stored_tiles(self.layout):
            with core.scope(""):
                self.tiles.clear_rows(op, core.value(begin), "part")

    def step(self, block: ir.Block) -> None:
        self.send(block)
        self.core.writer.line("if (lane == 0) attn::bulk_wait_read<0>();")
        self.sent()

    def send(self, block: ir.Block) -> None:
        """Starts the copies of a step's tile, once it is in shared memory and what it is added to is there."""
        core = self.core
        core.writer.line(f"attn::named_sync({_full(self.layout, 'part')}, 160);")
        with core.scope("if (lane == 0)"):
            if self.layout.turns:
                core.writer.line(f"if (in_turn && batch) attn::semaphore_reached(before, (int)({STEP} - begun) + 1);")
            self.tiles.send_from(block, STAGE, "part")

    def sent(self) -> None:
        """Gives the tile's memory back, which TMA has read, and tells the next batch entry once all is written."""
        core, layout = self.core, self.layout
        free = f"barriers + {layout.free(layout.pipes - 1) - layout.barriers} + 8 * {STAGE}"
        core.writer.line("__syncwarp();", f"attn::warp_arrive({free}, lane == 0);")
        if layout.turns:
            with core.scope(f"if (lane == 0 && in_turn && batch + 1 < {core.arguments.size(self.kernel.over, 0)})"):
                core.writer.line("attn::bulk_wait<0>();", f"attn::semaphore_pass(turn, (int)({STEP} - begun) + 1);")
            core.writer.line("__syncwarp();")


def declare_turns(core: Core, kernel: PairsKernel) -> None:
    """Prints whether batch entries take turns, before the roles part; `gpu.outputs` knows the same."""
    entries, queries = core.arguments.size(kernel.over, 0), core.arguments.size(semaphore_tensor(kernel), 2)
    most, rows = _turns(kernel)
    core.writer.line(f"const bool in_turn = {entries} == 1 || ({entries} <= {most} && {entries} * {rows} <= {queries});")


def _turns(kernel: PairsKernel) -> tuple[int, int]:
    """Up to how many batch entries take turns, and the queries that each must have for each entry."""
    entries, steps = thresholds.TURNS
    return entries, steps * kernel.queries


def tell_tiles(core: Core, layout: BackwardLayout) -> None:
    """Prints how consumers hand over a tile that they have written, and published to TMA."""
    core.writer.line(f"attn::named_arrive({_full(layout, 'warpgroup')}, 160);")


def _full(layout: BackwardLayout, part: str) -> str:
    return f"{_FULL} + {part} + {layout.warpgroups} * {STAGE}"
