"""What the printer of a chunk scan works with: its tiles, views of its arguments, and where threads have to meet."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from attn_mlir.backends.gpu.residuals import residuals
from attn_mlir.backends.gpu.structure import is_row
from attn_mlir.backends.gpu.views import ViewCore
from attn_mlir.backends.nvidia.scans.layout import BYTES, HALVES, ScanGrid, SharedPlace, TurnedGrid, WarpScanLayout
from attn_mlir.backends.nvidia.scans.loops import element_of, shape_of
from attn_mlir.mlir import ir

_TAKEN = "lane warp memory head batch block i j m n r c row column count both own attn next sum stage fetch".split()
"""Names that the printed code uses for itself."""
ROW = "row"
"""The owner of tiles of one dimension, of which a thread touches the elements of its number alone."""
ALIGN = 16
"""Bytes at multiples of which rows of tensors start."""


@dataclass(frozen=True)
class _Access:
    """What was done with shared memory since threads last met. `owner`: how they share the elements; "" where any reads any.

    Of rows, thread i has element i of every tile that begins there.
    """

    begin: int
    end: int
    writes: bool
    owner: str


class ScanCore(ViewCore[str]):
    """Prints the parts that all scans have. `tiles`: names of registers; the body relies on the C++ variables `lane`, `warp`, `memory`."""

    emitter = "scans"

    def __init__(self, kernel: ir.Operation, layout: WarpScanLayout) -> None:
        super().__init__(kernel, 0, _TAKEN)
        self.scalars.divide_unsigned()
        self.layout = layout
        self.residuals = residuals(kernel)
        self.sums: dict[ir.Value, tuple[SharedPlace, int]] = {}
        """Where the parts of sums along rows are, and how many there are."""
        self.element: tuple[str, str, str] | None = None
        """The row, the column and the register's number of the element that a map makes now."""
        self.grid: ScanGrid | TurnedGrid | None = None
        self.pairs: dict[ir.Value, str] = {}
        """Names of two neighbouring elements of 16-bit tiles, which a map has read."""
        self.twos: dict[tuple[ir.Value, str], str] = {}
        """The same of tiles of f32 in shared memory, by tile and row."""
        self.held: dict[ir.Value, str] = {}
        """Registers that hold a thread's elements of tiles in shared memory, for several maps: pairs, of 16-bit tiles."""
        self._accesses: list[_Access] = []

    # ---- where threads meet

    def touch(self, accesses: Iterable[tuple[SharedPlace, bool, str]]) -> None:
        """Threads meet before the next op where others may still read what it writes, or have to have written what it reads."""
        new = [_Access(place.begin, place.end, writes, _of_elements(place, owner)) for place, writes, owner in accesses]
        if any(self._collide(old, each) for old in self._accesses for each in new):
            self.meet()
        self._accesses += [each for each in dict.fromkeys(new) if each not in self._accesses]

    def meet(self) -> None:
        """All threads."""
        self.writer.line("__syncthreads();")
        self._accesses = []

    @contextmanager
    def branch(self) -> Iterator[None]:
        """What is printed inside may not run: where threads met there, they may not have met."""
        before = list(self._accesses)
        yield
        self._accesses = [*before, *(each for each in self._accesses if each not in before)]

    def _collide(self, old: _Access, new: _Access) -> bool:
        if old.begin >= new.end or new.begin >= old.end or not (old.writes or new.writes):
            return False
        same = old.begin == new.begin and old.owner == new.owner and (old.end == new.end or old.owner.startswith(ROW))
        return not (same and new.owner)

    def met(self) -> None:
        """What was printed ended where all threads met."""
        self._accesses = []

    def each_row(self, length: int, count: str = "") -> AbstractContextManager[None]:
        """A scope for each row `i` of a thread, of `length` and no more than `count`. Without a loop where each thread has one at most:
        the compiler would unroll it.
        """
        threads = self.layout.threads
        end = f"min({length}, {count})" if count else str(length)
        if length <= threads:
            return self.scope(f"if (const int i = threadIdx.x; i < {end})")
        return self.scope(f"for (int i = threadIdx.x; i < {end}; i += {threads})")

    # ---- tiles

    def at(self, place: SharedPlace) -> str:
        """C++: the first byte of a tile."""
        if place.stages > 1:
            return f"(memory + {place.begin} + stage * {place.bytes})"
        return f"(memory + {place.begin})" if place.begin else "memory"

    def item_of(self, place: SharedPlace, *indices: str) -> str:
        """C++: an element of a tile in shared memory, of 16 bits as an unsigned short."""
        if place.element in HALVES and len(place.shape) == 2:
            return f"attn::one<{place.shape[1]}>({self.at(place)}, {indices[0]}, {indices[1]})"
        kind = {"f64": "double", "f32": "float", "f16": "__half", "bf16": "__nv_bfloat16"}[place.element]
        index = indices[0] if len(indices) == 1 else f"({indices[0]}) * {place.stride} + {indices[1]}"
        return f"(({kind} *){self.at(place)})[{index}]"

    def read_item(self, place: SharedPlace, *indices: str) -> str:
        """C++: the same as a number of its type."""
        text = self.item_of(place, *indices)
        if place.element not in HALVES or len(place.shape) == 1:
            return text
        return f"attn::as_{'half' if place.element == 'f16' else 'bfloat'}({text})"

    def row_item(self, value: ir.Value, index: str) -> str:
        """C++: an element of a tile of one dimension."""
        if value in self.sums:
            place, parts = self.sums[value]
            begin = f"((float *){self.at(place)})"
            rows = shape_of(value)[0]
            return "(" + " + ".join(f"{begin}[{part * rows} + {index}]" for part in range(parts)) + ")"
        return self.read_item(self.layout.places[value], index)

    def extract(self, op: ir.Operation, indices: list[str]) -> str:
        value = op.operands[0]
        if is_row(value.type):
            return self.row_item(value, indices[0])
        if self.element is not None and tuple(indices) == self.element[:2] and self.grid is not None:
            if value in self.pairs:
                which = "half_of" if str(op.results[0].type) == "f16" else "bfloat_of"
                return f"attn::{which}({self.pairs[value]}, c)"
            if value in self.held and element_of(value) not in HALVES and shape_of(value) == (self.grid.rows, self.grid.columns):
                return f"{self.held[value]}[{self.element[2]}]"
            if value in self.tiles and shape_of(value) == (self.grid.rows, self.grid.columns):
                return f"{self.tiles[value]}[{self.element[2]}]"
        if self.element is not None and indices[1] == self.element[1] and (value, indices[0]) in self.twos:
            return f"(c ? {self.twos[value, indices[0]]}.y : {self.twos[value, indices[0]]}.x)"
        return self.read_item(self.layout.places[value], *indices)

    def reads(
        self, reads: Iterable[ir.Operation], owner: str = "", own: Iterable[ir.Operation] = ()
    ) -> list[tuple[SharedPlace, bool, str]]:
        """The shared memory that these ops read; those of `own` where threads have the elements themselves."""
        found, near = list[tuple[SharedPlace, bool, str]](), list(own)
        for read in reads:
            value = read.operands[0]
            if read.name == "memref.load":
                found += [(self.layout.places[read], False, owner if read in near else "")] if read in self.layout.places else []
                continue
            if value in self.sums:
                found.append((self.sums[value][0], False, ""))
            elif read in near and self.layout.in_registers(value):
                continue
            elif value in self.layout.places:
                found.append((self.layout.places[value], False, owner if read in near else ""))
        return found

    # ---- arguments

    def address(self, value: ir.Value, indices: list[str], align: int = 0) -> str:
        """C++: a pointer to an element of a memref, given the first indices; the others are 0."""
        view = self.view(value)
        given, terms = dict(zip(view.dims, indices, strict=False)), []
        for dim, offset in enumerate(view.offsets):
            text = " + ".join(x for x in (offset, given.get(dim, "0")) if x != "0")
            if text:
                last = align and dim == len(view.offsets) - 1
                terms.append(text if last else f"({text}) * {self.arguments.stride(view.argument, dim)}")
        return " + ".join([self.arguments.pointer(view.argument, align), *terms])

    def load(self, op: ir.Operation, indices: list[str]) -> str:
        if op in self.layout.rows and op in self.layout.places:
            return self.read_item(self.layout.places[op], "i")
        return f"*({self.address(op.operands[0], indices)})"

    def aligned(self, value: ir.Value) -> int:
        """Of how many elements rows of a tensor start at multiples. The driver sees to it."""
        return ALIGN // (ir.MemRefType(value.type).element_type.width // 8)


def _of_elements(place: SharedPlace, owner: str) -> str:
    """An owner of rows with what says where element i is."""
    return owner if owner != ROW else f"{ROW} {BYTES[place.element]} {place.bytes if place.stages > 1 else ''}"
