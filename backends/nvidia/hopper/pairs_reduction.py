"""The warps that add sums over keys to global memory by TMA while the consumers go on, in a fixed order where that is asked for."""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import ADDED_COLUMNS, BackwardLayout, WarpgroupSplit
from attn_mlir.backends.nvidia.hopper.pairs_listed import listed_semaphores
from attn_mlir.backends.nvidia.hopper.pairs_loop import RolePrinter
from attn_mlir.backends.nvidia.ordered_sums import without_order
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

ADDED = 3
"""Named barrier of the first warpgroup: its sums are in shared memory."""


def added_barrier(layout: BackwardLayout) -> str:
    """The barrier at which the first warpgroup's sums have been read from shared memory."""
    return f"barriers + {layout.added - layout.barriers}"


def part_block(layout: BackwardLayout, split: WarpgroupSplit, number: int, warpgroup: str = "warpgroup") -> str:
    """Which block of 64 queries a warpgroup's part `number` is."""
    if layout.key_sums:
        return str(number)
    return f"({warpgroup} + {layout.warpgroups * number})" if split.by_rows else str(number)


class ReductionPrinter(RolePrinter):
    """One warp for each warpgroup of consumers.

    With `ordered`, programs add to the same queries one after the other, the one with the last keys first: under a causal mask that is
    the order in which they get there. A number in global memory for each block of queries and warpgroup tells which program was the
    last. A program waits only for such that began before it, which run or have run. Where lists say who adds, see `pairs_listed`.
    """

    placed = ("tile.accumulate",)

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, ordered: bool) -> None:
        super().__init__(core, kernel, layout)
        self.ordered = ordered
        self._next_begin = ""
        self._listed = listed_semaphores(kernel) if ordered else None
        if ordered:
            _check_order(kernel, layout, self._listed is None)

    def before_heads(self, block: ir.Block) -> None:
        """Where the queries begin that see the next block of keys."""
        if not self.ordered:
            return
        core = self.core
        if self._listed is not None:
            self._listed.declare(core)
            return
        if core.packed:
            self._before_heads_of_sequence(block)
            return
        with core.scope(None):
            for op in ops_of(core.kernel.regions[0].blocks[0], "tile.program_id"):
                if ir.IntegerAttr(op.attributes["axis"]).value == 0:
                    core.scalars.bind(op.results[0], "(block + 1)")
            core.scalars.bind(self._first_key(), f"(key0 + {self.kernel.keys})")
            self._next_begin = core.value(ops_of(block, "scf.for")[0].operands[0])

    def _before_heads_of_sequence(self, block: ir.Block) -> None:
        """The same, where a program is an item of a list, with how many keys its sequence has, and which of its blocks this is."""
        core, keys, work = self.core, self.kernel.keys, self.core.arguments.values[-1]
        numbers = ir.DictAttr(core.kernel.attributes["tile.kernel"])["lengths"]
        lengths = core.arguments.values[ir.DenseI64ArrayAttr(numbers)[0]]
        sequence = core.arguments.element(work, ["block", "0"])
        core.writer.line(
            f"const int key_rows = {core.arguments.element(lengths, [sequence])}, key_block = key0 / {keys};",
            f"const int first_semaphore = {core.arguments.element(work, ['block', '3'])};",
        )
        with core.scope(None):
            core.scalars.bind(self._first_key(), f"(key0 + {keys})")
            core.scalars.bind(self.kernel.key_loop.operands[1], f"min(key0 + {2 * keys}, key_rows)")
            self._next_begin = core.value(ops_of(block, "scf.for")[0].operands[0])

    def _first_key(self) -> ir.Value:
        return self.kernel.key_loop.regions[0].blocks[0].arguments[0]

    def step(self, block: ir.Block) -> None:
        core, layout = self.core, self.layout
        adds = {op.operands[2]: op for op in ops_of(block, "tile.accumulate") if op.operands[2] in layout.adds}
        core.writer.line(f"attn::named_sync({ADDED} + part, 160);")
        with core.scope("if (lane == 0)"):
            semaphore = self._wait(next(iter(adds.values())), block) if self.ordered else ""
            for op in adds.values():
                add_staged(core, layout, op, "part")
            core.writer.line("attn::bulk_commit();")
            # TMA has read the sums: the consumer may stage those of its next step there.
            core.writer.line("attn::bulk_wait_read<0>();", f"attn::barrier_arrive({added_barrier(layout)} + 8 * part);")
            if self.ordered:
                core.writer.line("attn::bulk_wait<0>();", f"attn::semaphore_pass({semaphore}, {self._number} + 1);")
        core.writer.line("__syncwarp();")

    @property
    def _number(self) -> str:
        """The number of the block of keys, of its sequence where such are packed."""
        return "key_block" if self.core.packed else "block"

    def _wait(self, op: ir.Operation, block: ir.Block) -> str:
        """Waits until the program may add; returns the address of the semaphore."""
        core, queries = self.core, self.kernel.queries
        _, _, _, _, batch, head, row, _ = list(op.operands)
        over = semaphore_tensor(self.kernel)
        heads, length = core.arguments.size(over, 1), core.arguments.size(over, 2)
        query = core.value(block.arguments[0] if core.packed else row)
        if core.packed:
            place, rows = f"(first_semaphore + {query} / {queries}) * {heads} + {core.value(head)}", "key_rows"
        else:
            blocks = f"({length} + {queries - 1}) / {queries}"
            place = f"({core.value(batch)} * {heads} + {core.value(head)}) * ({blocks}) + {query} / {queries}"
            rows = core.arguments.size(self.kernel.over, 2)
        semaphores = core.arguments.semaphores()
        if self._listed is not None:
            core.writer.line(f"int *const semaphore = {semaphores} + ({place}) * {self.layout.warpgroups} + part;")
            self._listed.wait(core, "semaphore")
            return "semaphore"
        last = f"key0 + {self.kernel.keys} >= {rows}"
        core.writer.line(
            f"int *const semaphore = {semaphores} + ({place}) * {self.layout.warpgroups} + part;",
            f"if (!({last} || {self._next_begin} > {query})) attn::semaphore_wait(semaphore, {self._number} + 2);",
        )
        return "semaphore"


def add_staged(core: Core, layout: BackwardLayout, op: ir.Operation, part: str, late: tuple[str, str] | None = None) -> None:
    """Prints the additions of a warpgroup's part of the sums for a tensor, from shared memory by TMA.

    `late`: names of the row and head to which those of a step before belong.
    """
    _, _, target, _, batch, head, row, _ = list(op.operands)
    buffer, split = layout.adds[target], layout.split(target)
    place = [*late, core.value(batch)] if late else [core.value(value) for value in (row, head, batch)]
    map_ = core.arguments.descriptor(target, ADDED_COLUMNS, buffer.rows)
    for number in range(split.blocks):
        for atom in range(split.columns // ADDED_COLUMNS):
            offset = buffer.offset + number * split.columns * 4 * buffer.rows + atom * buffer.rows * 4 * ADDED_COLUMNS
            first = ADDED_COLUMNS * atom + (split.columns * layout.warpgroups * number if split.transposed else 0)
            column = f"{first}" + ("" if split.by_rows else f" + {split.columns} * {part}")
            query = f"{place[0]} + 64 * {0 if split.transposed else part_block(layout, split, number, part)}"
            where = core.arguments.copied_at(target, query, place[1], place[2])
            core.writer.line(f"attn::tma_add({map_}, shared + {offset} + {buffer.bytes} * {part}, {column}, {where});")


def stage_rows(core: Core, name: str, columns: int, address: str) -> None:
    """Writes sums [64, columns] in f32 to shared memory, in swizzle atoms of 32 columns.

    Two pairs of columns change places in odd rows, so that rows do not share banks.
    """
    with core.scope(""):
        core.writer.line(
            "const unsigned own = attn::opaque(threadIdx.x) % 128; // keeps what follows out of registers until here",
            "const unsigned own_row = own / 32 * 16 + own % 32 / 4;",
            "const bool odd_row = own_row & 1;",
            "const uint32_t add_chunk = ((odd_row ? 4 : 0) ^ own % 4 / 2 ^ own_row & 7) * 16;",
            f"const uint32_t to = {address} + own_row * 128 + own % 2 * 8;",
        )
        with core.unrolled("c", columns // 16), core.unrolled("h", 2):
            core.writer.line(
                "const int first = 4 * (4 * (c / 2) + c % 2) + 2 * h, second = first + 8;",
                "const uint32_t at = to + c / 2 * 8192 + h * 1024, chunk = c % 2 * 32;",
                f"attn::store_shared2(at + (add_chunk ^ chunk), odd_row ? {name}[second] : {name}[first], "
                f"odd_row ? {name}[second + 1] : {name}[first + 1]);",
                f"attn::store_shared2(at + (add_chunk ^ chunk ^ 64), odd_row ? {name}[first] : {name}[second], "
                f"odd_row ? {name}[first + 1] : {name}[second + 1]);",
            )


def semaphore_tensor(kernel: PairsKernel) -> ir.Value:
    """A tensor of queries: there is a counter for each block of its rows and each warpgroup."""
    return kernel.step_ops("tile.load")[0].operands[0]


def _check_order(kernel: PairsKernel, layout: BackwardLayout, follow: bool) -> None:
    """Raises UnsupportedError where sums do not leave through TMA, or blocks of keys have to `follow` each other without a gap, and do not.

    These are the blocks that add to a block of queries.
    """
    if any(op.operands[2] not in layout.adds for op in kernel.step_ops("tile.accumulate")) or kernel.step_ops("tile.scatter_add"):
        raise UnsupportedError("hopper: no fixed order of what is added element by element")
    if not follow:
        return
    loops = ops_of(kernel.query_loop, "scf.for")
    keys = kernel.key_loop.regions[0].blocks[0].arguments[0]
    reason = without_order(loops, keys, kernel.present)
    if reason:
        raise UnsupportedError(f"hopper: {reason}")
