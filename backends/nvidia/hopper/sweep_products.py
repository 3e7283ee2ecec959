"""Sums over columns of o times a factor (before o is rounded), for every position; behind them o gets what positions give to themselves."""

from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.sweep_forms import view_of
from attn_mlir.backends.nvidia.hopper.sweep_frame import CHUNK, PANEL_BYTES
from attn_mlir.backends.nvidia.hopper.sweep_layout import SweepLayout
from attn_mlir.backends.nvidia.hopper.sweep_rows import Rows


class ProductSums:
    """Each warp adds up its columns; the sums of all warps meet in shared memory, and one stores them."""

    def __init__(self, core: Core, rows: Rows, layout: SweepLayout) -> None:
        self._core, self._rows, self._layout = core, rows, layout
        self._warps = 4 * layout.warpgroups

    def add(self, unpack: str) -> None:
        """The warps' sums of this chunk, then what is missing in o."""
        core, writer = self._core, self._core.writer
        with core.scope(""):
            writer.line(f"const uint32_t other = at + {self._layout.tiles['factor'].offset} + warpgroup * {PANEL_BYTES};")
            writer.line(f"float sums[{CHUNK // 4}];")
            with core.unrolled("c", CHUNK // 8, 2):
                writer.line("uint32_t factor[4];")
                writer.line("attn::load_transposed(other + attn::swizzle_128((8 * c + turned_row) * 128 + turned_column), factor);")
                with writer.unrolled("d", 2):
                    writer.line(f"const float2 upper = {unpack}(factor[2 * d]), lower = {unpack}(factor[2 * d + 1]);")
                    for e, part in enumerate("xy"):
                        terms = [
                            f"o[4 * (c + d){f' + {at}' if at else ''}] * {name}.{part}" for at, name in ((e, "upper"), (e + 2, "lower"))
                        ]
                        writer.line(f"sums[2 * (c + d){' + 1' if e else ''}] = {' + '.join(terms)};")
                self._add_own(unpack)
            writer.line("const float2 total = attn::sum_over_rows(sums);")
            place = "4 * (8 * (attn::place_of_sum() / 2) + column)"
            where = f"shared + kSums + (4 * warpgroup + warp) * {CHUNK * 4} + {place}"
            writer.line(f"attn::store_shared2({where}, total.x, total.y);")

    def _add_own(self, unpack: str) -> None:
        """What the positions give to their own rows, which the sums leave out."""
        writer = self._core.writer
        writer.line("uint32_t values[4];")
        writer.line("attn::load_transposed(own + attn::swizzle_128((8 * c + turned_row) * 128 + turned_column), values);")
        with writer.unrolled("d", 2):
            writer.line(
                "const float2 score = attn::load_shared2(shared + kOwn + 4 * (8 * (c + d) + column));",
                f"const float2 upper = {unpack}(values[2 * d]), lower = {unpack}(values[2 * d + 1]);",
                "o[4 * (c + d)] += score.x * upper.x, o[4 * (c + d) + 1] += score.y * upper.y;",
                "o[4 * (c + d) + 2] += score.x * lower.x, o[4 * (c + d) + 3] += score.y * lower.y;",
            )

    def flush(self) -> None:
        """Stores the sums, after all warpgroups have met and before one of them adds those of the next chunk."""
        core, writer, op = self._core, self._core.writer, self._rows.products
        if op is None:
            return
        with core.scope(f"if (threadIdx.x < {CHUNK})"):
            view = view_of(op.operands[1])
            batch, head, first, count = (core.value(value) for value in list(op.operands)[2:6])
            writer.line("float sum = 0.0f;")
            with writer.unrolled("n", self._warps):
                writer.line(f"sum += attn::load_shared(shared + kSums + n * {CHUNK * 4} + 4 * threadIdx.x);")
            slot = [core.value(view.slot)] if view.slot is not None else []
            element = core.arguments.element(view.argument, [*slot, batch, head, f"({first} + (int)threadIdx.x)"])
            writer.line(f"if ((int)threadIdx.x < {count}) {element} = sum;")
