"""What every printer of a Hopper kernel works with: its tiles in registers, and the matrix instructions that it uses."""

from attn_mlir.backends.gpu.core import PrinterCore
from attn_mlir.backends.gpu.structure import element_name, widened
from attn_mlir.backends.nvidia.hopper.tiles import RegRow, RegTile, Tile
from attn_mlir.backends.nvidia.hopper.wgmma import wgmma, wgmma_name
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_TAKEN = (
    "row column lane warpgroup h c e block head batch shared memory tile counter blocks pairs programs program round first "
    "inside group width pair drawn n kv count kind send found found_kv found_count begin_of end_of partial_blocks found_blocks "
    "key_blocks ends last more message next_program release thread shift own_begin own_end row_begin row_end visible skipped exact staging "
    "place iteration final at_row at_column at ahead queries load_queries follow sent next_block next_head next_batch "
    "raw widener asked from exchanges"
).split()
"""Names that the printed code uses for itself."""
PACKS = {"f16": "pack_f16", "bf16": "pack_bf16"}
"""Functions of the header that round two numbers to 16 bits."""


class Core(PrinterCore[Tile]):
    """Prints the parts that all kernels have.

    Further C++ variables that the body relies on: `row` and `column` (of this thread, see `tiles`), `lane` and `warpgroup`.
    """

    emitter = "hopper"

    def __init__(self, kernel: ir.Operation, width: int) -> None:
        """`width`: the columns of tiles whose number of columns is not static."""
        super().__init__(kernel, width, _TAKEN)
        self._products: dict[str, str] = {}
        self.cluster = 1
        """How many thread blocks of a cluster share the columns of q, k, v and o; types have those of one."""
        self.parts_in_cluster = False
        """Whether thread blocks of a cluster have parts of the keys (`few_rows`)."""
        self.seeds: dict[str, str] = {}
        """What was read before loops: names of the numbers of dropout, by their expressions."""

    @property
    def in_cluster(self) -> bool:
        """Whether addresses in shared memory have the rank of a thread block."""
        return self.cluster > 1 or self.parts_in_cluster

    def extract(self, op: ir.Operation, indices: list[str]) -> str:
        """An element of a tile at this thread's position: `c`, `e` and `h` are in scope (`h` alone for rows)."""
        tile = self.tiles.get(op.operands[0])
        places = self.own(op)
        if isinstance(tile, RegRow) and places == [0]:
            return f"{tile.name}[h]"
        if isinstance(tile, RegTile) and places == [0, 1]:
            element = f"{tile.name}[4 * c + 2 * h + e]"
            return element if tile.element == "f32" else self.narrow(element, tile.element)
        raise UnsupportedError(f"hopper: the kernel reads {op.operands[0]} at {', '.join(indices)}, not at its own element")

    def max_nan(self, kind: str) -> str:
        """The function that takes the larger ("max") or smaller number of two, NaN if one of them is."""
        self.scalars._context.helpers.add(f"{kind}_nan")  # pyright: ignore[reportPrivateUsage]
        return f"{kind}_nan"

    def column_at(self, value: ir.Value, column: int) -> str:
        """Where a column of this thread block's part of a tensor is in the whole."""
        return str(column) if self.cluster == 1 else f"attn::cluster_rank() * {ir.MemRefType(value.type).shape[-1]} + {column}"

    # ---- tiles

    def number(self, value: ir.Value) -> str:
        """An element as f32, whatever it is rounded to later."""
        wide = widened(value)
        text = self.scalars.emit(wide)
        return {"f16": f"__half2float({text})", "bf16": f"__bfloat162float({text})"}.get(str(wide.type), text)

    def fragment(self, hint: str, columns: int, element: str = "f32", start: str | None = None) -> RegTile:
        """Declares registers for a tile; all of them `start` if given. The columns are rounded up to a multiple of 8."""
        columns = -(-columns // 8) * 8
        fragment = RegTile(self.names.fresh(hint), columns, element)
        self.writer.line(f"float {fragment.name}[{fragment.registers}];")
        if start is not None:
            with self.writer.unrolled("c", fragment.registers):
                self.writer.line(f"{fragment.name}[c] = {start};")
        return fragment

    def row(self, hint: str, start: str | None = None, partial: bool = False) -> RegRow:
        """Declares one value for each row."""
        row = RegRow(self.names.fresh(hint), partial)
        self.writer.line(f"float {row.name}[2]{f' = {{{start}, {start}}}' if start is not None else ''};")
        return row

    def uses(self, text: str, n: int, a: str, element: str, transpose_b: bool = False, transpose_a: bool = False) -> None:
        """Notes that the wrapper of this instruction is called."""
        self._products[f"{n} {a} {element} {transpose_a} {transpose_b}"] = wgmma(n, a, element, transpose_a, transpose_b)

    def instruction(self, n: int, a: str, element: str, transpose_b: bool = False, transpose_a: bool = False) -> str:
        """The function that is this instruction; its wrapper is noted."""
        self.uses("", n, a, element, transpose_b=transpose_b, transpose_a=transpose_a)
        return f"attn::{wgmma_name(n, a, element, transpose_a, transpose_b)}"

    def instructions(self) -> str:
        """The wrappers of all instructions that are used."""
        return "".join(self._products[key] for key in sorted(self._products))


def check_element(kernel: ir.Operation, value: ir.Value) -> str:
    """ "f16" or "bf16". Raises UnsupportedError for tiles of other types."""
    element = element_name(value.type)
    if element not in PACKS:
        raise UnsupportedError(f"hopper: matrix products take f16 or bf16 here, not {element} ({source_line(kernel.location)})")
    return element
