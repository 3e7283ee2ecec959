"""Prints matrix products of tiles: `tile.dot`, `tile.dot_add`, `tile.dot_rescale`."""

from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.dropout import print_row_words
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegRow, RegTile, SharedTile
from attn_mlir.backends.nvidia.hopper.wgmma import ROW_BYTES, SharedOperand, product
from attn_mlir.errors import UnsupportedError


class WgmmaProducts:
    """Starts products on the tensor cores. A product is in flight until `wait`; then `hold` its accumulator."""

    def __init__(self, core: Core) -> None:
        self.core = core

    def left(self, tile: SharedTile) -> SharedOperand:
        """Operand A of this warpgroup: its own 64 rows of a tile whose columns run along K."""
        address = tile.address if tile.rows == ROWS else f"{tile.address} + warpgroup * {ROWS * ROW_BYTES}"
        return SharedOperand(self.uniform(address), tile.atom_bytes)

    def uniform(self, address: str) -> str:
        """An address in shared memory, known to be the same in a warp; descriptors have no room for the rank in a cluster."""
        return f"attn::uniform({address})" if not self.core.in_cluster else f"attn::uniform(attn::without_rank({address}))"

    def start(
        self,
        to: RegTile,
        a: SharedOperand | str,
        b: SharedTile,
        depth: int,
        transpose_b: bool,
        clear: bool | str,
        element: str,
        *,
        beside: str = "",
    ) -> None:
        """Starts to += a b (64 x columns); b's rows are columns of the result with `transpose_b`, else they run along K.

        `beside`: the address of 16 more rows, those of further columns of b at every step along K.
        """
        core = self.core
        if transpose_b and to.columns != b.rows:
            raise UnsupportedError(f"hopper: a product has {b.rows} columns, its tile {to.columns}")
        if to.columns > 256:
            raise UnsupportedError(f"hopper: a product has up to 256 columns, not {to.columns}")
        right = SharedOperand(self.uniform(b.address), b.atom_bytes, mn_major=not transpose_b, beside=beside)
        left_form = "registers" if isinstance(a, str) else "shared"
        transpose_a = not isinstance(a, str) and a.mn_major
        core.uses("", to.columns, left_form, element, not transpose_b, transpose_a)
        core.writer.all(product(to.name, to.columns, depth, a, right, element, clear=clear))

    def begin(self) -> None:
        """Before the first product after registers were written."""
        self.core.writer.line("attn::wgmma_begin();")

    def commit(self) -> None:
        """The products started since the last one are one group."""
        self.core.writer.line("attn::wgmma_commit();")

    def wait(self, pending: int, *tiles: RegTile) -> None:
        """Waits until only `pending` groups are in flight; then these accumulators may be read."""
        # `hold`: the compiler does not know that these registers change while a product runs.
        self.core.writer.line(f"attn::wgmma_wait<{pending}>();", *(f"attn::hold({tile.name});" for tile in tiles))

    def pack(self, tile: RegTile, to: str | None = None) -> str:
        """Rounds a tile to 16 bits for operand A: the name of `columns / 4` registers, new ones unless `to` names them."""
        core = self.core
        if to is None:
            to = core.names.fresh("packed")
            core.writer.line(f"uint32_t {to}[{tile.columns // 4}];")
        two = f"attn::{PACKS[tile.element]}({tile.name}[2 * c], {tile.name}[2 * c + 1])"
        if tile.kept:
            self._pack_kept(tile, two, to)
            return to
        with core.writer.unrolled("c", tile.columns // 4):
            core.writer.line(f"{to}[c] = {two};")
        return to

    def _pack_kept(self, tile: RegTile, two: str, to: str) -> None:
        """The same for weights that dropout makes 0."""
        core = self.core
        words = core.names.fresh("kept_of_row")
        core.writer.line(f"unsigned {words}[2];")
        with core.unrolled("c", tile.columns // 4):
            with core.scope("if (c % 8 == 0)"):
                core.writer.line("const int block = c / 2;")
                print_row_words(core, tile.kept, words, "block")
            core.writer.line(f"{to}[c] = {two} & {core.scalars.helper('philox_mask')}({words}[c % 2] << c / 4 % 2 * 4, c / 2 % 2);")

    def rescale(self, tile: RegTile, by: RegRow, vote: bool) -> None:
        """Multiplies the rows of an accumulator; with `vote` only where a warp has a factor other than 1."""
        if vote:
            self.core.writer.line(f"attn::rescale({tile.name}, {by.name}[0], {by.name}[1]);")
            return
        with self.core.writer.unrolled("c", tile.registers):
            self.core.writer.line(f"{tile.name}[c] *= {by.name}[c / 2 % 2];")
