"""Scatters along diagonals: one addition for each diagonal of a block, or a single one where all go to one element."""

from attn_mlir.backends.gpu.scalar_printer import float_literal
from attn_mlir.backends.gpu.structure import yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, key_count
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout
from attn_mlir.backends.nvidia.hopper.pairs_map import WeightRegisters, body_of
from attn_mlir.backends.nvidia.hopper.pairs_uses import is_always
from attn_mlir.backends.nvidia.hopper.tiles import ROWS
from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.positions import Positions

HEADER = "attn_bands.cuh"
_BARRIER = 12
"""The first of the named barriers of a warpgroup, one for each."""


class BandSums:
    """Prints `tile.scatter_add` of weights that lie in shared memory."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout, element: str) -> None:
        self.core, self.kernel, self.layout = core, kernel, layout
        self.half = {"f16": "__half", "bf16": "__nv_bfloat16"}[element]

    def print(self, op: ir.Operation, weights: WeightRegisters, limit: str | None, factor: float) -> None:
        """Adds weights that are in registers times a factor at their places. Queries from `limit` on are not."""
        core, writer, queries = self.core, self.core.writer, self.kernel.queries
        times = "" if factor == 1.0 else f"{float_literal(factor)} * "
        count, barrier = key_count(core, self.kernel), f"{_BARRIER} + warpgroup"
        writer.line(f"const int own_key = {ROWS} * warpgroup, own_thread = attn::opaque(threadIdx.x) % 128;")
        with core.scope(f"if (own_key < {count})"):
            if self._step(op) is not None:
                self._print_diagonals(op, weights, limit, times)
                return
            writer.line("bool together = true;", "long long only_place = -1;")
            with core.scope(""):
                self._place(op, "only_place", "own_key", "0")
            writer.line("#pragma unroll 1")
            with core.scope(f"for (int n = own_thread; n < {128 * -(-(ROWS - 1 + queries) // 128)}; n += 128)"):
                writer.line(
                    f"const int diagonal = n - {queries - 1}, first_key = own_key + max(diagonal, 0), first_query = max(-diagonal, 0);"
                )
                self._first(op, f"diagonal < {ROWS}", limit)
                writer.line("together = together && (place < 0 || place == only_place);")
            with core.scope(f"if (attn::holds_for_all(together, {barrier}))"):
                self._add(op, "lane == 0 ? only_place : -1", f"{times}attn::band_warp_sum(attn::packed_sum({weights.name}, {self.half}()))")
            with core.scope("else"):
                self._print_diagonals(op, weights, limit, times)

    def _print_diagonals(self, op: ir.Operation, weights: WeightRegisters, limit: str | None, times: str) -> None:
        """Adds a number for each diagonal of a warp."""
        core, writer, queries = self.core, self.core.writer, self.kernel.queries
        eights, numbers = queries // 8, -(-(queries // 8 + 2) // 4) * 4
        to, step = core.arguments.pointer(op.operands[0]), self._step(op)
        writer.line(
            f"float of_band[{numbers}];",
            f"attn::band_sums<{eights}, {numbers}, {self.half}>({weights.name}, of_band, lane);",
            f"const int own_row = own_thread / 32 * 16, own_number = attn::band_number<{eights}>(lane);",
        )
        if step is not None:
            # Each diagonal has a place of its own, a constant step from the one before.
            writer.line(f"float *first_place = {to};")
            with core.scope(""):
                core.scalars.bind(body_of(op).arguments[0], "0")
                core.scalars.bind(body_of(op).arguments[1], "0")
                writer.line(f"first_place += {self._offset(op, yielded(body_of(op))[2:])};")
        with core.unrolled("n", numbers // 4):
            writer.line(
                f"const int diagonal = own_row + lane / 4 + 8 * (own_number + n - {eights}), first_row = max(diagonal, own_row);",
                "const int first_key = own_key + first_row, first_query = first_row - diagonal;",
            )
            exists = f"first_row < own_row + 16 && first_query < {queries}"
            if step is None:
                self._first(op, exists, limit)
                writer.line(f"attn::add_places({to}, place, {times}of_band[n]);")
                return
            with core.scope(f"if ({self._exists(exists, limit)})"):
                present = yielded(body_of(op))[1]
                core.scalars.bind(body_of(op).arguments[0], "first_key")
                core.scalars.bind(body_of(op).arguments[1], "first_query")
                with core.scope("" if is_always(present) else f"if ({core.scalars.emit(present)})"):
                    writer.line(f"attn::add_global(first_place + (own_key + diagonal) * {step}, {times}of_band[n]);")

    def _step(self, op: ir.Operation) -> str | None:
        """From the place of a diagonal to that of the next one; None where places are no affine function of it."""
        block = body_of(op)
        positions, terms = Positions(block), []
        for number, index in enumerate(yielded(block)[2:]):
            steps = positions.steps(index)
            if steps is None:
                return None
            if not steps.same:
                terms.append(f"{steps.row} * {self.core.arguments.stride(op.operands[0], number)}")
        return f"({' + '.join(terms)})"

    def _first(self, op: ir.Operation, exists: str, limit: str | None) -> None:
        """The `place` that the diagonal of an element, `first_key` and `first_query`, is added to, or -1."""
        core = self.core
        core.writer.line("long long place = -1;")
        with core.scope(f"if ({self._exists(exists, limit)})"):
            self._place(op, "place", "first_key", "first_query")

    def _exists(self, exists: str, limit: str | None) -> str:
        """The same for keys and queries that are there."""
        return f"{exists} && first_key < {key_count(self.core, self.kernel)}{'' if limit is None else f' && first_query < {limit}'}"

    def _place(self, op: ir.Operation, name: str, key: str, query: str) -> None:
        """Where an element is added, counted from the first one of the tensor."""
        core, block = self.core, body_of(op)
        _, present, *indices = yielded(block)
        core.scalars.bind(block.arguments[0], key)
        core.scalars.bind(block.arguments[1], query)
        if not is_always(present):
            # Where a mask leaves nothing of a diagonal, there may be no place either.
            with core.scope(f"if ({core.scalars.emit(present)})"):
                core.writer.line(f"{name} = {self._offset(op, indices)};")
            return
        core.writer.line(f"{name} = {self._offset(op, indices)};")

    def _offset(self, op: ir.Operation, indices: list[ir.Value]) -> str:
        core = self.core
        terms = [f"(long long){core.value(index)} * {core.arguments.stride(op.operands[0], n)}" for n, index in enumerate(indices)]
        return " + ".join(terms)

    def _add(self, op: ir.Operation, place: str, value: str) -> None:
        pointer = self.core.arguments.pointer(op.operands[0])
        self.core.writer.line(f"const float of_all = {value};", f"const long long to_place = {place};")
        self.core.writer.line(f"if (to_place >= 0) attn::add_global({pointer} + to_place, of_all);")
