"""Decoding of a few queries with lists of keys by one launch: kernels that make lists ready themselves (`hopper/few_rows.py`)."""

import struct
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.backends.allocation import empty, empty_heads
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.slices import is_sliced
from attn_mlir.backends.gpu.split import by_heads, lower_parts
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import codegen, simt, thresholds
from attn_mlir.backends.nvidia.hopper.few_rows import NAME, SORTED_BYTES, WAVE, joined, own_arguments
from attn_mlir.backends.nvidia.lists.pending import PendingLists
from attn_mlir.backends.nvidia.target import HOPPER
from attn_mlir.backends.program import ResultShapes
from attn_mlir.mlir import ir
from attn_mlir.passes.split_kv import COMBINE

_PLACE = struct.Struct("=4i")
"""What an `AttnFew` has after its lists."""
Start = Callable[[str, list[Any], int], None]


class FewForm(bytes):
    """An `AttnFew`, and how it is launched."""

    grid: tuple[int, int, int]
    parts: int
    """Thread blocks of a cluster."""


class Cut(NamedTuple):
    """How a call is cut: parts of a sequence's keys, keys of a part, and blocks of a sequence's rows."""

    parts: int
    length: int
    row_blocks: int


def cut_for(programs: int, row_blocks: int, keys: int, block: int, multiprocessors: int) -> Cut | None:
    """The cut of `programs`, blocks of rows of a head of a sequence, with `keys` each, in blocks; None of more than a few."""
    blocks = max(1, -(-keys // block))
    if programs > thresholds.FEW_PROGRAMS * multiprocessors:
        return None
    parts = 1
    while 2 * parts <= min(blocks, thresholds.FEW_PARTS) and 2 * parts * programs <= multiprocessors:
        parts *= 2
    return Cut(parts, -(-blocks // parts) * block, row_blocks)


def lower_few(source: str, choices: Fields, pipeline: str) -> GpuKernel | None:
    """The kernel of parts and their merge, or None for rows whose keys are not seen in parts. Raises CompileError, UnsupportedError."""
    own: dict[int, str] = {}

    def emit(function: ir.Operation) -> KernelCode:
        if ir.StringAttr(function.attributes["sym_name"]).value == COMBINE:
            return simt.emit_inside(function, HOPPER, WAVE)
        own.update(own_arguments(function))
        return codegen.emit(function)

    made = lower_parts(source, {**choices, "few": 1, "order": "tiles", "emitter": "hopper"}, pipeline, emit, "NVIDIA", True)
    return None if made is None or is_sliced(made[0]) else joined(*made, own)


class FewDecode(NamedTuple):
    """An attention of a few sequences of one query each."""

    unit: GpuKernel
    partial: int
    """Outputs that are partial results."""

    def run(
        self, kernel: KernelGrid, inputs: Sequence[Any], made: ResultShapes, layout: str, cut: Cut, lists: PendingLists, start: Start
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


def sorts(lists: PendingLists, cut: Cut, threads: int) -> bool:
    """Whether thread blocks have room to sort the lists."""
    return 4 * (-(-lists.shapes.blocks // 32) + threads + 32 + cut.length // lists.shapes.keys + 1) <= SORTED_BYTES
