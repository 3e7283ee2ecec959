"""Decoding of a few queries with lists of keys by one launch: kernels that make lists ready themselves (`hopper/few_rows.py`)."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.backends.allocation import empty, empty_heads
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.program import BY_ROWS, PartsForm
from attn_mlir.backends.gpu.slices import is_sliced
from attn_mlir.backends.gpu.split import by_heads, lower_parts
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import codegen, cuda, simt, thresholds
from attn_mlir.backends.nvidia.hopper.few_rows import NAME, SORTED_BYTES, WAVE, joined, own_arguments
from attn_mlir.backends.nvidia.lists.pending import PendingLists, pending_in
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.backends.program import ResultShapes
from attn_mlir.backends.work import leaves_rows
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.split_kv import COMBINE

_PLACE = struct.Struct("=4i")
"""What an `AttnFew` has after its lists."""
_MOST_KEYS = (1 << 31) - (1 << 16)
"""Of a list, which thread blocks number in 32 bits, and count a block further."""
Start = Callable[[str, list[Any], int], None]


class FewForm(bytes):
    """An `AttnFew`, and how it is launched."""

    grid: tuple[int, int, int]
    parts: int
    """Thread blocks of a cluster."""


class FewCut(NamedTuple):
    """How a call is cut: parts of a sequence's keys, keys of a part, and blocks of a sequence's rows."""

    parts: int
    length: int
    row_blocks: int


def cut_for(programs: int, row_blocks: int, keys: int, block: int, active: Callable[[int], int]) -> FewCut | None:
    """The cut of `programs`, blocks of rows of a head of a sequence, with `keys` each, in blocks; None of more than a few.

    `active`: how many clusters of so many thread blocks run at a time. All run at once, with the fewest blocks of keys for each.
    """
    blocks = max(1, -(-keys // block))
    able = [n for n in range(1, min(blocks, thresholds.FEW_PARTS) + 1) if programs <= active(n)]
    if not able:
        return None
    each = min(-(-blocks // n) for n in able)
    return FewCut(min(n for n in able if -(-blocks // n) == each), each * block, row_blocks)


def lower_few(source: str, choices: Fields, pipeline: str) -> GpuKernel | None:
    """The kernel of parts and their merge, or None for rows whose keys are not seen in parts. Raises CompileError, UnsupportedError."""
    own: dict[int, str] = {}

    def emit(function: ir.Operation) -> KernelCode:
        if ir.StringAttr(function.attributes["sym_name"]).value == COMBINE:
            return simt.emit_inside(function, HOPPER, WAVE)
        own.update(own_arguments(function))
        return codegen.emit(function)

    choices = {**choices, "few": 1, "order": "tiles", "emitter": "hopper"}
    try:  # the loop inside of each program: there is one, and less code to wait for
        made = lower_parts(source, {**choices, "flow": "each"}, pipeline, emit, "NVIDIA", True)
    except (CompileError, UnsupportedError):
        made = lower_parts(source, choices, pipeline, emit, "NVIDIA", True)
    return None if made is None or is_sliced(made[0]) else joined(*made, own)


class FewDecode(NamedTuple):
    """An attention of a few sequences of one query each."""

    unit: GpuKernel
    partial: int
    """Outputs that are partial results."""

    def run(
        self, kernel: KernelGrid, inputs: Sequence[Any], made: ResultShapes, layout: str, cut: FewCut, lists: PendingLists, start: Start
    ) -> list[torch.Tensor]:
        """See `gpu.split.SplitDecode.run`."""
        q, k = inputs[kernel.over], inputs[kernel.keys]
        heads, batch = k.shape[1], len(inputs[kernel.lengths[0]])
        group, dtypes = q.shape[1] // heads, self.unit.dtypes[self.partial :]
        results = [
            empty_heads(shape, dtype, layout if head else "bhsd", q.device)
            for shape, dtype, head in zip(made.shapes, dtypes, made.heads, strict=True)
        ]
        rows = (batch * cut.parts, heads, group)
        partial = [empty((*rows, made.shapes[0][3]), dtype=torch.float32, device=q.device)]
        partial += [empty(rows, dtype=torch.float32, device=q.device) for _ in range(self.partial - 1)]
        form = FewForm(lists.form + _PLACE.pack(cut.length, group, cut.row_blocks, cut.parts))
        form.grid, form.parts = (batch * cut.row_blocks * cut.parts, heads, 1), cut.parts
        seen = [by_heads(value, heads) if number == kernel.over else value for number, value in enumerate(inputs)]
        start(NAME, [*seen, *partial, *(by_heads(x, heads) for x in results), form], len(results))
        lists.taken()
        return results


def sorts(lists: PendingLists, threads: int) -> bool:
    """Whether thread blocks have room to sort the lists."""
    words = max(8 * threads, 2 * -(-lists.shapes.blocks // 32))  # threads have a power of two of them
    return 4 * (words + 2 * threads + 64) <= SORTED_BYTES


class FewKernels:
    """The kernels of a program for a few queries, by how they read keys; copies of the program share them."""

    def __init__(self) -> None:
        self._made: dict[PartsForm, tuple[FewDecode, Any] | None] = {}

    def decoded(self, program: Any, inputs: Sequence[Any], layout: str, keys: int) -> list[torch.Tensor] | None:
        """What `decode` of a program gives of a few queries whose lists are to be made yet.

        None where these are made, or now are: queries are not few, or have no such kernel.
        """
        lists = pending_in(inputs)
        if lists is None:
            return None
        results = self._results(program, lists, inputs, layout, keys)
        if results is None:
            lists.start()
        return results

    def _results(self, program: Any, lists: PendingLists, inputs: Sequence[Any], layout: str, keys: int) -> list[torch.Tensor] | None:
        plan, (kernel,), index = program.plan(inputs), program.kernels.values(), cuda.index_of(inputs[0])
        q, lengths, heads = inputs[kernel.over], inputs[kernel.lengths[0]], inputs[kernel.keys].shape[1]
        if program.has_work or plan.empty or len(plan.steps) != 1 or len(lengths) != q.shape[2] or leaves_rows(lengths) or index < 0:
            return None
        form = program.forms(inputs)[0]
        rows, block = program.blocks_of(form)
        row_blocks = -(-(q.shape[1] // heads) // rows)
        programs = heads * len(lengths) * row_blocks
        few = form.gather == BY_ROWS and programs <= thresholds.FEW_PROGRAMS * cuda.device(index).multiprocessors
        found = self.kernel(program, form) if few and keys <= _MOST_KEYS else None
        if found is None or not sorts(lists, found[0].unit.code.threads):
            return None
        cut = cut_for(programs, row_blocks, keys, block, found[1].launcher_of(NAME, q).active_clusters)
        if cut is None:
            return None
        with cuda.using(index):
            return found[0].run(kernel, inputs, plan.steps[0], layout, cut, lists, found[1].start_part)

    def kernel(self, program: Any, form: PartsForm) -> tuple[FewDecode, Any] | None:
        """One of them, and the program that launches it; lowered at the first call that needs it."""
        if form not in self._made:
            with LOCK:
                if form not in self._made:
                    unit: GpuKernel | None = program.lowered(form, lambda source, choices, way, *_: lower_few(source, choices, way))
                    partial = 0 if unit is None else len(unit.outputs) - len(program.host.steps[0].results)
                    made = None if unit is None else (FewDecode(unit, partial), program.with_units({NAME: unit}))
                    self._made[form] = made
        return self._made[form]


def start_lists(inputs: Sequence[Any]) -> None:
    """Makes what lists are to be made before one of the inputs is read."""
    lists = pending_in(inputs)
    if lists is not None:
        lists.start()
