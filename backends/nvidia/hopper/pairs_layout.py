"""Shared memory, registers and warpgroups of a kernel of pairs."""

from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel
from attn_mlir.backends.nvidia.hopper.pairs_roles import CONSUMERS, Roles
from attn_mlir.backends.nvidia.hopper.pairs_uses import WeightUses, uses_of
from attn_mlir.backends.nvidia.hopper.stores import through_tma
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, atoms, round_up, tile_bytes
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker

REGISTERS = thresholds.PAIR_REGISTERS
NEIGHBOURS = thresholds.NEIGHBOUR_REGISTERS
WINDOW_REGISTERS = thresholds.WINDOW_REGISTERS
KEY_SUMS = thresholds.KEY_SUM_REGISTERS
ADDED_COLUMNS = 32
"""Columns of f32 in a swizzle atom of shared memory from which TMA adds to global memory: 128 bytes."""
REDUCTION_WARPS = 2
"""Warps of the producer that add to global memory, one for each warpgroup of consumers."""
RESERVED = 1024
"""Bytes of shared memory that the GPU keeps for each thread block."""
_BARRIER_BYTES = 512
"""Enough for all barriers."""


@dataclass(frozen=True)
class SharedBuffer:
    """A tile in shared memory, `copies` times: `offset` from the start, `bytes` of one copy. `element`: that of a window."""

    name: str
    offset: int
    bytes: int
    rows: int
    columns: int
    copies: int = 1
    element: str = ""


@dataclass(frozen=True)
class WarpgroupSplit:
    """How the warpgroups share a product [queries, columns] that sums over keys.

    Each has `blocks` blocks of 64 queries (number `warpgroup + warpgroups * n` if `by_rows`, else all) and `columns` columns, the first
    one `columns * warpgroup` unless `by_rows`. If it is `transposed`, a warpgroup makes [64 columns, queries] of it, all queries at once,
    for `blocks` blocks of columns, number `warpgroup + warpgroups * n`.
    """

    blocks: int
    columns: int
    by_rows: bool
    transposed: bool = False


class BackwardLayout:
    """Where everything is.

    `keys`, `queries`: buffers by the tensor they are read from; `exchange`: weights that all warpgroups need; `adds`: by tensor, sums
    over keys on their way to memory, a part for each warpgroup; `columns`: values of query rows, 4 bytes each, `column_slots` of them
    for a query; `results`: sums over queries in 16 bits on their way to memory, a part for each warpgroup, as many copies as there are
    such sums or as fit. Barriers (8 bytes) follow: one for the keys, then for each tensor of queries, and for the values of rows if
    there are any, one "full" and one "free" for each stage; one for each warpgroup's part of `adds`, at `added`; two for programs to
    come and two that the roles have seen them, at `next`; one that the keys are free again, at `keys_free`. The last 16 bytes keep
    the number of heads of a group and two numbers of programs.
    """

    PIECE_SLOTS = 4
    """Rounds of pieces of programs (`pairs_pieces`) that shared memory tells. When a piece is told, all warps have begun the second round
    before: nobody reads the piece of the fourth one any more."""

    def __init__(
        self,
        kernel: PairsKernel,
        stages: int,
        exchanges: int,
        slots: tuple[int, bool],
        staged_adds: bool,
        limit: int,
        *,
        key_sums: bool = False,
        single_rows: bool = False,
        roles: Roles | None = None,
    ) -> None:
        """`slots`: values of each query row, and whether lanes of the consumers make bits of dropout for their warp."""
        column_slots, lanes = slots
        self.key_sums = key_sums
        """Whether a warpgroup of its own makes the sums over keys (`pairs_key_sums`): two copies of `adds`, for steps in turn."""
        self.kernel, self.stages, self.exchanges, self.column_slots = kernel, stages, exchanges, column_slots
        self.roles = roles
        """Of consumers that have a weight each (`pairs_weights`), and all keys of the block."""
        self.warpgroups = CONSUMERS if roles else kernel.keys // ROWS
        self.reduction_warps = False
        """Whether warps of the producer add sums over keys to memory, or a thread of each warpgroup of consumers."""
        self.late = False
        """Whether consumers make the sums over keys a step late (`pairs_late`)."""
        self.claims = False
        """Whether the first program that adds to a block of queries stores its sums (`pairs_claims`)."""
        self.descending = False
        """Whether steps go from the last queries of a block of keys to the first ones (`pairs_reduction`)."""
        self.early = False
        """Whether consumers read row values and compute half of the exponentials before they wait for the second product."""
        self.apart = False
        """Whether the second consumer begins a program half a step behind the first one, where sums over keys are late."""
        self.turned = is_transposed(kernel.queries)
        """Whether weights lie in `exchange` as rows of queries, which need no transposing product, or as rows of keys."""
        self.held = 0
        """Steps of 16 columns of keys and of values that consumers hold in registers, where sums over keys are late."""
        self.occupancy = 1
        """Thread blocks on a multiprocessor, with so many times fewer registers and less shared memory each."""
        self._size = 0
        self.keys: dict[ir.Value, SharedBuffer] = {}
        self.queries: dict[ir.Value, SharedBuffer] = {}
        for memory in kernel.memory(kernel.key_loads):
            self.keys[memory] = self._buffer(kernel.keys, memory, 1)
        for memory in kernel.memory(kernel.step_ops("tile.load")):
            self.queries[memory] = self._buffer(kernel.queries, memory, stages)
        exchanged = len({op.operands[0] for op in kernel.step_ops("tile.accumulate")})
        size = tile_bytes(kernel.queries, kernel.keys) if is_transposed(kernel.queries) else tile_bytes(kernel.keys, kernel.queries)
        self.handed = self._take("handed", kernel.keys, kernel.queries, 4 * kernel.keys * kernel.queries, 1) if roles else None
        """Scores that the first of these consumers hands over to the second one, in the order of their threads."""
        self.exchange = [self._take("weights", kernel.keys, kernel.queries, size, exchanges) for _ in range(exchanged)]
        self.adds: dict[ir.Value, SharedBuffer] = {}
        for op in kernel.step_ops("tile.accumulate"):
            target = op.operands[2]
            split = self.split(target)
            if staged_adds and self.warpgroups <= REDUCTION_WARPS and target not in self.adds and split.columns % ADDED_COLUMNS == 0:
                rows = kernel.queries if split.transposed else ROWS
                self.adds[target] = self._take("added", rows, split.columns, split.blocks * split.columns * rows * 4, self.warpgroups)
        if kernel.step_ops("tile.load_window"):
            self._size = round_up(self._size, 1024)
        self.windows = [self._window(op.results[0].type) for op in kernel.step_ops("tile.load_window")]
        """Windows of captured tensors, in their order in a step: swizzle atoms of 128 bytes of keys, queries along `rows`."""
        self.by_tiles = True
        """Whether gradients of dense tensors are added by tiles, where they can be."""
        self.tile_warps = self.turns = False
        """Whether warps of the producer send these, and batch entries that share a tensor take turns (`pairs_turns`)."""
        self.single_rows = single_rows
        """Whether there is room for the values of query rows of one step alone: those of the next one wait until they were read."""
        copies = 1 if single_rows else stages
        self.columns = self._take("columns", column_slots, kernel.queries, 4 * column_slots * kernel.queries, copies)
        parts = -(-kernel.keys // ROWS)
        self.words = self._take("words", kernel.queries, kernel.keys, parts * kernel.queries * 8, 1) if lanes else None
        """Bits of dropout (`pairs_dropout`) in the order of the consumers' lanes: each warp's own, 4 bytes for two queries and 16 keys."""
        size = kernel.keys + kernel.queries - 1
        self.bands = [self._take("band", 1, size, round_up(4 * size, 16), stages) for _ in kernel.step_ops("tile.band")]
        """Numbers of diagonals: number n is that of key - query = n - (queries - 1)."""
        self.scatter = self._take("scattered", kernel.keys, 1, 16 * kernel.keys if kernel.scatters else 0, 1)
        self.among_adds = False
        """Whether `results` are where `adds` are, which the same threads send to memory."""
        self.among_keys: tuple[int, int] | None = None
        """Where results of consumers with a weight each pass through the memory of keys, if there is no other room."""
        self.meets = False
        """Whether these are not in the tile that a consumer alone multiplies, so that both meet before."""
        self.results = self._results(kernel, limit)
        self.barriers = self._size
        self.pipes = len(self.queries) + (column_slots > 0)
        self.added = self._size + 8 * (1 + 2 * stages * self.pipes)
        self.next = self.added + 8 * self.warpgroups
        self.keys_free = self.next + 32
        self.group = self.keys_free + 8
        self.next_program = self.group + 8
        self.bytes = self.next_program + 8
        self.pieces_at = round_up(self.bytes, 16)
        self.pieces = 0
        """Where is known how programs are shared (`pairs_pieces`), `pieces_at` then; 0 where they are not."""

    def _results(self, kernel: PairsKernel, limit: int) -> SharedBuffer | None:
        """Room for results that leave through TMA, where there is some beside barriers."""
        targets = [op.operands[1] for op in kernel.stores if through_tma(op.operands[1].type)]
        if not targets:
            return None
        columns = max(64 * atoms(head_columns(target)) for target in targets)
        size = tile_bytes(ROWS, columns) * self.warpgroups
        start = round_up(self._size, 1024)
        if self.roles and start + size > limit - _BARRIER_BYTES:
            return self._among_keys(kernel)
        copies = min(len(targets), (limit - _BARRIER_BYTES - start) // size)
        if copies <= 0 and self.key_sums:
            return None
        if copies <= 0:
            added = next(iter(self.adds.values()), None)
            if added is None or len(self.adds) > 1 or added.bytes * self.warpgroups < size or added.offset % 1024:
                return None
            self.among_adds = True
            return SharedBuffer("results", added.offset, size, ROWS * self.warpgroups, columns)
        self._size = start
        return self._take("results", ROWS * self.warpgroups, columns, size, copies)

    def _among_keys(self, kernel: PairsKernel) -> SharedBuffer | None:
        """The memory of keys as that of results: each consumer's in the tile that it alone multiplies, where those are large enough."""
        dots = kernel.step_ops("tile.dot")
        memory = {op.results[0]: op.operands[0] for op in kernel.key_loads}
        assert self.roles is not None
        own = [self.keys[memory[dots[number].operands[0]]] for number in self.roles.products]
        sizes = {self.roles.of_sum(op.operands[0]): tile_bytes(ROWS, 64 * atoms(head_columns(op.operands[1]))) for op in kernel.stores}
        self.meets = own[0] == own[1] or any(size > own[role].bytes for role, size in sizes.items())
        if self.meets and sum(sizes.values()) > sum(buffer.bytes for buffer in self.keys.values()):
            return None
        self.among_keys = (0, sizes.get(0, 0)) if self.meets else (own[0].offset, own[1].offset)
        return own[0]

    def result_at(self, store: ir.Operation) -> int:
        """Where a consumer that has a weight puts its sum on the way to memory."""
        assert self.roles is not None and self.results is not None
        role = self.roles.of_sum(store.operands[0])
        return self.among_keys[role] if self.among_keys else self.results.offset + self.results.bytes // CONSUMERS * role

    def _buffer(self, rows: int, memory: ir.Value, copies: int) -> SharedBuffer:
        columns = head_columns(memory)
        return self._take("tile", rows, columns, tile_bytes(rows, columns), copies)

    def _window(self, type_: ir.Type) -> SharedBuffer:
        element = ir.RankedTensorType(type_).element_type
        size = -(-self.kernel.keys * element.width // 8 // 128) * 128 * self.kernel.queries
        return self._take("window", self.kernel.queries, self.kernel.keys, size, self.stages, str(element))

    def _take(self, name: str, rows: int, columns: int, size: int, copies: int, element: str = "") -> SharedBuffer:
        buffer = SharedBuffer(name, self._size, size, rows, columns, copies, element)
        self._size += size * copies
        return buffer

    @property
    def row_warps(self) -> int:
        """Warps of the producer that compute the values of query rows: of steps of 80, those that have nothing else to do."""
        apart = self.late and is_transposed(self.kernel.queries) and self.column_slots
        return min(-(-self.kernel.queries // 32), 3 - self.adders) if apart else 1

    @property
    def spread(self) -> bool:
        """Whether row i of eight in `exchange` is that of query i % 4 * 2 + i / 4, so that lanes stage sums as they are (`stage_rows`)."""
        targets = {op.operands[2] for op in self.kernel.step_ops("tile.accumulate")}
        return self.turned and self.late and not is_transposed(self.kernel.queries) and targets == set(self.adds)

    @property
    def by_words(self) -> bool:
        """Whether words of descriptors are added to apart (`advance` in attn_wgmma.cuh), which is slower elsewhere."""
        return not is_transposed(self.kernel.queries) and (self.late or bool(self.pieces))

    @property
    def is_full(self) -> bool:
        """Whether consumers have no register left in a step, so that what is rare is computed again."""
        return bool(self.pieces) or self.adds_by_one

    @property
    def adders(self) -> int:
        """Warps of the producer that add sums over keys to memory.

        One for each warpgroup of consumers, but one alone beside several that compute the values of rows. A warpgroup that makes these
        sums has two, for steps in turn.
        """
        if not self.reduction_warps:
            return 0
        return 1 if self.late and is_transposed(self.kernel.queries) and self.column_slots else self.warpgroups

    @property
    def adds_by_one(self) -> bool:
        """Whether one of those warps adds the parts of all warpgroups."""
        return 0 < self.adders < self.warpgroups

    @property
    def semaphores(self) -> int:
        """Semaphores of each block of queries, where sums over keys are added in a fixed order: of each part that is added alone."""
        return 1 if self.key_sums or self.adds_by_one else self.warpgroups

    @property
    def threads(self) -> int:
        return 128 * (self.warpgroups + self.key_sums + 1)

    def split(self, target: ir.Value) -> WarpgroupSplit:
        """How warpgroups share the sums for a tensor; one that makes them all has all columns."""
        columns = head_columns(target)
        if self.key_sums:
            return WarpgroupSplit(1, round_up(columns, ADDED_COLUMNS), True)
        return split_rows(self.kernel.queries, columns, self.warpgroups)

    def rows_at(self, stage: str) -> str:
        """The address of the values of query rows."""
        return f"shared + {self.columns.offset}" + ("" if self.single_rows else f" + {self.columns.bytes} * {stage}")

    def full(self, pipe: int) -> int:
        """Offset of the first of the "full" barriers of a pipe; one for each stage follows."""
        return self.barriers + 8 * (1 + 2 * self.stages * pipe)

    def free(self, pipe: int) -> int:
        """Offset of the first "free" barrier."""
        return self.full(pipe) + 8 * self.stages


def head_columns(memory: ir.Value) -> int:
    """The head dimension of a tensor in memory."""
    return ir.MemRefType(memory.type).shape[-1]


def is_transposed(queries: int) -> bool:
    """Whether sums over keys are products [columns, queries], as there is no matrix instruction with that many rows."""
    return queries % ROWS > 0


def split_rows(queries: int, columns: int, warpgroups: int) -> WarpgroupSplit:
    """Shares by rows where there are enough, else by columns. Raises UnsupportedError where neither works."""
    if is_transposed(queries):
        if queries % 16 or columns % (ROWS * warpgroups):
            text = f"hopper: blocks of pairs have a multiple of {ROWS} queries, not {queries}"
            raise UnsupportedError(f"{text} (of 16 where each warpgroup has multiples of {ROWS} columns, not {columns} for {warpgroups})")
        return WarpgroupSplit(columns // (ROWS * warpgroups), ROWS, False, True)
    blocks = queries // ROWS
    if blocks % warpgroups == 0:
        return WarpgroupSplit(blocks // warpgroups, round_up(columns, ADDED_COLUMNS), True)
    padded = round_up(columns, 16) if columns <= 64 else 64 * atoms(columns)
    part = padded // warpgroups
    if padded % warpgroups or part % 8 or (part > 64 and part % 64) or 64 % min(part, 64):
        raise UnsupportedError(f"hopper: {columns} columns are not shared by {warpgroups} warpgroups")
    return WarpgroupSplit(blocks, part, False)


def registers(kernel: PairsKernel, warpgroups: int) -> int:
    """About how many registers a thread of a consumer needs."""
    half, sums = kernel.queries // 2, 0
    for fill in kernel.fills:
        sums += round_up(ir.RankedTensorType(fill.results[0].type).shape[1], 8) // 2
    products = half * len(kernel.step_ops("tile.dot"))
    uses = uses_of(kernel.steps[0])[0] if kernel.steps else WeightUses()
    tiles = [r for op in kernel.step_ops("tile.map") for r in op.results if ir.RankedTensorType(r.type).rank == 2]
    tiles = [r for r in tiles if uses.in_registers(r)]
    weights = sum(half if str(ir.RankedTensorType(r.type).element_type) == "f32" else half // 2 for r in tiles)
    added = 0
    for op in {op.operands[2]: op for op in kernel.step_ops("tile.accumulate")}.values():
        part = split_rows(kernel.queries, head_columns(op.operands[2]), warpgroups)
        added += part.blocks * (kernel.queries if part.transposed else part.columns) // 2
    return sums + max(products, weights + added) + thresholds.ADDRESS_REGISTERS


def plan_layout(
    kernel: PairsKernel,
    target: NvidiaTarget,
    slots: tuple[int, bool],
    stages: int | None = None,
    key_sums: bool = False,
    occupancy: int | None = None,
) -> BackwardLayout:
    """The layout with as many stages as fit, or two where a warpgroup makes the sums over keys.

    Over lists of keys a single warpgroup of consumers has a neighbour, where two thread blocks fit on a multiprocessor, or `occupancy`, and
    nothing is added in memory.

    Raises UnsupportedError when nothing fits.
    """
    if kernel.keys % ROWS or kernel.keys // ROWS not in REGISTERS:
        raise UnsupportedError(f"hopper: blocks of pairs have 64, 128 or 192 keys, not {kernel.keys}")
    warpgroups = kernel.keys // ROWS
    check_columns(kernel)
    needed = registers(kernel, warpgroups)
    held = sum(round_up(head_columns(memory), 16) // 4 for memory in kernel.memory(kernel.key_loads))
    if key_sums and needed + held > KEY_SUMS[0]:
        raise too_many(kernel, needed + held, KEY_SUMS[0])
    if needed > thresholds.SPARE_REGISTERS[warpgroups]:
        raise too_many(kernel, needed, thresholds.SPARE_REGISTERS[warpgroups])
    layouts = ((2, 2, True), (2, 1, True), (1, 1, True), (2, 1, False), (1, 1, False))
    if kernel.step_ops("tile.load_window") or kernel.step_ops("tile.band"):  # these should come ahead
        layouts = ((2, 2, True), (2, 1, True), (2, 1, False))
    listed = "listed" in ir.DictAttr(kernel.function.attributes["tile.kernel"]) and not kernel.step_ops("tile.accumulate")
    able = warpgroups == 1 and needed <= thresholds.NEIGHBOUR_SPARE and len(layouts) > 3
    tried = [(2, *layout) for layout in layouts if layout[2]] if able and (listed or occupancy == 2) else []
    tried += [(1, *layout) for layout in (layouts[:1] if key_sums else layouts)]
    for together, count, exchanges, staged_adds in tried:
        # Beside windows the values of rows may be what is too much for sums over keys to leave through TMA.
        for single_rows in (False, True) if len(layouts) == 3 and staged_adds and exchanges == 1 else (False,):
            if stages in (None, count) and occupancy in (None, together):
                room = (target.shared_bytes + RESERVED) // together - RESERVED
                layout = BackwardLayout(kernel, count, exchanges, slots, staged_adds, room, key_sums=key_sums, single_rows=single_rows)
                layout.occupancy = together
                if layout.bytes <= room:
                    return layout
    raise UnsupportedError("hopper: the tiles of pairs do not fit in shared memory")


def check_columns(kernel: PairsKernel) -> None:
    """Raises UnsupportedError for head dimensions that products, and results through shared memory, have in no whole instructions."""
    for memory in (*kernel.memory(kernel.key_loads), *kernel.memory(kernel.step_ops("tile.load"))):
        if head_columns(memory) % 8:
            raise UnsupportedError(f"hopper: head dimensions are multiples of 8, got {head_columns(memory)}")


def too_many(kernel: PairsKernel, needed: int, spare: int) -> UnsupportedError:
    """Says what registers are needed for, and where the user asks for it."""
    columns = max(head_columns(memory) for memory in (*kernel.memory(kernel.key_loads), *kernel.memory(kernel.step_ops("tile.load"))))
    scatters = kernel.step_ops("tile.scatter_add")
    what = "with the gradient of a captured tensor whose index depends on the query" if scatters else f"of head dimension {columns}"
    text = f"hopper: a backward pass {what} needs about {needed} registers a thread, and there are {spare}"
    return UnsupportedError(text, _reader(scatters[0])) if scatters else UnsupportedError(text)


def _reader(scatter: ir.Operation) -> ir.Operation:
    """What computes the place that a sum over pairs goes to: the user's line that reads there."""
    yielded = list(scatter.regions[0].blocks[0].operations[-1].operation.operands)
    return next((op for op in map(maker, reversed(yielded)) if op is not None), scatter)
