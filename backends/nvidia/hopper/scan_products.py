"""Sums over columns of o times a factor (before o is rounded), for every position; behind them o gets what positions give to themselves.

Sums of that are apart where they are wanted. At last rows of o may have a factor.
"""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM_BYTES, CHUNK
from attn_mlir.backends.nvidia.hopper.scan_layout import ScanLayout
from attn_mlir.backends.nvidia.hopper.scan_patterns import view_of
from attn_mlir.backends.nvidia.hopper.scan_rows import OutputRows
from attn_mlir.mlir import ir

_PLACE = "4 * (8 * (attn::place_of_sum() / 2) + column)"
"""Where the two positions whose sums a thread gets lie in a row of numbers."""


class ProductSums:
    """Each warp adds up its columns; the sums of all warps meet in shared memory, and one stores them."""

    def __init__(self, core: Core, rows: OutputRows, layout: ScanLayout) -> None:
        self._core, self._rows, self._layout = core, rows, layout
        self._warps = 4 * layout.warpgroups

    def add(self, unpack: str) -> None:
        """The warps' sums of this chunk, then what is missing in o."""
        core, writer = self._core, self._core.writer
        with core.scope(""):
            self._declare()
            with core.unrolled("c", CHUNK // 8, 2):
                self._load("factor", "other")
                with writer.unrolled("d", 2):
                    writer.line(f"const float2 upper = {unpack}(factor[2 * d]), lower = {unpack}(factor[2 * d + 1]);")
                    for e, part in enumerate("xy"):
                        terms = [
                            f"o[4 * (c + d){f' + {at}' if at else ''}] * {name}.{part}" for at, name in ((e, "upper"), (e + 2, "lower"))
                        ]
                        writer.line(f"sums[2 * (c + d){' + 1' if e else ''}] = {' + '.join(terms)};")
                if self._rows.diagonal is not None and self._rows.diagonal_sums is None:
                    self._load("values", "own")
                    with writer.unrolled("d", 2):
                        self._add_own(unpack)
            writer.line("const float2 total = attn::sum_over_rows(sums);")
            writer.line(f"attn::store_shared2({self._of_warp('kSums')}, total.x, total.y);")
        if self._rows.diagonal_sums is not None:
            with core.scope(""):
                self._diagonal_sums(unpack)

    def _declare(self) -> None:
        """The factor's swizzle atom and 16 sums of a thread."""
        writer = self._core.writer
        writer.line(f"const uint32_t other = at + {self._layout.tiles['factor'].offset} + warpgroup * {ATOM_BYTES};")
        writer.line(f"float sums[{CHUNK // 4}];")

    def _load(self, name: str, atom: str) -> None:
        """Elements of a swizzle atom for columns of matrices c and c + 1, as those of o lie in a thread."""
        self._core.writer.line(
            f"uint32_t {name}[4];",
            f"attn::load_matrices_transposed({atom} + attn::swizzle_128((8 * c + turned_row) * 128 + turned_column), {name});",
        )

    def _add_own(self, unpack: str) -> None:
        """What the positions give to their own rows, which the sums leave out, and the factor of the whole."""
        writer = self._core.writer
        writer.line(
            "const float2 score = attn::load_shared2(shared + kOwn + 4 * (8 * (c + d) + column));",
            f"const float2 upper = {unpack}(values[2 * d]), lower = {unpack}(values[2 * d + 1]);",
            "o[4 * (c + d)] += score.x * upper.x, o[4 * (c + d) + 1] += score.y * upper.y;",
            "o[4 * (c + d) + 2] += score.x * lower.x, o[4 * (c + d) + 3] += score.y * lower.y;",
        )
        if self._rows.result is not None:
            writer.line(
                f"const float2 result = attn::load_shared2(rows + {self._layout.rows['result']} + 4 * (8 * (c + d) + column));",
                "o[4 * (c + d)] *= result.x, o[4 * (c + d) + 1] *= result.y;",
                "o[4 * (c + d) + 2] *= result.x, o[4 * (c + d) + 3] *= result.y;",
            )

    def _diagonal_sums(self, unpack: str) -> None:
        """The sums of v times the factor, times the positions' scores with themselves: after the others, whose registers they take."""
        core, writer = self._core, self._core.writer
        self._declare()
        with core.unrolled("c", CHUNK // 8, 2):
            self._load("factor", "other")
            self._load("values", "own")
            with writer.unrolled("d", 2):
                self._add_own(unpack)
                writer.line(
                    f"const float2 above = {unpack}(factor[2 * d]), below = {unpack}(factor[2 * d + 1]);",
                    "sums[2 * (c + d)] = upper.x * above.x + lower.x * below.x;",
                    "sums[2 * (c + d) + 1] = upper.y * above.y + lower.y * below.y;",
                )
        writer.line(
            f"const float2 total = attn::sum_over_rows(sums), score = attn::load_shared2(shared + kOwn + {_PLACE});",
            f"attn::store_shared2({self._of_warp('kDiagonalSums')}, total.x * score.x, total.y * score.y);",
        )

    def _of_warp(self, sums: str) -> str:
        return f"shared + {sums} + (4 * warpgroup + warp) * {CHUNK * 4} + {_PLACE}"

    def flush(self) -> None:
        """Stores the sums, after all warpgroups have met and before one of them adds those of the next chunk."""
        core, rows = self._core, self._rows
        with core.scope(f"if (threadIdx.x < {CHUNK})"):
            for name, sums, op in (("sum", "kSums", rows.products), ("diagonal_sum", "kDiagonalSums", rows.diagonal_sums)):
                if op is not None:
                    self._flush(name, sums, op)

    def _flush(self, name: str, sums: str, op: ir.Operation) -> None:
        """Adds up the warps' sums of a position for each thread; `name`: of the variable."""
        core, writer = self._core, self._core.writer
        view = view_of(op.operands[1])
        batch, head, first, count = (core.value(value) for value in list(op.operands)[2:6])
        writer.line(f"float {name} = 0.0f;")
        with writer.unrolled("n", self._warps):
            writer.line(f"{name} += attn::load_shared(shared + {sums} + n * {CHUNK * 4} + 4 * threadIdx.x);")
        slot = [core.value(view.slot)] if view.slot is not None else []
        element = core.arguments.element(view.argument, [*slot, batch, head, f"({first} + (int)threadIdx.x)"])
        writer.line(f"if ((int)threadIdx.x < {count}) {element} = {name};")
