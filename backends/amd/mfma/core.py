"""What every printer of a kernel with matrix products works with: its tiles in registers, and the factors of their weights."""

from attn_mlir.backends.amd.mfma.tiles import MATRIX, STEP, MfmaFragment, MfmaRow, PackedTile, Tile, round_up
from attn_mlir.backends.gpu.core import PrinterCore
from attn_mlir.backends.gpu.structure import constant
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.elements import EIGHT_BIT
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_TAKEN = (
    "row column half wave lane at_row swap n r e c g u pair block head batch memory next inside chunk patch group place position "
    "target query_sum scatter_sum attn here"
).split()
"""Names that the printed code uses for itself."""
ALL_ROWS = "true"
"""The condition that a row exists where all do."""
PACKS = {"f16": "f16", "bf16": "bf16"}
TYPES = {"f16": "__half", "bf16": "__hip_bfloat16"}


class MfmaCore(PrinterCore[Tile]):
    """Prints the parts that all kernels have.

    Further C++ variables that the body relies on: `row`, `column`, `half`, `wave` and `lane` (of this thread, see `tiles`).
    """

    emitter = "amd"

    def __init__(self, kernel: ir.Operation, width: int, recompute: bool) -> None:
        """`width`: the columns of tiles whose number of columns is not static. `recompute`: see `here`."""
        super().__init__(kernel, width, _TAKEN)
        self.recompute = recompute
        self.scales: dict[str, str] = {}
        """By the names of accumulators: the factor that their weights have, and so their sums."""
        self.factors: dict[str, str] = {}
        """By the names of weights in 16 bits: the factor that they have."""
        self.scaled: dict[str, bool] = {}
        """By the names of accumulators: whether the weights of their products have a factor."""
        self.parts: dict[str, float] = {}
        """By the names of accumulators that are not settled: the part of their sums that they hold, where it is not all."""
        self.waiting: set[str] = set()
        """Weights that have been rounded and wait for their product."""
        self.weights_scaled = "tile.scale_log2" in kernel.attributes
        """Whether weights are large enough as they are."""
        self.rows_exist = ALL_ROWS
        """The condition that this lane's row exists."""
        self.aligned: dict[int, int] = {}
        """Of how many elements the rows of an argument must start at multiples."""

    def here(self) -> None:
        """Declares where this thread is.

        Where registers are short, loops do it again, so that no addresses that follow from it are kept while they run.
        """
        self.writer.line(
            "const int lane = attn::thread() & 63, half = lane >> 5, row = (attn::thread() >> 6) * 32 + (lane & 31), column = 16 * half;"
        )

    def extract(self, op: ir.Operation, indices: list[str]) -> str:
        """An element of a tile at this lane's position: `n` and `r` are in scope for tiles of two dimensions."""
        tile = self.tiles.get(op.operands[0])
        places = self.own(op)
        if isinstance(tile, MfmaRow) and places == [0]:
            return tile.name
        if isinstance(tile, MfmaFragment) and places == [0, 1]:
            element, kind = f"{tile.name}[n][r]", element_name_of(op)
            return self.narrow(element, kind) if kind in PACKS else element
        if isinstance(tile, PackedTile) and places == [0, 1] and tile.element in PACKS:
            return f"attn::bits<{TYPES[tile.element]}>(attn::half_of({tile.name}[2 * n + r / 8][r / 2 % 4], r % 2))"
        raise UnsupportedError(
            f"amd: the kernel reads {op.operands[0]} at {', '.join(indices)}, not at its own element; where a mod reads other channels, "
            f"run attn-apply-mods,attn-outline{{keep-hosts=false}} first ({source_line(op.location)})"
        )

    # ---- tiles

    def columns_of(self, op: ir.Operation) -> int:
        """How many columns a map over pairs has at most."""
        extent = constant(list(op.operands)[1])
        return self.width if extent is None else int(extent)

    def fragment(self, hint: str, columns: int, start: str | None = None) -> MfmaFragment:
        """Declares registers for a tile of f32; all of them `start` if given."""
        fragment = MfmaFragment(self.names.fresh(hint), round_up(columns, STEP))
        self.writer.line(f"attn::Float16x {fragment.name}[{fragment.parts}];")
        if start is not None:
            self.fill(fragment, start)
        return fragment

    def fill(self, fragment: MfmaFragment, start: str) -> None:
        """Sets all elements of a tile."""
        self.writer.line("#pragma unroll", f"for (int n = 0; n < {fragment.parts}; ++n) {fragment.name}[n] = (attn::Float16x)({start});")

    def accumulator(self, hint: str, columns: int, start: str) -> MfmaFragment:
        """Registers for sums of products, whose weights have a factor that changes while the kernel runs."""
        fragment = self.fragment(hint, columns, start)
        if not self.weights_scaled and start == "0.0f":
            scale = self.scales[fragment.name] = self.names.fresh(f"{fragment.name}_scale")
            self.writer.line(f"float {scale} = attn::kFirstScale;")
        return fragment

    def settle(self, fragment: MfmaFragment) -> None:
        """Takes the factor out of sums."""
        scale = self.scales.get(fragment.name)
        if scale is not None and self.scaled.get(fragment.name):
            self.writer.line(f"attn::settle({fragment.name}, {scale});")
        part = self.parts.pop(fragment.name, 1.0)
        if part != 1.0:
            self.writer.line(f"attn::multiply({fragment.name}, {1.0 / part!r}f);")

    def packed(self, hint: str, columns: int, element: str) -> PackedTile:
        """Declares registers for a tile of `MATRIX` elements."""
        tile = PackedTile(self.names.fresh(hint), round_up(columns, STEP), element)
        self.writer.line(f"attn::{MATRIX[element].words} {tile.name}[{tile.columns // 16}];")
        return tile

    def widening(self, load: ir.Operation) -> str:
        """The function that makes the tile's elements of 8-bit ones that are loaded; empty where these are as in memory."""
        memory, element = (str(value.type.element_type) for value in (load.operands[0], load.results[0]))
        if memory == element:
            return "attn::halves" if element in MATRIX and MATRIX[element].part != 1.0 else ""
        return f"attn::widened<{self.scalars.helper(f'widen_{memory}')}, attn::round_{element}>"

    def row(self, hint: str, start: str | None = None, partial: bool = False) -> MfmaRow:
        """Declares one value for each row."""
        row = MfmaRow(self.names.fresh(hint), partial)
        self.writer.line(f"float {row.name}{f' = {start}' if start is not None else ''};")
        return row

    # ---- arguments

    def align(self, value: ir.Value) -> int:
        """Of how many elements rows of a tensor start at multiples: 8, or as many as its columns allow. The driver sees to it."""
        columns = ir.MemRefType(value.type).shape[-1]
        align = next(size for size in (8, 4, 2, 1) if columns % size == 0)
        self.aligned[self.arguments.number(value)] = align
        return align


def element_name_of(op: ir.Operation) -> str:
    """The type of what an extraction gives."""
    return str(op.results[0].type)


def check_element(load: ir.Operation) -> str:
    """Those of a loaded tile. Raises UnsupportedError for other types than those of `MATRIX`, and those that loads widen to 16 bits."""
    element, memory = (str(value.type.element_type) for value in (load.results[0], load.operands[0]))
    if element not in MATRIX or (memory != element and (memory not in EIGHT_BIT or element not in PACKS)):
        raise UnsupportedError(f"amd: matrix products take f16 or bf16, not {element}: cast q, k and v to one of them, or use the CPU")
    return element
