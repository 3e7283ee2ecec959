"""Rows of o of a chunk on their way to memory: what pairs add to o^T, and o^T through the shared memory of v."""

from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.scan_common import ALL, ATOM, ATOM_BYTES, CHUNK, ScanFrame
from attn_mlir.backends.nvidia.hopper.scan_patterns import view_of
from attn_mlir.backends.nvidia.hopper.scan_products import ProductSums
from attn_mlir.mlir import ir


class LeavingPrinter:
    """Prints what is left to do for o^T, the accumulator `o`, with the columns of v in shared memory at `own`."""

    def __init__(self, core: Core, scan: ScanFrame, store: ir.Operation, weights: list[str], consumers: int) -> None:
        """`store` puts rows of o into memory; `weights`: the address of P, or of each piece of it; `consumers` threads hold states."""
        self._core, self._frame, self._store, self._weights, self._consumers = core, scan, store, weights, consumers
        self._pack, self._unpack = f"attn::{PACKS[scan.element]}", f"attn::un{PACKS[scan.element]}"

    def declare(self) -> None:
        """Where o is, for the threads that store rows of it: a chunk has a name `o` of its own."""
        if self._frame.packed:
            view = view_of(self._store.operands[1])
            self._core.writer.line(f"auto *const rows_of_o = {self._core.arguments.pointer(view.argument)};")

    def from_pairs(self) -> None:
        """Starts o^T += v^T P^T."""
        core, writer = self._core, self._core.writer
        product = core.instruction(CHUNK, "shared", self._frame.element, transpose_a=True)
        writer.line("attn::hold(o);")
        with core.scope(""):
            writer.line(f"const uint64_t left = attn::mn_major(own, {ATOM_BYTES});")
            rights = [core.names.fresh("right") for _ in self._weights]
            writer.line(*(f"const uint64_t {right} = attn::k_major({at});" for right, at in zip(rights, self._weights, strict=True)))
            writer.line("attn::wgmma_begin();")
            with writer.unrolled("k", CHUNK // 16):
                for right in rights:
                    writer.line(f"{product}(o, attn::advance(left, k * 2048), attn::advance({right}, k * 32), 1);")
            writer.line("attn::wgmma_commit();")

    def leave(self, sums: ProductSums | None = None) -> None:
        """o^T to the memory of v, and from there to o; rows past the end stay behind. `sums` with a factor are made on the way."""
        core, writer, store = self._core, self._core.writer, self._store
        together = "attn::named_sync(2 + warpgroup, 128);"
        if sums is not None:
            sums.add(self._unpack)
        # o goes where v was, which all warps of the warpgroup have read; sums are of what all warpgroups have.
        writer.line(together if sums is None else f"attn::named_sync({ALL}, {self._consumers});")
        with writer.block("#pragma unroll\n  for (int c = 0; c < 8; c += 2)".replace("\n  ", f"\n{writer.indent}")):
            words = [f"{self._pack}(o[4 * c + {n}], o[4 * c + {n + 1}])" for n in (0, 2, 4, 6)]
            writer.line("attn::store_matrices_transposed(own + attn::swizzle_128((8 * c + turned_row) * 128 + turned_column),")
            writer.line(*(f"                       {word}{',' if n < 3 else ');'}" for n, word in enumerate(words)))
        # A bulk copy takes these rows from shared memory, once all warps have written theirs.
        writer.line("attn::fence_proxy_async();", together)
        if sums is not None:
            sums.flush()
        view = view_of(store.operands[1])
        batch, head, first = (core.value(value) for value in list(store.operands)[2:5])
        column = f"{core.value(view.column)} + " if view.column is not None else ""
        descriptor = core.arguments.descriptor(view.argument, ATOM, CHUNK)
        place = f"{column}warpgroup * {ATOM}"
        whole = self._store_tail(view.argument, [batch, head, first], place) if self._frame.packed else ""
        with writer.block(f"{whole}if (leader)"):
            writer.line(f"attn::tma_store({descriptor}, own, {place}, {first}, {head}, {batch});", "attn::bulk_commit();")

    def _store_tail(self, argument: ir.Value, place: list[str], column: str) -> str:
        """Where the box of the copy engine would reach into the next sequence, the threads store rows, 16 bytes each. "else "."""
        core, writer = self._core, self._core.writer
        batch, head, first = place
        count, columns = core.value(self._frame.count), CHUNK * 8
        with core.scope(f"if ({count} < {CHUNK})"):
            with core.scope(f"for (int place = threadIdx.x % 128; place < {columns}; place += 128)"):
                writer.line("const int i = place / 8, j = place % 8 * 8;")
                places = zip((batch, head, f"({first} + i)", f"({column} + j)"), range(4), strict=True)
                offset = " + ".join(f"{index} * {core.arguments.stride(argument, dim)}" for index, dim in places)
                row = "attn::load_shared_int4(own + attn::swizzle_128(i * 128 + j * 2))"
                writer.line(f"if (i < {count}) *reinterpret_cast<int4 *>(&rows_of_o[{offset}]) = {row};")
        return "else "
