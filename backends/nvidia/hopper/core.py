"""What every printer of a Hopper kernel works with: the text, its scalars, the kernel's arguments and its tiles."""

from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu.arguments import Arguments
from attn_mlir.backends.gpu.scalars import Names, Scalars
from attn_mlir.backends.gpu.writer import Writer
from attn_mlir.backends.nvidia.hopper.tiles import Fragment, Row, Tile, element_name
from attn_mlir.backends.nvidia.hopper.wgmma import wgmma
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_TAKEN = (
    "row column lane warpgroup h c e block head batch shared memory tile counter blocks pairs programs program round first "
    "inside group width pair drawn n kv count kind send found found_kv found_count begin_of end_of partial_blocks found_blocks "
    "key_blocks ends last more message next_program release thread shift own_begin own_end row_begin row_end visible skipped exact staging "
    "place turn final at_row at_column at ahead queries load_queries follow sent next_block next_head next_batch"
).split()
"""Names that the printed code uses for itself."""
_AXES = ("block", "head", "batch")
PANELS = {"f16": "pack_f16", "bf16": "pack_bf16"}
"""Functions of the header that round two numbers to 16 bits."""


class Core:
    """Prints the parts that all kernels have.

    `tiles` tells where each tile of the IR is. `writer` takes the text of the body. C++ variables that the body relies on:
    `block`, `head`, `batch` (the program), `row` and `column` (of this thread, see `tiles`), `lane` and `warpgroup`.
    """

    def __init__(self, kernel: ir.Operation, width: int) -> None:
        """`width`: the columns of tiles whose number of columns is not static."""
        self.kernel, self.width = kernel, width
        self.writer = Writer()
        self.arguments = Arguments(kernel)
        self.names = Names([*_TAKEN, *self.arguments.names])
        self.tiles: dict[ir.Value, Tile] = {}
        self._products: dict[str, str] = {}
        self.scalars = Scalars(self.writer.lines, self.names, self.load, self.extract, "", other=self._other)
        for value in self.arguments.values:
            if not isinstance(value.type, ir.MemRefType) and list(value.uses):
                self.scalars.bind(value, self.arguments.scalar(value, self.scalars.type_of(value)))

    # ---- scalars

    @contextmanager
    def scope(self, head: str | None = None) -> Iterator[None]:
        """A C++ block (`head { ... }`, "" for a bare one) or, with None, none: scalars printed inside are forgotten at its end."""
        outer = self.scalars
        if head is None:
            self.scalars = outer.nested(self.writer.lines, self.writer.indent)
            yield
        else:
            with self.writer.block(head):
                self.scalars = outer.nested(self.writer.lines, self.writer.indent)
                yield
        self.scalars = outer

    @contextmanager
    def unrolled(self, index: str, count: int) -> Iterator[None]:
        """A scope that is an unrolled loop."""
        self.writer.line("#pragma unroll")
        with self.scope(f"for (int {index} = 0; {index} < {count}; ++{index})"):
            yield

    def value(self, value: ir.Value) -> str:
        """The C++ expression of a scalar; prints what it needs here."""
        for op in self._ranges(value, set()):
            self._range(op)
        return self.scalars.emit(value)

    def _ranges(self, value: ir.Value, seen: set[ir.Value]) -> list[ir.Operation]:
        """The `attn.range` ops that a scalar is made of and that are not printed yet, operands first."""
        known = self.scalars._find(value) is not None  # pyright: ignore[reportPrivateUsage]
        if value in seen or known or isinstance(value.owner, ir.Block):
            return []
        seen.add(value)
        op, found = value.owner.operation, []
        for operand in op.operands:
            found += [other for other in self._ranges(operand, seen) if other not in found]
        return [*found, op] if op.name == "attn.range" else found

    def _range(self, op: ir.Operation) -> None:
        """Smallest and largest element of a box of a captured tensor; the lanes of a warp share the work."""
        source, *box = op.operands
        places = [self.scalars.emit(value) for value in box]
        rank, name = len(places) // 2, self.names.fresh("range")
        self.writer.line(f"attn::Range {name};")
        offset, indent = "0", self.writer.indent
        for dim in range(rank - 1):
            index = self.names.fresh("at")
            self.writer.line(f"for (int {index} = {places[dim]}; {index} < {places[rank + dim]}; ++{index})")
            self.writer.indent += "  "
            offset += f" + {index} * {self.arguments.stride(source, dim)}"
        stride = self.arguments.stride(source, rank - 1)
        self.writer.line(f"{name}.scan({self.arguments.pointer(source)} + {offset}, {stride}, {places[rank - 1]}, {places[-1]});")
        self.writer.indent = indent
        self.writer.line(f"{name}.combine();")
        for result, member in zip(op.results, ("lowest", "highest"), strict=True):
            self.scalars.bind(result, f"({self.scalars.type_of(result)}){name}.{member}")

    def _other(self, op: ir.Operation, operands: list[str]) -> str:
        if op.name == "memref.dim":
            return self.arguments.size(op.operands[0], int(operands[0]))
        if op.name == "tile.program_id":
            return _AXES[ir.IntegerAttr(op.attributes["axis"]).value]
        raise UnsupportedError(f"hopper: '{op.name}' cannot stand in scalar code ({op.location})")

    def load(self, op: ir.Operation, indices: list[str]) -> str:
        """An element of a captured tensor."""
        return self.arguments.element(op.operands[0], indices)

    def extract(self, op: ir.Operation, indices: list[str]) -> str:
        """An element of a tile at this thread's position: `c`, `e` and `h` are in scope (`h` alone for rows)."""
        tile = self.tiles.get(op.operands[0])
        places = [ir.BlockArgument(index).arg_number if isinstance(index.owner, ir.Block) else -1 for index in list(op.operands)[1:]]
        if isinstance(tile, Row) and places == [0]:
            return f"{tile.name}[h]"
        if isinstance(tile, Fragment) and places == [0, 1]:
            element = f"{tile.name}[4 * c + 2 * h + e]"
            return element if tile.element == "f32" else self.narrow(element, tile.element)
        raise UnsupportedError(f"hopper: the kernel reads {op.operands[0]} at {', '.join(indices)}, not at its own element")

    def narrow(self, text: str, element: str) -> str:
        """An f32 expression as a 16-bit number."""
        return f"__float2half_rn({text})" if element == "f16" else f"__float2bfloat16_rn({text})"

    def max_nan(self, kind: str) -> str:
        """The function that takes the larger ("max") or smaller number of two, NaN if one of them is."""
        self.scalars._context.helpers.add(f"{kind}_nan")  # pyright: ignore[reportPrivateUsage]
        return f"{kind}_nan"

    # ---- tiles

    def columns(self, type_: ir.Type) -> int:
        """The columns of a tile of rank 2."""
        shape = ir.RankedTensorType(type_).shape
        return self.width if shape[1] < 0 else shape[1]

    def rows(self, type_: ir.Type) -> int:
        """The rows of a tile."""
        shape = ir.RankedTensorType(type_).shape
        return self.width if shape[0] < 0 else shape[0]

    def fragment(self, hint: str, columns: int, element: str = "f32", start: str | None = None) -> Fragment:
        """Declares registers for a tile; all of them `start` if given. The columns are rounded up to a multiple of 8."""
        columns = -(-columns // 8) * 8
        fragment = Fragment(self.names.fresh(hint), columns, element)
        self.writer.line(f"float {fragment.name}[{fragment.registers}];")
        if start is not None:
            with self.writer.unrolled("c", fragment.registers):
                self.writer.line(f"{fragment.name}[c] = {start};")
        return fragment

    def row(self, hint: str, start: str | None = None, partial: bool = False) -> Row:
        """Declares one value for each row."""
        row = Row(self.names.fresh(hint), partial)
        self.writer.line(f"float {row.name}[2]{f' = {{{start}, {start}}}' if start is not None else ''};")
        return row

    def uses(self, text: str, n: int, a: str, element: str, transpose_b: bool = False, transpose_a: bool = False) -> None:
        """Notes that the wrapper of this instruction is called."""
        self._products[f"{n} {a} {element} {transpose_a} {transpose_b}"] = wgmma(n, a, element, transpose_a, transpose_b)

    def instructions(self) -> str:
        """The wrappers of all instructions that are used."""
        return "".join(self._products[key] for key in sorted(self._products))


def check_element(kernel: ir.Operation, value: ir.Value) -> str:
    """ "f16" or "bf16". Raises UnsupportedError for tiles of other types."""
    element = element_name(value.type)
    if element not in PANELS:
        raise UnsupportedError(f"hopper: matrix products take f16 or bf16 here, not {element} ({kernel.location})")
    return element
