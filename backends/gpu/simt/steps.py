"""Kernels that sum up numbers of steps along an interval: gradients of decays that all channels of a head share.

A thread has one step. What states contribute to all of them, a sum over rows and columns of memory, comes first: threads share packs of it.
Sums go from thread to thread by exchanges within waves, and on by shared memory: the order is fixed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt.dialect import MOST_THREADS, Dialect
from attn_mlir.backends.gpu.simt.source import source
from attn_mlir.backends.gpu.simt.values import RowPrinter, reads_along
from attn_mlir.backends.gpu.structure import body, constant, operations, yielded
from attn_mlir.dialects.numbers import flag
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

_KNOWN = ("arith.", "math.", "memref.load", "memref.dim", "tensor.extract", "tile.program_id", "tile.yield", "scf.for", "scf.yield",
          "func.", "tile.store", "tile.map", "tile.cumsum")  # fmt: skip
_VECTOR = 4


@dataclass(frozen=True)
class _Steps:
    """One kernel: `steps` are summed up to `sums`; `total` adds up `rows`, sums of rows of memory; `store` stores `whole`, made of these.

    `loop` goes over intervals; None where a program has one. `rows` and `total` are None where there are no states.
    """

    loop: ir.Operation | None
    steps: ir.Operation
    sums: ir.Operation
    rows: ir.Operation | None
    total: ir.Operation | None
    whole: ir.Operation
    store: ir.Operation


def plan_steps(kernel: ir.Operation, wave: int) -> Fields | None:
    """`threads` of a block, one for each step. None for a kernel of another form."""
    found = _read(kernel)
    if found is None:
        return None
    (threads,) = ir.RankedTensorType(found.sums.results[0].type).shape
    return {"threads": threads, "steps": 1} if threads % wave == 0 and 0 < threads <= MOST_THREADS else None


def _read(kernel: ir.Operation) -> _Steps | None:
    loops, sums = find_all(kernel, "scf.for"), find_all(kernel, "tile.cumsum")
    if len(sums) != 1 or len(loops) > 1 or not all(op.name.startswith(_KNOWN) for op in walk(kernel)):
        return None
    tile = ir.RankedTensorType(sums[0].results[0].type)
    if (
        tile.rank != 1
        or flag(sums[0], "reverse")
        or grid_kind(kernel) != ("chunks" if loops else "rows")
        or any(loops[0].results for _ in loops)
    ):
        return None
    inner = operations(body(loops[0] if loops else kernel))
    maps, stores = ([op for op in inner if op.name == name] for name in ("tile.map", "tile.store"))
    made = [op for op in maps if op.results[0].type == tile and not op.opview.kinds()]
    reduced = [op for op in maps if op not in made]
    if len(stores) != 1 or len(made) != 2 or len(reduced) not in (0, 2) or any(len(op.results) != 1 for op in maps):
        return None
    steps, whole = made if sums[0].operands[0] == made[0].results[0] else made[::-1]
    rows, total = reduced or (None, None)
    found = _Steps(loops[0] if loops else None, steps, sums[0], rows, total, whole, stores[0])
    return found if _fits(kernel, found) else None


def _fits(kernel: ir.Operation, found: _Steps) -> bool:
    """Whether maps read what a thread has."""
    right = found.sums.operands[0] == found.steps.results[0] and found.store.operands[0] == found.whole.results[0]
    if found.rows is not None and found.total is not None:
        right = right and found.rows.opview.kinds() == found.total.opview.kinds() == ["sum"]
        right = right and constant(found.total.operands[0]) == 1
        right = right and all(isinstance(constant(extent), int) for extent in found.rows.operands)
        right = right and all(reads_along(op) for op in find_all(found.rows, "memref.load"))
    for op in find_all(kernel, "tensor.extract"):
        of, (read, *indices), arguments = op.parent, op.operands, list(op.block.arguments)
        if of == found.whole and found.total is not None and read == found.total.results[0]:
            right = right and constant(indices[0]) == 0
        elif of == found.whole:
            right = right and read in (found.sums.results[0], found.steps.results[0]) and indices == arguments
        else:
            right = right and found.rows is not None and found.total is not None and of == found.total
            right = right and found.rows is not None and read == found.rows.results[0] and indices == arguments[1:]
    return right


def emit_steps(kernel: ir.Operation, dialect: Dialect) -> KernelCode:
    """The source of a scheduled kernel."""
    found = _read(kernel)
    assert found is not None
    return _Kernel(kernel, found, attributes.read(kernel, attributes.SCHEDULE), dialect).emit()


class _Kernel:
    def __init__(self, kernel: ir.Operation, steps: _Steps, schedule: Mapping[str, int | str], dialect: Dialect) -> None:
        self._kernel, self._steps, self._threads = kernel, steps, int(schedule["threads"])
        columns = 1 if steps.rows is None else int(constant(steps.rows.operands[1]) or 1)
        self._columns, vector = columns, next(size for size in (_VECTOR, 2, 1) if columns % size == 0)
        self._print = RowPrinter(kernel, 1, vector, dialect)
        self._thread = self._print.names.fresh("thread")

    def emit(self) -> KernelCode:
        """The code of the kernel."""
        p = self._print
        p.line(f"const int {self._thread} = (int){p.dialect.thread};")
        with p.turns(self._steps.loop, p.names.fresh("turn")):
            self._interval()
        return source(self._kernel, p, self._threads, False)

    def _interval(self) -> None:
        p, found = self._print, self._steps
        _, memory, b, h, row, count = found.store.operands
        *head, first = (p.scalars.emit(value) for value in (b, h, row))
        exists, step, sum_ = p.scalars.emit(count), p.names.fresh("step"), p.names.fresh("sum")
        known = {found.sums.results[0]: sum_, found.steps.results[0]: step}
        p.line(f"const int i = {self._thread};")
        p.line(f"const float {step} = {p.row_value(found.steps.results[0])};")
        # All that is loaded is on its way before threads meet.
        for op in find_all(found.whole, "memref.load"):
            p.scalars.emit(op.results[0])
        if found.rows is not None and found.total is not None:
            known[found.total.results[0]] = self._of_states(found.rows)
        p.line(f"const float {sum_} = block_scan<{self._threads}>({step});")
        for op in find_all(found.whole, "tensor.extract"):
            p.scalars.bind(op.results[0], known[op.operands[0]])
        at = p.arguments.element(memory, [*head, f"({first} + i)"])
        p.line(f"if (i < {exists}) {at} = {p.row_value(found.whole.results[0])};")

    def _of_states(self, rows: ir.Operation) -> str:
        """Prints the sum of all rows, whose packs threads share; its name."""
        p, lanes = self._print, self._columns // self._print.vector
        packs, name = int(constant(rows.operands[0]) or 0) * lanes, p.names.fresh("of_states")
        p.line(f"float {name} = 0.0f;")
        p.line("#pragma unroll 4")
        with p.scope(f"for (int c = {self._thread}; c < {packs}; c += {self._threads})"):
            p.line(f"const int i = c / {lanes}, j0 = c % {lanes} * {p.vector};")
            loaded = [(op, p.column_pack(op, "j0")) for op in find_all(rows, "memref.load")]
            p.line("#pragma unroll")
            with p.scope(f"for (int e = 0; e < {p.vector}; ++e)"):
                p.line("const int j = j0 + e;")
                for op, pack in loaded:
                    p.scalars.bind(op.results[0], f"{pack}.x[e]")
                p.line(f"{name} += {p.scalars.emit(yielded(body(rows))[0])};")
        p.line(f"{name} = block_sum<{self._threads}>({name});")
        return name
