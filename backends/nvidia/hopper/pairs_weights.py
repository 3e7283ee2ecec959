"""Consumers that have a weight each: for sums over queries of more columns together than a warpgroup has registers for.

Both warpgroups have the same 64 keys. The first one multiplies scores S^T = K Q^T, hands them over through shared memory, and makes
dV += P^T dO; the second one multiplies dP^T = V dO^T, and makes dK += dS^T Q. So the four products of dK and dV are made once, where a
kernel for each sum makes five, and each warpgroup has all columns of one sum, with its weights in registers as operand A.
"""

from collections.abc import Mapping

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, as_int, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer, check_columns, too_many
from attn_mlir.backends.nvidia.hopper.pairs_loop import STAGE, staged_values, step_limit
from attn_mlir.backends.nvidia.hopper.pairs_map import PairMap, ProductsInFlight, QueryValues
from attn_mlir.backends.nvidia.hopper.pairs_results import RESULTS
from attn_mlir.backends.nvidia.hopper.pairs_roles import CONSUMERS, roles_of
from attn_mlir.backends.nvidia.hopper.pairs_step import Consumers
from attn_mlir.backends.nvidia.hopper.pairs_uses import WeightUses
from attn_mlir.backends.nvidia.hopper.pairs_values import column_values
from attn_mlir.backends.nvidia.hopper.stores import through_tma
from attn_mlir.backends.nvidia.hopper.tiles import RegTile, round_up
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

HEADER = "attn_handed.cuh"
"""The file of helpers that hand scores over."""
HANDED, TAKEN, DONE = 12, 13, 14
"""Named barriers: scores are where the second consumer takes them over; it has done so; both need no keys any more."""
_BOTH = 256
WEIGHTS, BEFORE = "weights", "sum_stage"
"""Names of what each step makes for its sum, and of the stage of the step before; it is -1 in a program's first step."""


def plan_weights(kernel: PairsKernel, target: NvidiaTarget, slots: int, stages: int | None) -> BackwardLayout | None:
    """The layout of such consumers, with as many stages as fit; None for kernels of another form, or of narrower sums.

    `slots`: values of each query row. Each consumer makes bits of dropout for itself: both have the same keys. Raises UnsupportedError
    when nothing fits.
    """
    columns = [ir.RankedTensorType(fill.results[0].type).shape[1] for fill in kernel.fills]
    roles = roles_of(kernel) if sum(columns) > thresholds.SUM_COLUMNS else None
    if roles is None:
        return None
    check_columns(kernel)
    half, spare = kernel.queries // 2, thresholds.SPARE_REGISTERS[CONSUMERS]
    needed = round_up(max(columns), 8) // 2 + 2 * half + half // 2 + thresholds.ADDRESS_REGISTERS
    if needed > spare:
        raise too_many(kernel, needed, spare)
    for count in (2, 1):
        if stages in (None, count):
            layout = BackwardLayout(kernel, count, 0, (slots, False), False, target.shared_bytes, roles=roles)
            tiles = any(through_tma(op.operands[1].type) for op in kernel.stores)
            if layout.bytes <= target.shared_bytes and (layout.results is not None or not tiles):
                return layout
    raise UnsupportedError("hopper: the tiles of pairs do not fit in shared memory")


class WeightConsumer(Consumers):
    """One of both warpgroups, by its number `role`."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, element: str, role: int) -> None:
        super().__init__(core, kernel, layout, element)
        assert layout.roles is not None
        self.roles, self.role = layout.roles, role

    def accumulators(self) -> None:
        """Declares its own sum over queries."""
        core = self.core
        for fill in self.kernel.fills:
            columns = ir.RankedTensorType(fill.results[0].type).shape[1]
            own = fill == self.roles.fills[self.role]
            tile = core.fragment("sum", columns, "f32", core.value(fill.operands[0])) if own else RegTile("", columns)
            core.tiles[fill.results[0]] = tile

    def begin(self) -> None:
        """Declares its weight in registers, and the stage of the tile that its sum multiplies while the next product is begun."""
        self.core.writer.line(f"uint32_t {WEIGHTS}[{self.kernel.queries // 4}];", f"int {BEFORE} = -1;")

    def last(self) -> None:
        """Waits for the sum of a program's last step."""
        self._land(0)
        if self.layout.meets:
            self.core.writer.line(f"attn::named_sync({DONE}, {_BOTH});")

    def held_keys(self) -> Mapping[ir.Value, SharedBuffer]:
        memory = {op.results[0]: op.operands[0] for op in self.kernel.key_loads}
        own = memory[self.kernel.step_ops("tile.dot")[self.roles.products[self.role]].operands[0]]
        return {own: self.layout.keys[own]}

    def first(self) -> None:
        """Before all programs: what is handed over has a place."""
        if self.role:
            self.core.writer.line(f"attn::named_arrive({TAKEN}, {_BOTH});")

    def end(self) -> None:
        """After all programs: as often as the second consumer has told so, the first one has waited."""
        if not self.role:
            self.core.writer.line(f"attn::named_sync({TAKEN}, {_BOTH});")

    def stores(self) -> list[ir.Operation]:
        """The stores of its own sum."""
        return [op for op in self.kernel.stores if self.roles.of_sum(op.operands[0]) == self.role]

    def left(self) -> None:
        """Waits until its results have been read from the memory of keys."""
        self.core.writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();", f"attn::named_sync({RESULTS} + warpgroup, 128);")

    def step(self, block: ir.Block) -> None:
        core, role = self.core, self.role
        dots, (op,) = ops_of(block, "tile.dot"), ops_of(block, "tile.map")
        self._waited: set[ir.Value] = set()
        self._memory = {load.results[0]: load.operands[0] for load in (*self.kernel.key_loads, *ops_of(block, "tile.load"))}
        own, other = (dots[self.roles.products[number]] for number in (role, 1 - role))
        alone = self.layout.stages == 1
        if alone:  # before it waits for a tile: each consumer's product needs the stage of the tile that the other one's sum multiplies
            self._land(0)
        self._dot(own)
        if role:
            core.tiles[other.results[0]] = core.fragment("product", self.kernel.queries)
        if not alone:
            self._land(1)
        with core.scope(None):
            self._weights(block, op, [dots[number].results[0] for number in self.roles.products])
            self._sum(block, op)

    def _land(self, pending: int) -> None:
        """Waits for the sum of the step before, which was begun before `pending` products, and gives back what it multiplied."""
        (tile,) = (self.core.tiles[fill.results[0]] for fill in [self.roles.fills[self.role]])
        assert isinstance(tile, RegTile)
        writer = self.core.writer
        writer.line(f"attn::wgmma_wait<{pending}>();", f"attn::hold({tile.name});", f"attn::hold({WEIGHTS});")
        with writer.block(f"if ({BEFORE} >= 0)"):
            self._release(self._pipe_of_sum, BEFORE)

    @property
    def _pipe_of_sum(self) -> int:
        """The pipe of the tiles that its sum multiplies."""
        step = self.kernel.steps[0]
        memory = {load.results[0]: load.operands[0] for load in ops_of(step, "tile.load")}
        (sum_,) = (op for op in ops_of(step, "tile.dot_add") if self.roles.of_sum(op.operands[0]) == self.role)
        return list(self.layout.queries).index(memory[sum_.operands[2]])

    def _weights(self, block: ir.Block, op: ir.Operation, products: list[ir.Value]) -> None:
        """Its weight of the products, and the numbers of rows given back.

        What goes from the first consumer to the second one is what of scores matters alone (`early_value`), or scores.
        """
        core, layout = self.core, self.layout
        limit = step_limit(list(op.operands)[1])
        text = None if limit is None else as_int(core, limit)
        if layout.column_slots:
            self._wait_for_rows()
        slots = {value: slot for slot, value in enumerate(staged_values(core, block))}
        rows = QueryValues({value: slots[value] for value in column_values(op, core.scalars.type_of)}, {}, text)
        only = self.roles.weights[self.role]
        scores, own = (core.tiles[product] for product in (products[0], products[self.role]))
        assert isinstance(scores, RegTile) and isinstance(own, RegTile) and layout.handed is not None
        place, first = f"shared + {layout.handed.offset}", self.role == 0

        def land() -> None:
            core.writer.line("attn::wgmma_wait<0>();", f"attn::hold({own.name});")
            self._release(list(layout.queries).index(self._memory[self._queries_of(block)]))

        def hand() -> None:
            core.writer.line(f"attn::named_sync({TAKEN if first else HANDED}, {_BOTH});")
            core.writer.line(f"attn::{'hand_over' if first else 'take_over'}({scores.name}, {place});")
            core.writer.line(f"attn::named_arrive({HANDED if first else TAKEN}, {_BOTH});")

        awaited = ProductsInFlight(products, *((land, hand) if first else (hand, land)), made=not first)
        PairMap(core, op, layout, rows, (WeightUses(), {}), self.packed, only=only, into=WEIGHTS).print(awaited)
        if layout.column_slots:
            core.writer.line("__syncwarp();")  # all lanes have read the row values before one gives them back for the warp
            self._release(layout.pipes - 1)

    def _queries_of(self, block: ir.Block) -> ir.Value:
        """The tile of queries that its product multiplies."""
        return ops_of(block, "tile.dot")[self.roles.products[self.role]].operands[1]

    def _sum(self, block: ir.Block, map_: ir.Operation) -> None:
        """Begins its sum over queries."""
        core, weight = self.core, map_.results[self.roles.weights[self.role]]
        for op in ops_of(block, "tile.dot_add"):
            if op.operands[1] != weight:
                core.tiles[op.results[0]] = core.tiles[op.operands[0]]
                continue
            self._wait(self._memory[op.operands[2]])  # behind the fence ptxas would put another one
            core.writer.line("attn::wgmma_begin();")
            self._dot_add(op)
            core.writer.line("attn::wgmma_commit();", f"{BEFORE} = {STAGE};")
