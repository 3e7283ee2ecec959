"""What printers of kernels work with on every GPU: the text, its scalars, the kernel's arguments, and where its tiles are."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from attn_mlir.backends.gpu.arguments import Arguments
from attn_mlir.backends.gpu.scalars import Names, Scalars
from attn_mlir.backends.gpu.writer import CodeWriter
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_AXES = ("block", "head", "batch")
Tile = TypeVar("Tile")


class PrinterCore(Generic[Tile]):
    """Prints the parts that all kernels have; what a tile is, and how one of its elements is read, is a subclass's affair.

    `tiles` tells where each tile of the IR is. `writer` takes the text of the body, which relies on the C++ variables `block`, `head` and
    `batch` (the program). `emitter` stands in front of errors.
    """

    emitter = ""

    def __init__(self, kernel: ir.Operation, width: int, taken: Iterable[str]) -> None:
        """`width`: the columns of tiles whose number of columns is not static; `taken`: names that the printed code uses for itself."""
        self.kernel, self.width = kernel, width
        self.writer = CodeWriter()
        self.arguments = Arguments(kernel)
        self.names = Names([*taken, *self.arguments.names])
        self.tiles: dict[ir.Value, Tile] = {}
        self.scalars = Scalars(self.writer.lines, self.names, self.load, self.extract, "", other=self._other)
        for value in self.arguments.values:
            if not isinstance(value.type, ir.MemRefType) and list(value.uses):
                self.scalars.bind(value, self.arguments.scalar(value, self.scalars.type_of(value)))

    @property
    def packed(self) -> bool:
        """Whether programs are items of a list of work, whose last row tells how many there are."""
        return "lengths" in ir.DictAttr(self.kernel.attributes["tile.kernel"])

    def table_of(self, memory: ir.Value) -> ir.Value | None:
        """The table of pages that a tensor lies in; None where it does not."""
        facts = ir.DictAttr(self.kernel.attributes["tile.kernel"])
        if "paged" not in facts or self.arguments.number(memory) not in list(ir.DenseI64ArrayAttr(facts["paged"])):
            return None
        return self.arguments.values[ir.IntegerAttr(facts["table"]).value]

    def keys_of_sequences(self) -> ir.Value | None:
        """The lengths of the keys of packed sequences; None where none are packed."""
        facts = ir.DictAttr(self.kernel.attributes["tile.kernel"])
        return self.arguments.values[list(ir.DenseI64ArrayAttr(facts["lengths"]))[1]] if "lengths" in facts else None

    def blocks(self) -> str:
        """How many blocks of rows there are, or items of the list: an expression, for that `items` once `declare_items` is printed."""
        return "items" if self.packed else self.arguments.blocks()

    def declare_items(self) -> None:
        """Prints how many items the list of work has."""
        if self.packed:
            work = self.arguments.values[-1]
            last = f"({self.arguments.size(work, 0)} - 1)"
            self.writer.line(f"const int items = {self.arguments.element(work, [last, '0'])};")

    # ---- text

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
    def unrolled(self, index: str, end: int | str, step: int = 1, start: str = "0") -> Iterator[None]:
        """A scope that is an unrolled loop."""
        self.writer.line("#pragma unroll")
        with self.scope(f"for (int {index} = {start}; {index} < {end}; {f'{index} += {step}' if step > 1 else f'++{index}'})"):
            yield

    def value(self, value: ir.Value) -> str:
        """The C++ expression of a scalar; prints what it needs here."""
        for op in self._ranges(value, set()):
            self._range(op)
        return self.scalars.emit(value)

    # ---- scalars

    def statement(self, op: ir.Operation) -> None:
        """Scalars of the function are printed where they stand, unless they are constants."""
        if op.name != "arith.constant":
            for result in op.results:
                if list(result.uses):
                    self.value(result)

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
        """Smallest and largest element of a box of a captured tensor; the lanes of a warp or wave share the work."""
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
        raise UnsupportedError(f"{self.emitter}: '{op.name}' cannot stand in scalar code ({source_line(op.location)})")

    def load(self, op: ir.Operation, indices: list[str]) -> str:
        """An element of a captured tensor."""
        return self.arguments.element(op.operands[0], indices)

    def extract(self, op: ir.Operation, indices: list[str]) -> str:
        """An element of a tile at this thread's position."""
        raise NotImplementedError

    def own(self, op: ir.Operation) -> list[int]:
        """Which arguments of a map (0 the row, 1 the column) an extraction reads a tile at; -1 for anything else."""
        return [ir.BlockArgument(index).arg_number if isinstance(index.owner, ir.Block) else -1 for index in list(op.operands)[1:]]

    def narrow(self, text: str, element: str) -> str:
        """An f32 expression as a 16-bit number."""
        return f"__float2half_rn({text})" if element == "f16" else f"__float2bfloat16_rn({text})"

    # ---- tiles

    def columns(self, type_: ir.Type) -> int:
        """The columns of a tile of rank 2."""
        shape = ir.RankedTensorType(type_).shape
        return self.width if shape[1] < 0 else shape[1]

    def rows(self, type_: ir.Type) -> int:
        """The rows of a tile."""
        shape = ir.RankedTensorType(type_).shape
        return self.width if shape[0] < 0 else shape[0]
