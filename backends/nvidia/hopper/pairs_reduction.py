"""The warps that add sums over keys to global memory by TMA while the consumers go on, in a fixed order where that is asked for."""

from contextlib import nullcontext

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_claims import STORED, print_claim
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, ops_of, semaphore_tensor
from attn_mlir.backends.nvidia.hopper.pairs_layout import ADDED_COLUMNS, BackwardLayout, WarpgroupSplit
from attn_mlir.backends.nvidia.hopper.pairs_listed import listed_semaphores
from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP, RolePrinter
from attn_mlir.backends.nvidia.hopper.pairs_turns import TileSender
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
    """One warp for each warpgroup of consumers, or for every other step, or one for all (`BackwardLayout.adders`).

    With `ordered`, programs add to the same queries one after the other. A number in global memory for each block of queries and part
    tells which program was the last. A program waits only for such that began before it, which run or have run.

    The one with the last keys comes first: under a causal mask that is the order in which programs get to the same queries. But then the
    longest programs are the last ones, and few thread blocks run them at the end. Where bounds of queries are known, steps go from the
    last queries to the first ones instead (`descending`), and programs from the first keys, which the most queries see, to the last ones.
    Where lists say who adds, see `pairs_listed`.
    """

    placed = ("tile.accumulate",)

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, ordered: bool) -> None:
        super().__init__(core, kernel, layout)
        self.ordered = ordered
        self._bound = ""
        self._listed = listed_semaphores(kernel) if ordered else None
        self.tiles = TileSender(core, kernel, layout) if layout.tile_warps else None
        if ordered:
            _check_order(kernel, layout, self._listed is None)

    def begin_program(self) -> None:
        """Prints what stands before a program's steps."""
        if self.tiles is not None:
            self.tiles.begin_program()

    def after_heads(self, block: ir.Block) -> None:
        if self.tiles is not None:
            self.tiles.after_heads(block)

    def before_heads(self, block: ir.Block) -> None:
        """Where the queries begin that see the next block of keys, or end that see the one before."""
        if not self.ordered:
            return
        core = self.core
        if self._listed is not None:
            self._listed.declare(core)
            return
        if core.packed:
            self._before_heads_of_sequence(block)
            return
        sign = "-" if self.layout.descending else "+"
        with core.scope(None):
            for op in ops_of(core.kernel.regions[0].blocks[0], "tile.program_id"):
                if ir.IntegerAttr(op.attributes["axis"]).value == 0:
                    core.scalars.bind(op.results[0], f"(block {sign} 1)")
            core.scalars.bind(self._first_key(), f"(key0 {sign} {self.kernel.keys})")
            loops = ops_of(block, "scf.for")
            self._bound = core.value(loops[-1].operands[1] if self.layout.descending else loops[0].operands[0])

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
            self._bound = core.value(ops_of(block, "scf.for")[0].operands[0])

    def _first_key(self) -> ir.Value:
        return self.kernel.key_loop.regions[0].blocks[0].arguments[0]

    def step(self, block: ir.Block) -> None:
        core, layout = self.core, self.layout
        parts = [str(part) for part in range(layout.warpgroups)] if layout.adds_by_one else ["part"]
        with core.scope(f"if ({STEP} % 2 == part)") if layout.key_sums else nullcontext():
            for part in parts:
                if self.tiles is not None:
                    self.tiles.send(block)
                self._add(block, part, part == parts[0], part == parts[-1])
                if self.tiles is not None:
                    self.tiles.sent()

    def _add(self, block: ir.Block, part: str, first: bool, last: bool) -> None:
        """Adds a part of a step's sums; waits for this program's turn before the first one, and passes it on after the last one."""
        core, layout = self.core, self.layout
        adds = {op.operands[2]: op for op in ops_of(block, "tile.accumulate") if op.operands[2] in layout.adds}
        op, semaphore = next(iter(adds.values())), "semaphore"
        claims = self.layout.claims
        if claims and first:
            self._semaphore(op, block)
            # Long before the sums are there, mostly.
            core.writer.line(f"int seen = lane == 0 ? attn::semaphore_seen({semaphore}) : {STORED};")
        # Beside a warpgroup that makes sums, whose steps are short, a turn that is asked for early is asked for more often: slower.
        early = self._looks and first
        if early:
            self._semaphore(op, block)
            with core.scope("if (lane == 0)"):
                self._wait(op, block, semaphore)
        core.writer.line(f"attn::named_sync({ADDED} + {part}, 160);")
        with core.scope("if (lane == 0)"):
            if self.ordered and (first or last) and not early:
                self._semaphore(op, block)
            if self.ordered and first and not early:
                self._wait(op, block, semaphore)
            if claims and first:
                print_claim(core, semaphore)
            self._send(list(adds.values()), part)
            core.writer.line("attn::bulk_commit();")
            # TMA has read the sums: the consumer may stage those of its next step there.
            core.writer.line("attn::bulk_wait_read<0>();", f"attn::barrier_arrive({added_barrier(layout)} + 8 * {part});")
            if self.ordered and last:
                self._look(op, block, semaphore)
                core.writer.line("attn::bulk_wait<0>();", f"attn::semaphore_pass({semaphore}, {self._number} + 1);")
            if claims and last:
                with core.scope("if (seen == 0)"):
                    core.writer.line("attn::bulk_wait<0>();", f"attn::semaphore_pass({semaphore}, {STORED});")
        core.writer.line("__syncwarp();")

    def _send(self, adds: list[ir.Operation], part: str) -> None:
        """Adds a part of the sums, or stores it where this program claimed the block of queries."""
        core = self.core
        if not self.layout.claims:
            for op in adds:
                add_staged(core, self.layout, op, part)
            return
        for condition, function in (("if (seen == 0)", "tma_store"), ("else", "tma_add")):
            with core.scope(condition):
                for op in adds:
                    add_staged(core, self.layout, op, part, function=function)

    @property
    def _number(self) -> str:
        """The number of the block of keys, of its sequence where such are packed."""
        return "key_block" if self.core.packed else "block"

    def _query(self, op: ir.Operation, block: ir.Block) -> str:
        """The first query of a step, of its sequence where such are packed."""
        return self.core.value(block.arguments[0] if self.core.packed else list(op.operands)[6])

    @property
    def _looks(self) -> bool:
        return self.ordered and not self.layout.key_sums and self._listed is None and not self.core.packed

    def begin(self) -> None:
        """Declares what is known of the next step's semaphore."""
        if self._looks:
            self.core.writer.line("const int *ahead = nullptr;", "int seen = 0;")

    def _look(self, op: ir.Operation, block: ir.Block, semaphore: str) -> None:
        """Reads the next step's semaphore while this step's sums are added: then its turn is known, mostly, without a wait.

        The fence with which the turn is passed on orders what was read before all that comes after.
        """
        if not self._looks:
            return
        query, queries, count = self._query(op, block), self.kernel.queries, self.layout.semaphores
        if self.layout.descending:
            exists, where = f"{query} >= {queries}", f"{semaphore} - {count}"
        else:
            length = self.core.arguments.size(semaphore_tensor(self.kernel), 2)
            exists, where = f"{query} + {queries} < {length}", f"{semaphore} + {count}"
        self.core.writer.line(f"if ({exists}) ahead = {where}, seen = attn::semaphore_now(ahead);")

    def _semaphore(self, op: ir.Operation, block: ir.Block) -> str:
        """Declares the address of a step's semaphore."""
        core, queries, count = self.core, self.kernel.queries, self.layout.semaphores
        over, query = semaphore_tensor(self.kernel), self._query(op, block)
        heads, length = core.arguments.size(over, 1), core.arguments.size(over, 2)
        batch, head = (core.value(value) for value in list(op.operands)[4:6])
        if core.packed:
            place = f"(first_semaphore + {query} / {queries}) * {heads} + {head}"
        else:
            place = f"({batch} * {heads} + {head}) * (({length} + {queries - 1}) / {queries}) + {query} / {queries}"
        place = f"({place}) * {count} + part" if count > 1 else place
        core.writer.line(f"int *const semaphore = {core.arguments.semaphores()} + {place};")
        return "semaphore"

    def _wait(self, op: ir.Operation, block: ir.Block, semaphore: str) -> None:
        """Waits until the program may add."""
        core, query = self.core, self._query(op, block)
        if self._listed is not None:
            self._listed.wait(core, semaphore)
            return
        known = lambda number: f" && !({semaphore} == ahead && seen == {number})" if self._looks else ""  # noqa: E731
        if self.layout.descending:
            turn = f"attn::semaphore_wait({semaphore}, {self._number});"
            core.writer.line(f"if (block && {query} < {self._bound}{known(self._number)}) {turn}")
            return
        rows = "key_rows" if core.packed else core.arguments.size(self.kernel.over, 2)
        last = f"key0 + {self.kernel.keys} >= {rows}"
        number = f"{self._number} + 2"
        core.writer.line(f"if (!({last} || {self._bound} > {query}){known(number)}) attn::semaphore_wait({semaphore}, {number});")


def add_staged(
    core: Core, layout: BackwardLayout, op: ir.Operation, part: str, late: tuple[str, str] | None = None, function: str = "tma_add"
) -> None:
    """Prints the additions of a warpgroup's part of the sums for a tensor, from shared memory by TMA, or stores (`function`).

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
            core.writer.line(f"attn::{function}({map_}, shared + {offset} + {buffer.bytes} * {part}, {column}, {where});")


def stage_rows(core: Core, name: str, columns: int, address: str, spread: bool = False) -> None:
    """Writes sums [64, columns] in f32 to shared memory, in swizzle atoms of 32 columns.

    Two pairs of columns change places in odd rows, so that rows do not share banks. Where rows are `spread` (`BackwardLayout.spread`), the
    four of half a warp are two apart, and share none.
    """
    with core.scope(""):
        if spread:
            core.writer.line(
                "const unsigned own = attn::opaque(threadIdx.x) % 128; // keeps what follows out of registers until here",
                "const unsigned own_row = own / 32 * 16 + own / 4 % 4 * 2 + own / 16 % 2;",
                "const uint32_t add_chunk = (own % 4 / 2 ^ own_row & 7) * 16;",
                f"const uint32_t to = {address} + own_row * 128 + own % 2 * 8;",
            )
            with core.unrolled("c", columns // 8), core.unrolled("h", 2):
                at = "to + c / 4 * 8192 + h * 1024 + (add_chunk ^ c % 4 * 32)"
                core.writer.line(f"attn::store_shared2({at}, {name}[4 * c + 2 * h], {name}[4 * c + 2 * h + 1]);")
            return
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
    packed = "lengths" in ir.DictAttr(kernel.function.attributes["tile.kernel"])
    reason = without_order(loops, keys, kernel.present, packed)
    if reason:
        raise UnsupportedError(f"hopper: {reason}")


def may_descend(kernel: PairsKernel) -> bool:
    """Whether the blocks of keys that add to a block of queries follow each other, in loops over queries alone that go either way."""
    loops = ops_of(kernel.query_loop, "scf.for", "scf.if")
    fields = ir.DictAttr(kernel.function.attributes["tile.kernel"])
    plain = all(op.name == "scf.for" and not ops_of(op.regions[0].blocks[0], "scf.for", "scf.if") for op in loops)
    return plain and "listed" not in fields
