"""What the warpgroups of a scan with decays of channels do with a prepared chunk: o^T = S^T q^T + v^T P^T, S^T = S^T decay + v^T k."""

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.channel_layout import STAGES, ChannelLayout
from attn_mlir.backends.nvidia.hopper.channel_read import ChannelScan
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_common import ALL, ATOM_BYTES, CHUNK, bind_position, declare_place
from attn_mlir.backends.nvidia.hopper.scan_rows_of_o import LeavingPrinter
from attn_mlir.backends.nvidia.hopper.scan_state import StatePrinter


class ChannelChunks:
    """Prints the warpgroups that hold the state."""

    def __init__(self, core: Core, scan: ChannelScan, layout: ChannelLayout) -> None:
        self._core, self._scan, self._layout = core, scan, layout
        self._states = StatePrinter(core, scan)
        self._rows: LeavingPrinter | None = None
        if scan.store is not None:
            self._rows = LeavingPrinter(core, scan, scan.store, [f"at + {layout.tiles['pairs']}"], layout.consumers)

    def print(self) -> None:
        """All chunks."""
        core, writer = self._core, self._core.writer
        declare_place(writer)
        if self._rows is not None:
            self._rows.declare()
        self._states.declare()
        writer.line("#pragma unroll 1")
        with core.scope("for (int number = 0; number < chunks; ++number)"):
            bind_position(core, self._scan, "number")
            self._chunk()
        if self._rows is not None:
            # Shared memory, which the bulk copies read, ends with the thread block.
            writer.line("if (leader) attn::bulk_wait<0>();")
        self._states.final()

    def _chunk(self) -> None:
        writer, layout = self._core.writer, self._layout
        writer.line(f"const int stage = number % {STAGES};", layout.address())
        writer.line(f"const uint32_t own = at + {layout.tiles['v']} + warpgroup * {ATOM_BYTES};")
        # The preparing warps have made this chunk's tiles, and v has landed.
        writer.line(f"attn::barrier_wait(shared + kReady + 8 * stage, number / {STAGES} & 1);")
        self._states.keep(before=True)
        if self._scan.packed:
            self._cut()
        if self._rows is not None:
            # The copy of the last chunk's rows of o has read its stage, which is given back below.
            writer.line("if (leader) attn::bulk_wait_read<0>();")
        # All have read the last stage, and see rows of v that were cut; then one thread gives that stage back for all.
        writer.line(f"attn::named_sync({ALL}, {layout.consumers});")
        writer.line(f"if (number > 0) attn::warp_arrive(shared + kFree + 8 * ((number - 1) % {STAGES}), threadIdx.x == 0);")
        if self._rows is not None:
            self._from_state()
            self._rows.from_pairs()
        self._carry()
        writer.line(f"uint32_t entering[{CHUNK // 16}][4];")
        with writer.unrolled("k", CHUNK // 16):
            writer.line(
                "attn::load_matrices_transposed(own + attn::swizzle_128((16 * k + turned_row) * 128 + turned_column), entering[k]);"
            )
        if self._rows is not None:
            # o is whole: it leaves while the state's product runs.
            writer.line("attn::wgmma_wait<0>();", "attn::hold(o);")
        self._advance()
        self._states.keep(before=False)

    def _cut(self) -> None:
        """Rows of v that belong to the next sequence are 0: its numbers, infinities say, must not meet the zeros of pairs."""
        core, count = self._core, self._core.value(self._scan.count)
        with core.scope(f"if ({count} < {CHUNK})"):
            with core.scope(f"for (int n = {count} * 8 + threadIdx.x % 128; n < {CHUNK * 8}; n += 128)"):
                core.writer.line("attn::store_shared_int4(own + attn::swizzle_128(n / 8 * 128 + n % 8 * 16), 0, 0, 0, 0);")
            # wgmma reads the rows behind the last position, which hold zeros now.
            core.writer.line("attn::fence_proxy_async();")

    def _from_state(self) -> None:
        """o^T = S^T q^T."""
        core, writer, steps = self._core, self._core.writer, self._scan.keys // 16
        product = core.instruction(CHUNK, "registers", self._scan.element)
        held = min(steps, thresholds.FEW_ROUNDED_STEPS) if self._layout.warpgroups > 1 else steps
        writer.line(f"float o[{CHUNK // 2}];")
        with core.scope(""):
            writer.line(f"const uint64_t right = attn::k_major(at + {self._layout.tiles[self._scan.leaving]});")
            with core.unrolled("first", steps, held):
                writer.line(f"uint32_t held[{4 * held}];")
                with writer.unrolled("n", 4 * held):
                    pair = "state[8 * first + 2 * n], state[8 * first + 2 * n + 1]"
                    writer.line(f"held[n] = attn::{PACKS[self._scan.element]}({pair});")
                writer.line("attn::hold(held);", "attn::wgmma_begin();")
                with writer.unrolled("k", held):
                    writer.line(f"const uint32_t offset = (first + k) / 4 * {ATOM_BYTES} + (first + k) % 4 * 32;")
                    operand = ", ".join(f"held[4 * k + {n}]" for n in range(4))
                    writer.line(f"{product}(o, {operand}, attn::advance(right, offset), first + k > 0);")
                # The product reads `held` from registers until it is done, and the next steps write them.
                writer.line("attn::wgmma_commit();", "attn::wgmma_wait<0>();", "attn::hold(o);", "attn::hold(held);")

    def _carry(self) -> None:
        """The state times the factors of its channels."""
        writer = self._core.writer
        with writer.unrolled("c", self._scan.keys // 8):
            place = f"shared + kChunkDecay + stage * {self._layout.decay_bytes} + 4 * (column + 8 * c)"
            writer.line(f"const float2 factor = attn::load_shared2({place});")
            for n, part in enumerate("xyxy"):
                writer.line(f"state[4 * c + {n}] *= factor.{part};")

    def _advance(self) -> None:
        """The state's product, while o leaves."""
        core, writer, scan = self._core, self._core.writer, self._scan
        product = core.instruction(scan.keys, "registers", scan.element, transpose_b=True)
        writer.line("attn::hold(state);")
        self._hold_entering()
        with core.scope(""):
            writer.line(
                f"const uint64_t right = attn::mn_major(at + {self._layout.tiles[scan.entering]}, {ATOM_BYTES});", "attn::wgmma_begin();"
            )
            with writer.unrolled("k", CHUNK // 16):
                operand = ", ".join(f"entering[k][{n}]" for n in range(4))
                writer.line(f"{product}(state, {operand}, attn::advance(right, k * 2048), 1);")
            writer.line("attn::wgmma_commit();")
        if self._rows is not None:
            self._rows.leave()
        # Awaited here, so that the next chunk's factors can multiply the state.
        writer.line("attn::wgmma_wait<0>();", "attn::hold(state);")
        self._hold_entering()

    def _hold_entering(self) -> None:
        with self._core.writer.unrolled("k", CHUNK // 16):
            self._core.writer.line("attn::hold(entering[k]);")
