"""What the warpgroups of a scan with decays of value channels do with a block: what the state gives, S^T q^T, and S^T = S^T decay + v^T k.

S^T and v are taken as two pieces of 16 bits. What the state gives leaves through the shared memory of what enters it.
"""

from collections.abc import Callable

from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_common import bind_position, declare_place
from attn_mlir.backends.nvidia.hopper.scan_output import LOWER, RESIDUALS, SCALE
from attn_mlir.backends.nvidia.hopper.scan_state import StatePrinter
from attn_mlir.backends.nvidia.hopper.value_layout import BLOCK_ATOM, SLOTS, WARPS, ValueLayout
from attn_mlir.backends.nvidia.hopper.value_read import BLOCK, ValueScan


class ValueState:
    """Prints the warpgroups that hold the state."""

    def __init__(self, core: Core, scan: ValueScan, layout: ValueLayout, held: int) -> None:
        """`held`: steps along K whose part of the state is rounded at a time."""
        self._core, self._scan, self._layout, self._held = core, scan, layout, held
        self._states = StatePrinter(core, scan)

    def print(self) -> None:
        """All blocks."""
        core, writer = self._core, self._core.writer
        declare_place(writer)
        self._states.declare()
        writer.line("#pragma unroll 1")
        with core.scope("for (int number = 0; number < chunks; ++number)"):
            bind_position(core, self._scan, "number")
            self._block()
        self._states.final()

    def _block(self) -> None:
        writer, layout = self._core.writer, self._layout
        writer.line(*layout.slot(), *layout.of_warp(f"({WARPS} * warpgroup + number % {WARPS})"))
        self._states.keep(before=True)
        writer.line(f"attn::barrier_wait(shared + kFull + 8 * slot, number / {SLOTS} & 1);")  # the block's rows have landed
        # The warps of the rows have left what enters the state.
        writer.line(f"attn::barrier_wait(ready, number / {WARPS} & 1);", "uint32_t entering[2][4];")
        with writer.unrolled("p", 2):
            place = f"exchanged + p * {BLOCK_ATOM} + attn::swizzle_128(turned_row * 128 + turned_column)"
            writer.line(f"attn::load_matrices_transposed({place}, entering[p]);")
        scale = f" * {SCALE}" if self._scan.scaled else ""
        factors = ", ".join(f"attn::load_shared(chunk_decay + 4 * row{more}){scale}" for more in ("", " + 32"))
        writer.line(f"const float2 factor = make_float2({factors});")
        # All warps have read their part of `exchanged`, before `_leave` writes o there.
        writer.line("attn::named_sync(2 + warpgroup, 128);")
        self._give()
        with writer.unrolled("c", self._scan.keys // 2):
            writer.line("state[c] *= c & 2 ? factor.y : factor.x;")
        self._enter(("1", "0") if not self._scan.scaled else ("1",), self._leave)
        if self._scan.scaled:
            with writer.unrolled("c", self._scan.keys // 2):
                writer.line(f"state[c] *= {LOWER};")
            self._enter(("0",), lambda: None)
        # The products with the slot's q and k are done.
        writer.line("attn::warp_arrive(shared + kFree + 8 * slot, lane == 0);")
        self._states.keep(before=False)

    def _give(self) -> None:
        """o^T = S^T q^T, of the columns of this warpgroup."""
        core, writer, scan, held = self._core, self._core.writer, self._scan, self._held
        pack, residual = f"attn::{PACKS[scan.element]}", f"attn::{RESIDUALS[scan.element]}"
        product, sums = core.instruction(BLOCK, "registers", scan.element), ["o", "scaled"] if scan.scaled else ["o"]
        writer.line(*(f"float {name}[{BLOCK // 2}];" for name in sums))
        writer.line(f"const uint64_t queries = attn::k_major(in + {self._layout.tiles['q']});")
        with core.unrolled("first", scan.keys // 16, held):
            writer.line(f"uint32_t held[{4 * held}], residual[{4 * held}];")
            with writer.unrolled("n", 4 * held):
                pair = "state[8 * first + 2 * n], state[8 * first + 2 * n + 1]"
                writer.line(f"held[n] = {pack}({pair});", f"residual[n] = {residual}(held[n], {pair});")
            writer.line("attn::hold(held);", "attn::hold(residual);", "attn::wgmma_begin();")
            with writer.unrolled("k", held):
                writer.line(f"const uint32_t offset = (first + k) / 4 * {BLOCK_ATOM} + (first + k) % 4 * 32;")
                for name in ("held", "residual"):
                    operand = ", ".join(f"{name}[4 * k + {n}]" for n in range(4))
                    more = "1" if name == "residual" and not scan.scaled else "first + k > 0"
                    writer.line(
                        f"{product}({sums[name == 'residual' and scan.scaled]}, {operand}, attn::advance(queries, offset), {more});"
                    )
            writer.line(
                # The products read these registers until they are done, and the next round writes them.
                "attn::wgmma_commit();",
                "attn::wgmma_wait<0>();",
                *(f"attn::hold({name});" for name in [*sums, "held", "residual"]),
            )

    def _leave(self) -> None:
        """o^T to shared memory: rows of 64 columns, units of 8 of which are permuted (`ValueBlock::pair_of`)."""
        writer = self._core.writer
        if self._scan.scaled:
            with writer.unrolled("c", BLOCK // 2):
                writer.line(f"o[c] += scaled[c] * {LOWER};")
        with writer.unrolled("n", BLOCK // 2):
            writer.line(
                "const int unit = (2 * warp + n / 2 % 2) ^ (lane % 4);",
                "attn::store_shared(exchanged + (8 * (n / 4) + column + n % 2) * 256 + unit * 32 + lane / 4 * 4, o[n]);",
            )
        # The warps of the rows add their part to what lies there.
        writer.line("attn::warp_sync();", "attn::warp_arrive(outside, lane == 0);")

    def _enter(self, pieces: tuple[str, ...], meanwhile: Callable[[], None]) -> None:
        """S^T += v^T k."""
        core, writer, scan = self._core, self._core.writer, self._scan
        product = core.instruction(scan.keys, "registers", scan.element, transpose_b=True)
        held = ["attn::hold(state);", *(f"attn::hold(entering[{piece}]);" for piece in pieces)]
        writer.line(*held)
        with core.scope(""):
            writer.line(f"const uint64_t keys = attn::mn_major(in + {self._layout.tiles['k']}, {BLOCK_ATOM});", "attn::wgmma_begin();")
            for piece in pieces:
                writer.line(f"{product}(state, {', '.join(f'entering[{piece}][{n}]' for n in range(4))}, keys, 1);")
            writer.line("attn::wgmma_commit();")
        meanwhile()
        # The state is scaled, or read, next.
        writer.line("attn::wgmma_wait<0>();", *held)
