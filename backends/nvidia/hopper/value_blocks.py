"""What the warps of blocks do in a scan with decays of value channels: pairs of a block's positions one by one, rows of o and products.

Four warps take blocks in turn for every 64 columns of v. See `attn_values.cuh` for the arithmetic.
"""

from attn_mlir.backends.nvidia.hopper.channel_layout import place_of
from attn_mlir.backends.nvidia.hopper.channel_steps import load_decays, print_steps
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, bind_position
from attn_mlir.backends.nvidia.hopper.scan_patterns import view_of
from attn_mlir.backends.nvidia.hopper.value_layout import BLOCK_ATOM, SCORES, SLOTS, WARPS, ValueLayout
from attn_mlir.backends.nvidia.hopper.value_read import BLOCK, ValueScan
from attn_mlir.mlir import ir

_AHEAD = SLOTS - 2
"""Blocks from one that is done to the one that is loaded then: the slot is that of the block two before."""
_TOGETHER = 8
"""The first of the named barriers of both warps of a block."""


def _is_wide(store: ir.Operation) -> bool:
    """Whether numbers of f32 go to memory."""
    return isinstance(ir.MemRefType(store.operands[1].type).element_type, ir.F32Type)


class BlockPrinter:
    """Prints the warps of blocks."""

    def __init__(self, core: Core, scan: ValueScan, layout: ValueLayout) -> None:
        self._core, self._scan, self._layout = core, scan, layout
        self._rows = f"attn::ValueBlock<{str(scan.element == 'bf16').lower()}, {str(scan.reverse).lower()}>"

    def print(self) -> None:
        """All blocks."""
        core, writer, layout = self._core, self._core.writer, self._layout
        writer.line(f"const int lane = threadIdx.x % 32, worker = attn::warp_index() % {WARPS}, half = warpgroup - {layout.warpgroups};")
        own = f"({WARPS} * half + worker)"
        writer.line(*layout.of_warp(own), f"const uint32_t scores = shared + kScores + {own} * {SCORES};")
        self._declare_load()
        with core.scope(f"if (threadIdx.x == {128 * layout.warpgroups})"):
            writer.line(f"for (int n = 0; n < {_AHEAD} && n < chunks; ++n) load(n);")
        self._declare_outputs()
        writer.line("#pragma unroll 1")
        with core.scope(f"for (int number = worker; number < chunks; number += {WARPS})"):
            bind_position(core, self._scan, "number")
            writer.line(*layout.slot(), f"const uint32_t values = in + {layout.tiles['v']} + half * {BLOCK_ATOM};")
            writer.line(f"const int count = {core.value(self._scan.count)};")
            writer.line(f"attn::barrier_wait(shared + kFull + 8 * slot, number / {SLOTS} & 1);")  # the block's rows have landed
            if self._scan.packed:
                self._cut()
            self._prepare()
            writer.line(f"attn::barrier_wait(outside, number / {WARPS} & 1);")  # the warps of the state have left their part of these rows
            self._load_next()
            self._finish()
            # All lanes have read the slot: it may be loaded again.
            writer.line("attn::warp_sync();", "attn::warp_arrive(shared + kFree + 8 * slot, lane == 0);")

    def _declare_load(self) -> None:
        """A function that starts to load a block."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        with core.scope("const auto load = [&](int number)"):
            bind_position(core, scan, "number")
            writer.line(*layout.slot(), "const uint32_t full = shared + kFull + 8 * slot;")
            writer.line(f"attn::barrier_arrive_expect(full, {layout.slot_bytes});")  # bytes first: a copy may land before the next line
            loads = [(name, each.load, ATOM) for name, each in scan.inputs.items()]
            if scan.decays is not None:
                loads.append(("decay", scan.decays, ATOM // 2 if layout.decay == "f32" else ATOM))
            for name, load, width in loads:
                view = view_of(load.operands[0])
                map_ = core.arguments.descriptor(view.argument, width, BLOCK)
                column = f"{core.value(view.column)} + " if view.column is not None else ""
                for n in range(layout.atoms[name]):
                    to = f"in + {layout.tiles[name] + n * BLOCK_ATOM}"
                    writer.line(f"attn::tma_load({to}, {map_}, full, {column}{n * width}, {place_of(core, load)});")
        writer.lines[-1] += ";"

    def _declare_outputs(self) -> None:
        """Where this lane's columns of o and of products are in memory, and whether they are neighbours there at an even place."""
        core, writer = self._core, self._core.writer
        for name, store in self._scan.outputs.items():
            view = view_of(store.operands[1])
            first = f"{core.value(view.column)} + " if view.column is not None else ""
            batch, head = (core.value(value) for value in list(store.operands)[2:4])
            element = core.arguments.element(view.argument, [batch, head, "0", f"({first}{ATOM} * half + 2 * lane)"])
            row, column = (core.arguments.stride(view.argument, dim) for dim in (2, 3))
            size = 8 if _is_wide(store) else 4
            writer.line(
                f"auto *const {name}_place = &{element};",
                f"const bool {name}_pairs = {column} == 1 && {row} % 2 == 0 && reinterpret_cast<uintptr_t>({name}_place) % {size} == 0;",
            )

    def _cut(self) -> None:
        """Rows of k and v that belong to the next sequence are 0: infinities, say, must not meet zeros."""
        core, writer, layout = self._core, self._core.writer, self._layout
        with core.scope(f"if (count < {BLOCK})"):
            writer.line(f"{self._rows}::cut(values, count, lane);")
            with core.scope("if (half == 0)"), writer.unrolled("n", layout.atoms["k"]):
                writer.line(f"{self._rows}::cut(in + {layout.tiles['k']} + n * {BLOCK_ATOM}, count, lane);")
            # wgmma reads the rows that were cut to zeros.
            writer.line("attn::fence_proxy_async();")
            writer.line(f"attn::named_sync({_TOGETHER} + worker, {32 * layout.warpgroups});")

    def _prepare(self) -> None:
        """What the state needs, then the block's own pairs."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        writer.line(f"{self._rows} rows;")
        with core.unrolled("r", BLOCK):
            if scan.decays is not None:
                atom = BLOCK_ATOM * (2 if layout.decay == "f32" else 1)
                row = f"in + {layout.tiles['decay']} + half * {atom} + r * 128"
                load_decays(core, layout.decay, row, str(BLOCK_ATOM), "(r % 8 << 4)")
            print_steps(core, scan.steps, "given", "rows.steps[r]", ("r", f"({ATOM} * half + 2 * lane)"))
        writer.line(
            f"rows.enter(values, exchanged, exchanged + {BLOCK_ATOM}, chunk_decay, lane);",
            f"rows.template scores<{scan.keys}>(in + {layout.tiles['q']}, in + {layout.tiles['k']}, scores, lane);",
            "attn::warp_arrive(ready, lane == 0);",
            "rows.add_pairs(values, scores, lane);",
        )

    def _load_next(self) -> None:
        """One warp starts to load a block as soon as a slot is free."""
        core, writer = self._core, self._core.writer
        with core.scope(f"if (half == 0 && lane == 0 && number + {_AHEAD} < chunks)"):
            writer.line(f"const int next = number + {_AHEAD};")
            # All warps that read the slot's last block have given it back.
            writer.line(f"attn::barrier_wait(shared + kFree + 8 * (next % {SLOTS}), (next / {SLOTS} & 1) ^ 1);", "load(next);")
        writer.line("attn::warp_sync();")

    def _finish(self) -> None:
        """Rows of o and products."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        writer.line("rows.add_outside(exchanged, lane);")
        with core.unrolled("r", BLOCK), core.scope("if (r < count)"):
            factors = f"in + {layout.tiles['factor']} + half * {BLOCK_ATOM}"
            names = {"products": "product", "rows": "row"}
            whole = "rows.sums[r]" if scan.strict else "rows.whole(values, scores, lane, r)"
            made = {"products": f"rows.product({factors}, lane, r)", "rows": whole}
            writer.line(f"const float2 {', '.join(f'{names[name]} = {made[name]}' for name in scan.outputs)};")
            begin = core.value(scan.begin)
            for name, store in scan.outputs.items():
                argument = view_of(store.operands[1]).argument
                along, across = (core.arguments.stride(argument, dim) for dim in (2, 3))
                writer.line(f"auto *const to_{name} = {name}_place + ({begin} + r) * {along};")
                pair = names[name]
                words = f"*reinterpret_cast<float2 *>(to_{name}) = {pair};"
                if not _is_wide(store):
                    words = f"*reinterpret_cast<uint32_t *>(to_{name}) = attn::{PACKS[scan.element]}({pair}.x, {pair}.y);"
                writer.line(f"if ({name}_pairs) {words}")
                writer.line(f"else to_{name}[0] = {pair}.x, to_{name}[{across}] = {pair}.y;")
