"""What the warpgroups of a scan do with one chunk: rows of o (see `scan_output`), and S^T = S^T times its factor + (v input_decay)^T k."""

from attn_mlir.backends.gpu.structure import body, yielded
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_common import ALL, ATOM_BYTES, CHUNK, declare_place
from attn_mlir.backends.nvidia.hopper.scan_layout import ScanLayout
from attn_mlir.backends.nvidia.hopper.scan_mods import TileMods
from attn_mlir.backends.nvidia.hopper.scan_output import LOWER, RESIDUALS, SCALE, RowsPrinter
from attn_mlir.backends.nvidia.hopper.scan_products import ProductSums
from attn_mlir.backends.nvidia.hopper.scan_read import ChunkScan
from attn_mlir.backends.nvidia.hopper.scan_state import StatePrinter


class ChunkPrinter:
    """Prints the work on a chunk."""

    def __init__(self, core: Core, scan: ChunkScan, layout: ScanLayout, states: StatePrinter) -> None:
        self._core, self._scan, self._layout, self._states = core, scan, layout, states
        self._mods = TileMods(core, scan, layout)
        self._rows = None if scan.rows is None else RowsPrinter(core, scan, scan.rows, layout)
        rows = scan.rows
        self._sums = ProductSums(core, rows, layout) if rows is not None and rows.products is not None else None
        self._pack, self._unpack = f"attn::{PACKS[scan.element]}", f"attn::un{PACKS[scan.element]}"
        self._residual = f"attn::{RESIDUALS[scan.element]}"
        self._entered = ("entering", "remaining") if scan.compensated else ("entering",)

    def declare(self) -> None:
        """The thread's place."""
        declare_place(self._core.writer)
        if self._rows is not None:
            self._rows.declare()

    def print(self) -> None:
        """One chunk."""
        core, writer, layout, rows = self._core, self._core.writer, self._layout, self._rows
        stages = layout.stages
        writer.line(f"const int stage = number % {stages};")
        writer.line(*layout.addresses())
        writer.line(f"attn::barrier_wait(shared + kFull + 8 * stage, number / {stages} & 1);")  # this chunk's tiles and rows are there
        if self._scan.total is not None:
            last = core.names.fresh("last")
            writer.line(f"const float {last} = attn::load_shared(rows + {layout.rows['sums'] + 4 * (CHUNK - 1)});")
            core.scalars.bind(self._scan.total, last)
        self._states.keep(before=True)
        self._mods.print(self._unpack, self._pack)
        if rows is not None:
            rows.weights()
            # wgmma reads the weights; the copy of the last rows must have read what the next ones are written to.
            writer.line("attn::fence_proxy_async();", "if (leader) attn::bulk_wait_read<0>();")
        # All have read the last stage, written weights and changed tiles; then one thread gives that stage back for all.
        writer.line(f"attn::named_sync({ALL}, {layout.consumers});")
        free = f"shared + kFree + 8 * ((number - 1) % {stages})"
        writer.line(f"if (number > 0) attn::warp_arrive({free}, threadIdx.x == 0);")
        if rows is not None:
            rows.from_state()
        writer.line(f"const uint32_t own = at + {layout.tiles['v'].offset} + warpgroup * {ATOM_BYTES};")
        if rows is not None:
            rows.from_pairs()
        self._carry()
        self._entering()
        if rows is not None:
            # o is whole: it leaves while the state's product runs.
            writer.line("attn::wgmma_wait<0>();", "attn::hold(o);")
        self._advance()
        self._states.keep(before=False)

    def finish(self) -> None:
        """After the last chunk."""
        if self._rows is not None:
            # Shared memory, which the bulk copies read, ends with the thread block.
            self._core.writer.line("if (leader) attn::bulk_wait<0>();")

    def _carry(self) -> None:
        """The state times its factor."""
        core, writer, scan = self._core, self._core.writer, self._scan
        with core.scope(""):
            for argument in body(scan.chunk_decay).arguments:
                core.scalars.bind(argument, "0")
            factor = core.value(yielded(body(scan.chunk_decay))[0])
            with writer.unrolled("c", scan.keys // 2):
                writer.line(f"state[c] *= {factor}{f' * {SCALE}' if scan.scaled else ''};")

    def _entering(self) -> None:
        """(v input_decay)^T as operand in registers."""
        writer, layout = self._core.writer, self._layout
        writer.line(*(f"uint32_t {name}[{CHUNK // 16}][4];" for name in self._entered))
        with writer.unrolled("k", CHUNK // 16):
            writer.line(
                "attn::load_matrices_transposed(own + attn::swizzle_128((16 * k + turned_row) * 128 + turned_column), entering[k]);"
            )
            with writer.unrolled("d", 2):
                decay = layout.rows["input_decay"]
                writer.line(f"const float2 factor = attn::load_shared2(rows + {decay} + 4 * (16 * k + 8 * d + column));")
                with writer.unrolled("h", 2):
                    writer.line(
                        f"const float2 pair = {self._unpack}(entering[k][2 * d + h]);",
                        f"entering[k][2 * d + h] = {self._pack}(pair.x * factor.x, pair.y * factor.y);",
                    )
                    if self._scan.compensated:
                        scaled = "pair.x * factor.x, pair.y * factor.y"
                        writer.line(f"remaining[k][2 * d + h] = {self._residual}(entering[k][2 * d + h], {scaled});")

    def _advance(self) -> None:
        """The state's product, while o leaves."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        product = core.instruction(scan.keys, "registers", scan.element, transpose_b=True)
        writer.line("attn::hold(state);")
        self._hold_entering()
        with core.scope(""):
            writer.line(f"const uint64_t right = attn::mn_major(at + {layout.tiles['k'].offset}, {ATOM_BYTES});")
            if scan.scaled:
                self._multiply(product, ("remaining",))
                # The residuals' product alone is scaled.
                writer.line("attn::wgmma_wait<0>();", "attn::hold(state);")
                with writer.unrolled("c", scan.keys // 2):
                    writer.line(f"state[c] *= {LOWER};")
                writer.line("attn::hold(state);")
            self._multiply(product, self._entered[:1] if scan.scaled else self._entered)
        if self._rows is not None:
            self._rows.leave(self._sums)
        # Awaited here, so that the next chunk's factor can multiply the state.
        writer.line("attn::wgmma_wait<0>();", "attn::hold(state);")
        self._hold_entering()

    def _multiply(self, product: str, pieces: tuple[str, ...]) -> None:
        """Starts products of these pieces with k, which are added to the state."""
        writer = self._core.writer
        writer.line("attn::wgmma_begin();")
        with writer.unrolled("k", CHUNK // 16):
            for name in pieces:
                operand = ", ".join(f"{name}[k][{n}]" for n in range(4))
                writer.line(f"{product}(state, {operand}, attn::advance(right, k * 2048), 1);")
        writer.line("attn::wgmma_commit();")

    def _hold_entering(self) -> None:
        writer = self._core.writer
        with writer.unrolled("k", CHUNK // 16):
            writer.line(*(f"attn::hold({name}[k]);" for name in self._entered))
