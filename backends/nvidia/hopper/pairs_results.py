"""Sums over queries on their way to memory: in 16 bits through shared memory and TMA, else from registers."""

from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.pairs_kernel import PairsKernel, key_count
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, head_columns
from attn_mlir.backends.nvidia.hopper.pairs_loop import STEP
from attn_mlir.backends.nvidia.hopper.pairs_reduction import added_barrier
from attn_mlir.backends.nvidia.hopper.stores import through_tma
from attn_mlir.backends.nvidia.hopper.tiles import ROWS, RegTile, atoms
from attn_mlir.backends.nvidia.hopper.wgmma import COLUMNS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

RESULTS = 8
"""Named barrier of the first warpgroup's results; those of the others follow."""


class ResultStores:
    """Prints `tile.store`."""

    def __init__(self, core: Core, kernel: PairsKernel, layout: BackwardLayout) -> None:
        self.core, self.kernel, self.layout = core, kernel, layout

    def store(self, op: ir.Operation, number: int) -> None:
        """Writes the sum over queries with this number."""
        tile, target = self.core.tiles[op.operands[0]], op.operands[1]
        if not isinstance(tile, RegTile):
            raise UnsupportedError("hopper: sums over queries are stored as tiles")
        element = str(ir.MemRefType(target.type).element_type)
        if element not in ("f16", "bf16", "f32"):
            raise UnsupportedError(f"hopper: sums are stored as f32, f16 or bf16, not {element}")
        results = self.layout.results
        beside = self.layout.reduction_warps and self.layout.among_adds and not self.layout.late  # others read there
        if results is not None and through_tma(target.type) and not beside:
            copy = number % results.copies
            part = next(iter(self.layout.adds.values())).bytes if self.layout.among_adds else results.bytes // self.layout.warpgroups
            if self.layout.roles:
                self._through(op, tile, str(self.layout.result_at(op)), True)
            else:
                self._through(op, tile, f"{results.offset + copy * results.bytes} + {part} * warpgroup", copy == 0)
        else:
            self._elements(op, tile, element)

    def _through(self, op: ir.Operation, tile: RegTile, offset: str, used: bool) -> None:
        """Registers, shared memory (each warpgroup its rows), TMA, which leaves out rows past the end of the tensor.

        `used`: what was at `offset` before may still be on its way.
        """
        core, writer = self.core, self.core.writer
        _, target, batch, head, row, _ = list(op.operands)
        threads = f"attn::named_sync({RESULTS} + warpgroup, 128);"
        with core.scope(""):
            if used and self.layout.among_adds and self.layout.reduction_warps:
                # The reduction warp has added the program's last sums from there.
                writer.line(f"attn::barrier_wait({added_barrier(self.layout)} + 8 * warpgroup, {STEP} & 1 ^ 1);")
            if used:
                writer.line("if (threadIdx.x % 128 == 0) attn::bulk_wait_read<0>();", threads)
            writer.line(
                "const unsigned own = attn::opaque(threadIdx.x) % 128;",
                f"const uint32_t result = attn::opaque(shared + {offset});",
                "const uint32_t place = (own / 32 * 16 + own % 16) * 128 + own % 32 / 16 * 16;",
            )
            pack = f"attn::{PACKS[str(ir.MemRefType(target.type).element_type)]}"
            full, rest = divmod(tile.columns, 16)
            with core.unrolled("c", full):
                words = ", ".join(f"{pack}({tile.name}[8 * c + {i}], {tile.name}[8 * c + {i + 1}])" for i in (0, 2, 4, 6))
                writer.line(f"attn::store_matrices(result + c / 4 * 8192 + attn::swizzle_128(place + c % 4 * 32), {words});")
            if rest:
                words = ", ".join(f"{pack}({tile.name}[{8 * full + i}], {tile.name}[{8 * full + i + 1}])" for i in (0, 2))
                at = f"result + {full // 4 * 8192} + attn::swizzle_128(place + {full % 4 * 32})"
                writer.line(f"attn::store_matrices({at}, {words}, 0, 0);")
            # TMA stores what all warps have written to shared memory.
            writer.line("attn::fence_proxy_async();", threads)
            places = [core.value(value) for value in (row, head, batch)]
            map_ = core.arguments.descriptor(target, COLUMNS, ROWS)
            with writer.block("if (threadIdx.x % 128 == 0)"):
                for atom in range(atoms(tile.columns)):
                    first = places[0] if self.layout.roles else f"{places[0]} + {ROWS} * warpgroup"
                    where = core.arguments.copied_at(target, first, *places[1:])
                    place = f"{COLUMNS * atom}, {where}"
                    writer.line(f"attn::tma_store({map_}, result + {8192 * atom}, {place});")
                writer.line("attn::bulk_commit();")

    def _elements(self, op: ir.Operation, tile: RegTile, element: str) -> None:
        """Registers to memory, two columns of a thread at once."""
        core = self.core
        _, target, batch, head, row, _ = list(op.operands)
        columns, count = head_columns(target), key_count(core, self.kernel)
        with core.unrolled("h", 2), core.scope(f"if (row + 8 * h < {count})"):
            texts = [core.value(batch), core.value(head), f"({core.value(row)} + row + 8 * h)", "column"]
            core.writer.line(f"auto *to = &{core.arguments.element(target, texts)};")
            core.writer.line("#pragma unroll")
            with core.writer.block(f"for (int c = 0; c < {tile.columns // 8}; ++c)"):
                low, high = f"{tile.name}[4 * c + 2 * h]", f"{tile.name}[4 * c + 2 * h + 1]"
                inside = "" if columns == tile.columns else f"if (column + 8 * c < {columns}) "
                if element == "f32":
                    core.writer.line(f"{inside}*reinterpret_cast<float2 *>(to + 8 * c) = make_float2({low}, {high});")
                else:
                    core.writer.line(f"{inside}*reinterpret_cast<uint32_t *>(to + 8 * c) = attn::pack_{element}({low}, {high});")
