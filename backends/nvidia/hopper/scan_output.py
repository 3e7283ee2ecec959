"""o of one chunk: what the state and its own pairs give to it, and its way to memory.

With S the state [keys, values] and b sums of log decays: A = q k^T, of which each warpgroup makes its share of columns; P = A times its
weights goes to shared memory, in scans with products in bf16 as two pieces (rounded, and what that leaves out); o^T = S^T q^T (S^T as
operand in registers), scaled, + v^T P^T. o^T leaves, transposed on its way, through the shared memory of v.
"""

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM_BYTES, CHUNK
from attn_mlir.backends.nvidia.hopper.scan_layout import ScanLayout
from attn_mlir.backends.nvidia.hopper.scan_patterns import view_of
from attn_mlir.backends.nvidia.hopper.scan_producer import bind_rows
from attn_mlir.backends.nvidia.hopper.scan_read import ChunkScan
from attn_mlir.backends.nvidia.hopper.scan_rows import OutputRows
from attn_mlir.backends.nvidia.hopper.scan_rows_of_o import LeavingPrinter
from attn_mlir.mlir import ir

RESIDUALS = {"f16": "pack_residual_f16", "bf16": "pack_residual_bf16"}
"""Functions of the header for residuals of rounding."""
SCALE, LOWER = "2048.0f", "(1.0f / 2048.0f)"
"""In f16 these are kept 2^11 times as large as they are: what is below 2^-24 would be 0."""


class RowsPrinter(LeavingPrinter):
    """Prints the rows of o of a chunk."""

    def __init__(self, core: Core, scan: ChunkScan, rows: OutputRows, layout: ScanLayout) -> None:
        super().__init__(core, scan, rows.store, layout.weights, layout.consumers)
        self._core, self._scan, self._rows, self._layout = core, scan, rows, layout
        self._share = CHUNK // layout.warpgroups
        self._residual = f"attn::{RESIDUALS[scan.element]}"

    def declare(self) -> None:
        """Where o is, for the threads that store rows of it: a chunk has a name `o` of its own."""
        if self._scan.packed:
            view = view_of(self._rows.store.operands[1])
            self._core.writer.line(f"auto *const rows_of_o = {self._core.arguments.pointer(view.argument)};")

    def weights(self) -> None:
        """A, its weights, and P in shared memory."""
        core, writer, scan, layout = self._core, self._core.writer, self._scan, self._layout
        share, steps = self._share, scan.keys // 16
        product = core.instruction(share, "shared", scan.element)
        q, k = layout.tiles["q"].offset, layout.tiles["k"].offset
        with core.scope(""):
            writer.line(f"float scores[{share // 2}];")
            writer.line(f"const uint64_t left = attn::k_major(at + {q}), right = attn::k_major(at + {k} + warpgroup * {share * 128});")
            writer.line("attn::wgmma_begin();")
            with writer.unrolled("k", steps):
                writer.line(f"const uint32_t offset = k / 4 * {ATOM_BYTES} + k % 4 * 32;")
                writer.line(f"{product}(scores, attn::advance(left, offset), attn::advance(right, offset), k > 0);")
            writer.line("attn::wgmma_commit();")
            writer.line(f"const int from = warpgroup * {share} + column;")
            rows = self._at_rows()
            self._diagonal()
            # What needs no scores stands between the product and here.
            writer.line("attn::wgmma_wait<0>();", "attn::hold(scores);")
            pieces = ["packed", "residual"] if self._rows.residual is not None else ["packed"]
            with core.unrolled("c", share // 8, 2):
                writer.line(f"uint32_t {', '.join(f'{name}[4]' for name in pieces)};")
                with core.unrolled("d", 2):
                    columns = self._at_columns()
                    with core.unrolled("h", 2):
                        writer.line("float pair[2];")
                        with core.unrolled("e", 2):
                            writer.line(f"pair[e] = {self._weight(rows, columns)};")
                        if self._rows.skip is not None:
                            writer.line(f"if ({self._on_diagonal}) pair[0] += diagonal[2 * h], pair[1] += diagonal[2 * h + 1];")
                        writer.line(f"packed[2 * d + h] = {self._pack}(pair[0], pair[1]);")
                        if self._rows.residual is not None:
                            writer.line(f"residual[2 * d + h] = {self._residual}(packed[2 * d + h], pair[0], pair[1]);")
                        if self._rows.diagonal is not None:
                            self._store_diagonal(self._rows.diagonal, rows, columns)
                writer.line(
                    f"const int place = (16 * warp + lane / 8 % 2 * 8 + lane % 8) * 128 + (warpgroup * {share} + 8 * (c + lane / 16)) * 2;"
                )
                for name, to in zip(pieces, layout.weights, strict=True):
                    words = ", ".join(f"{name}[{n}]" for n in range(4))
                    writer.line(f"attn::store_matrices({to} + attn::swizzle_128(place), {words});")

    def _at_rows(self) -> dict[str, str]:
        """Values of this thread's two rows: sums and factors."""
        core, layout, found = self._core, self._layout, {}
        for name in ("sums", "left"):
            if name in layout.rows and (name != "sums" or self._scan.prefix is not None):
                found[name] = core.names.fresh(f"row_{name}")
                reads = [f"attn::load_shared(rows + {layout.rows[name]} + 4 * (row{f' + {8 * h}' if h else ''}))" for h in range(2)]
                core.writer.line(f"const float {found[name]}[2] = {{{', '.join(reads)}}};")
        return found

    @property
    def _on_diagonal(self) -> str:
        """Whether the block of 8 x 8 elements lies on the diagonal of A, the same for all threads of a warp."""
        return f"warpgroup * {self._share} + 8 * (c + d) == 16 * warp + 8 * h"

    def _diagonal(self) -> None:
        """What is added to the elements of such blocks that this thread has: 0 but for a row's own column."""
        if self._rows.skip is None:
            return
        for h in range(2):
            at = f"rows + {self._layout.rows['skip']} + 4 * (row{' + 8' if h else ''})"
            self._core.writer.line(f"const float skip_{h} = lane / 8 == lane % 4 ? attn::load_shared({at}) : 0.0f;")
        parts = [f"{'' if e else '!'}(lane / 4 % 2) ? skip_{h} : 0.0f" for h in range(2) for e in range(2)]
        self._core.writer.line(f"const float diagonal[4] = {{{', '.join(parts)}}};")

    def _at_columns(self) -> dict[str, str]:
        """Values of two columns."""
        core, layout, found = self._core, self._layout, {}
        for name in ("sums", "right"):
            if name in layout.rows and (name != "sums" or self._scan.prefix is not None):
                found[name] = core.names.fresh(f"column_{name}")
                core.writer.line(f"const float2 {found[name]} = attn::load_shared2(rows + {layout.rows[name]} + 4 * (from + 8 * (c + d)));")
        return found

    def _store_diagonal(self, element: ir.Value, rows: dict[str, str], columns: dict[str, str]) -> None:
        """Puts elements of the diagonal into shared memory, where row and column are the same."""
        core = self._core
        with core.scope(f"if ({self._on_diagonal} && lane / 8 == lane % 4)"):
            core.writer.line("const int e = lane / 4 % 2;")
            self._bind(element.owner.operation.block, rows, columns, "(e ? scores[4 * (c + d) + 2 * h + 1] : scores[4 * (c + d) + 2 * h])")
            core.writer.line(f"attn::store_shared(shared + kOwn + 4 * (row + 8 * h), {core.value(element)});")

    def _weight(self, rows: dict[str, str], columns: dict[str, str]) -> str:
        """An element of P before it is rounded."""
        self._bind(body(self._rows.weights), rows, columns, "scores[4 * (c + d) + 2 * h + e]")
        return self._core.value(self._rows.weight)

    def _bind(self, block: ir.Block, rows: dict[str, str], columns: dict[str, str], score: str) -> None:
        """Makes a map's arguments stand for a place, what it reads of row and column for their values, and elements of A for `score`."""
        core = self._core
        at_row, at_column = ({name: f"{x}[h]" for name, x in rows.items()}, {name: f"(e ? {x}.y : {x}.x)" for name, x in columns.items()})
        bind_rows(core, self._scan, block, (at_row, at_column))
        for argument, text in zip(block.arguments, ("(row + 8 * h)", "(from + 8 * (c + d) + e)"), strict=True):
            core.scalars.bind(argument, text)
        for inner in operations(block):
            if inner.name == "tensor.extract" and inner.operands[0] == self._rows.scores:
                core.scalars.bind(inner.results[0], score)

    def from_state(self) -> None:
        """o^T = S^T q^T, its columns scaled."""
        core, writer, layout = self._core, self._core.writer, self._layout
        writer.line(f"float o[{CHUNK // 2}];")
        with core.scope(""):
            writer.line(f"const uint64_t right = attn::k_major(at + {layout.tiles['q'].offset});")
            if self._scan.scaled:
                self._state_pieces(("residual",), False)
                with writer.unrolled("c", CHUNK // 2):
                    writer.line(f"o[c] *= {LOWER};")
                self._state_pieces(("held",), True)
            else:
                self._state_pieces(("held", "residual") if self._scan.compensated else ("held",), False)
        with writer.unrolled("c", CHUNK // 8):
            writer.line(
                f"const float2 factor = attn::load_shared2(rows + {layout.rows['output_decay']} + 4 * (column + 8 * c));",
                "o[4 * c] *= factor.x, o[4 * c + 1] *= factor.y, o[4 * c + 2] *= factor.x, o[4 * c + 3] *= factor.y;",
            )

    def _state_pieces(self, pieces: tuple[str, ...], started: bool) -> None:
        """Products with pieces of the state, added to o if it is `started`: rounded ("held"), and what that leaves out ("residual")."""
        core, writer = self._core, self._core.writer
        steps, product = self._scan.keys // 16, core.instruction(CHUNK, "registers", self._scan.element)
        most = thresholds.ROUNDED_STEPS
        held = min(steps, most // len(pieces) if steps <= most else most // 2 // len(pieces))
        with core.unrolled("first", steps, held):
            writer.line(*(f"uint32_t {name}[{4 * held}];" for name in pieces))
            with writer.unrolled("n", 4 * held):
                pair = "state[8 * first + 2 * n], state[8 * first + 2 * n + 1]"
                rounded = f"{self._pack}({pair})"
                if "held" in pieces:
                    writer.line(f"held[n] = {rounded};")
                if "residual" in pieces:
                    writer.line(f"residual[n] = {self._residual}({'held[n]' if 'held' in pieces else rounded}, {pair});")
            writer.line(*(f"attn::hold({name});" for name in pieces), "attn::wgmma_begin();")
            with writer.unrolled("k", held):
                writer.line(f"const uint32_t offset = (first + k) / 4 * {ATOM_BYTES} + (first + k) % 4 * 32;")
                for number, name in enumerate(pieces):
                    operand = ", ".join(f"{name}[4 * k + {n}]" for n in range(4))
                    more = "1" if number or started else "first + k > 0"
                    writer.line(f"{product}(o, {operand}, attn::advance(right, offset), {more});")
            # The products read these registers until they are done, and the next round writes them.
            writer.line("attn::wgmma_commit();", "attn::wgmma_wait<0>();", "attn::hold(o);", *(f"attn::hold({name});" for name in pieces))
