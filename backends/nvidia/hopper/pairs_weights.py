"""Consumers that have a weight each: for sums over queries of more columns together than a warpgroup has registers for.

Both warpgroups have the same 64 keys. The first one multiplies scores S^T = K Q^T, hands them over through shared memory, and makes
dV += P^T dO; the second one multiplies dP^T = V dO^T, and makes dK += dS^T Q. So the four products of dK and dV are made once, where a
kernel for each sum makes five, and each warpgroup has all columns of one sum, with its weights in registers as operand A.
"""

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, as_int, ops_of
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, too_many
from attn_mlir.backends.nvidia.hopper.pairs_loop import staged_values, step_limit
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
HANDED, TAKEN = 12, 13
"""Named barriers: scores are where the second consumer takes them over; it has done so."""
_BOTH = 256


def plan_weights(kernel: PairsKernel, target: NvidiaTarget, slots: int, stages: int | None) -> BackwardLayout | None:
    """The layout of such consumers, with as many stages as fit; None for kernels of another form, or of narrower sums.

    `slots`: values of each query row. Each consumer makes bits of dropout for itself: both have the same keys. Raises UnsupportedError
    when nothing fits.
    """
    columns = [ir.RankedTensorType(fill.results[0].type).shape[1] for fill in kernel.fills]
    roles = roles_of(kernel) if sum(columns) > thresholds.SUM_COLUMNS else None
    if roles is None:
        return None
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
        return

    def last(self) -> None:
        return

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
        core, layout, role = self.core, self.layout, self.role
        dots, (op,) = ops_of(block, "tile.dot"), ops_of(block, "tile.map")
        self._waited: set[ir.Value] = set()
        self._memory = {load.results[0]: load.operands[0] for load in (*self.kernel.key_loads, *ops_of(block, "tile.load"))}
        pipes = list(layout.queries)
        own, other = (dots[self.roles.products[number]] for number in (role, 1 - role))
        self._dot(own)
        fragment = core.tiles[own.results[0]]
        assert isinstance(fragment, RegTile) and layout.handed is not None
        place = f"shared + {layout.handed.offset}"
        if role:
            handed = core.fragment("product", self.kernel.queries)
            core.tiles[other.results[0]] = handed
            core.writer.line(f"attn::named_sync({HANDED}, {_BOTH});", f"attn::take_over({handed.name}, {place});")
            core.writer.line(f"attn::named_arrive({TAKEN}, {_BOTH});")
        core.writer.line("attn::wgmma_wait<0>();", f"attn::hold({fragment.name});")
        self._release(pipes.index(self._memory[own.operands[1]]))
        if not role:
            core.writer.line(f"attn::named_sync({TAKEN}, {_BOTH});", f"attn::hand_over({fragment.name}, {place});")
            core.writer.line(f"attn::named_arrive({HANDED}, {_BOTH});")
        with core.scope(None):
            self._weights(block, op)
            self._sum(block, op, pipes)

    def _weights(self, block: ir.Block, op: ir.Operation) -> None:
        """Its weight of the products, and the numbers of rows given back."""
        core, layout = self.core, self.layout
        limit = step_limit(list(op.operands)[1])
        text = None if limit is None else as_int(core, limit)
        if layout.column_slots:
            self._wait_for_rows()
        slots = {value: slot for slot, value in enumerate(staged_values(core, block))}
        rows = QueryValues({value: slots[value] for value in column_values(op, core.scalars.type_of)}, {}, text)
        only = self.roles.weights[self.role]
        PairMap(core, op, layout, rows, (WeightUses(), {}), self.packed, only=only).print(ProductsInFlight())
        if layout.column_slots:
            core.writer.line("__syncwarp();")  # all lanes have read the row values before one gives them back for the warp
            self._release(layout.pipes - 1)

    def _sum(self, block: ir.Block, map_: ir.Operation, pipes: list[ir.Value]) -> None:
        """Its sum over queries; the tile that it multiplies is given back."""
        core, weight = self.core, map_.results[self.roles.weights[self.role]]
        for op in ops_of(block, "tile.dot_add"):
            if op.operands[1] != weight:
                core.tiles[op.results[0]] = core.tiles[op.operands[0]]
                continue
            self._wait(self._memory[op.operands[2]])  # behind the fence ptxas would put another one
            core.writer.line("attn::wgmma_begin();")
            self._dot_add(op)
            core.writer.line("attn::wgmma_commit();", "attn::wgmma_wait<0>();")
            tile = core.tiles[op.results[0]]
            assert isinstance(tile, RegTile)
            core.writer.line(f"attn::hold({tile.name});")
            self._release(pipes.index(self._memory[op.operands[2]]))
