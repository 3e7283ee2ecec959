"""Split-KV on GPUs: sequences of one query whose heads of a group share the keys they see, in parts, which a second kernel merges."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends.allocation import empty, empty_heads
from attn_mlir.backends.gpu.attributes import CHOICES, Fields, read, write
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel, outlined, read_unit
from attn_mlir.backends.gpu.input_limits import check_types
from attn_mlir.backends.gpu.packed import Ragged
from attn_mlir.backends.gpu.scalar_bounds import POSITIONS
from attn_mlir.backends.host import KernelGrid, read_host
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.backends.program import OUTLINE, ResultShapes, function_named, reported
from attn_mlir.backends.work import leaves_rows
from attn_mlir.dialects import loaded
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.split_kv import COMBINE, PARTS, in_parts
from attn_mlir.passes.tiling.work import COLUMNS, PART_COLUMNS
from attn_mlir.registry import registry

FIXED_PART = 1024
"""Keys of a part, a multiple of blocks, where a sequence must have the same bits in every batch."""
WHOLE = "attention"
Start = Callable[[str, list[Any], int], None]
_CUT = "attn-guard-empty-rows,"
_LEAST, _OVERHEAD = 2, 2
"""Blocks of keys of a part at least; what a part costs besides its own, in blocks."""


def lower_parts(
    source: str, choices: Fields, pipeline: str, emit: Callable[[ir.Operation], Any], maker: str, wide: bool = False
) -> tuple[GpuKernel, GpuKernel] | None:
    """The kernels of parts and of their merge, or None where a row's keys are not seen in parts; `pipeline` leads to scheduled kernels.

    `choices` have `block_q` and `block_kv`; `maker` and `wide`: see `scheduled`.
    """
    with reported(), loaded():
        made = _with_heads_as_rows(source, choices, pipeline, maker, wide)
        if made is None:
            return None
        module, rest, results = made
        Pipeline.parse("attn-split-kv", registry()).run(module)
        if "arch" in choices:
            with module.context:
                merge = function_named(module, COMBINE)
                merge.attributes[CHOICES] = write({"arch": choices["arch"], **read(merge, CHOICES)})
        Pipeline.parse(rest, registry()).run(module)
        parts, combine = (function_named(module, name) for name in (PARTS, COMBINE))
        return read_unit(parts, len(find_all(parts, "tile.store")), emit), read_unit(combine, results, emit)


def lower_whole(
    source: str, choices: Fields, pipeline: str, emit: Callable[[ir.Operation], Any], maker: str, wide: bool = False
) -> GpuKernel | None:
    """The kernel of one part, which ends it and stores results; see `lower_parts`."""
    with reported(), loaded():
        made = _with_heads_as_rows(source, choices, pipeline, maker, wide)
        if made is None:
            return None
        module, rest, results = made
        Pipeline.parse(rest, registry()).run(module)
        return read_unit(function_named(module, "attention"), results, emit)


def _with_heads_as_rows(source: str, choices: Fields, pipeline: str, maker: str, wide: bool) -> tuple[ir.Module, str, int] | None:
    """A module whose heads of a group are rows, what is left of the pipeline, and how many results there are."""
    first, rest = (part.strip(",") for part in pipeline.split(_CUT, 1))
    module = ir.Module.parse(source)
    check_types(module, maker, wide)
    Pipeline.parse(OUTLINE, registry()).run(module)
    host = read_host(function_named(module, "attention"))
    if len(host.steps) != 1:
        return None
    outlined(module, host, choices)
    Pipeline.parse(f"attn-pack-heads,{first},{_CUT.strip(',')}", registry()).run(module)
    if not all(map(in_parts, find_all(module.operation, "attn.online"))):
        return None
    return module, rest, len(host.steps[0].results)


def parts_for(keys: int, pairs: int, block: int, programs: int, wanted: int = 0) -> tuple[int, int]:
    """How many parts the keys of one head are seen in, and how many keys each has, a multiple of `block`.

    `pairs` of sequences and heads of keys share a GPU that runs so many `programs` at a time. `wanted` parts, or 0: as many as make the
    longest program that follows others short.
    """
    blocks = max(1, -(-keys // block))
    if wanted:
        count = min(wanted, blocks)
    else:
        most = max(1, min(blocks // _LEAST, -(-8 * programs // max(1, pairs))))
        count = min(range(1, most + 1), key=lambda n: (-(-pairs * n // programs) * (-(-blocks // n) + _OVERHEAD), n))
    length = -(-blocks // count)
    return -(-blocks // length), length * block


def fixed_parts(keys: int, wanted: int = 0) -> tuple[int, int]:
    """The same for parts of FIXED_PART keys each, or `wanted` = 1 of all keys: where they are cut depends on nothing else."""
    return (1, FIXED_PART) if wanted == 1 else (max(1, -(-keys // FIXED_PART)), FIXED_PART)


def lists_for(batch: int, group: int, cut: tuple[int, int], block: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """The list of work of the parts of so many sequences, whose heads of a group are rows, and the list that merges them.

    No length is looked at: parts behind the end of a sequence see no keys. Both lists have their number of items as a last row.
    """

    def make() -> dict[str, torch.Tensor]:
        return {name: made.to(device) for name, made in zip((PARTS, COMBINE), _lists(batch, group, cut, block), strict=True)}

    kept = kept_by_sizes(("parts", batch, group, cut, block, device), make)
    return kept[PARTS], kept[COMBINE]


def list_of_whole(batch: int, group: int, block: int, device: torch.device) -> torch.Tensor:
    """The list of work of so many sequences whose keys are all in one part; see `lists_for`."""

    def make() -> dict[str, torch.Tensor]:
        return {WHOLE: _lists(batch, group, (1, block), block)[0][:, :COLUMNS].contiguous().to(device)}

    return kept_by_sizes(("whole", batch, group, block, device), make)[WHOLE]


def _lists(batch: int, group: int, cut: tuple[int, int], block: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of `lists_for`, on the host."""
    count, length = cut
    numbers = functools.partial(torch.arange, device="cpu")
    b, n, row = torch.meshgrid(numbers(batch), numbers(count), numbers(0, group, block), indexing="ij")
    end = torch.where(n == count - 1, POSITIONS, (n + 1) * length)
    parts = torch.stack([b, row, (row + block).clamp(max=group), b * count + n, n * length, end], -1).view(-1, PART_COLUMNS)
    b, row = torch.meshgrid(numbers(batch), numbers(group), indexing="ij")
    merged = torch.stack([b, row, row + 1, b * count, torch.full_like(b, count), torch.zeros_like(b)], -1).view(-1, PART_COLUMNS)
    made = [torch.cat([x, torch.tensor([[len(x), *[0] * (PART_COLUMNS - 1)]], device="cpu")]).to(torch.int32) for x in (parts, merged)]
    return made[0], made[1]


@dataclass(frozen=True)
class WholeDecode:
    """An attention of sequences of one query each, whose keys are one part."""

    unit: GpuKernel

    def run(self, kernel: KernelGrid, inputs: Sequence[Any], made: ResultShapes, layout: str, start: Start) -> list[torch.Tensor]:
        """See `SplitDecode.run`."""
        q, heads = inputs[kernel.over], inputs[kernel.keys].shape[1]
        results = _results(self.unit, kernel, inputs, made, layout)
        work = list_of_whole(len(inputs[kernel.lengths[0]]), q.shape[1] // heads, self.unit.kernel.block_q, q.device)
        views = [Ragged(value) if n in self.unit.kernel.ragged else value for n, value in enumerate(_seen(kernel, inputs, heads))]
        start(WHOLE, [*views, *(by_heads(x, heads) for x in results), work], len(results))
        return results


@dataclass(frozen=True)
class SplitDecode:
    """An attention of sequences of one query each, whose keys come in parts."""

    parts: GpuKernel
    combine: GpuKernel

    def run(
        self,
        kernel: KernelGrid,
        inputs: Sequence[Any],
        made: ResultShapes,
        layout: str,
        cut: tuple[int, int],
        start: Start,
    ) -> list[torch.Tensor]:
        """o and row outputs, for packed `inputs`. `kernel` is that of whole attentions, `made` what it makes.

        `start` launches one of the kernels, by its name, on its arguments; how many of these, at the end before the list, are outputs.
        """
        q, k = inputs[kernel.over], inputs[kernel.keys]
        heads, group, batch = k.shape[1], q.shape[1] // k.shape[1], len(inputs[kernel.lengths[0]])
        results = _results(self.combine, kernel, inputs, made, layout)
        rows = (batch * cut[0], heads, group)
        partial = [empty((*rows, made.shapes[0][3]), dtype=torch.float32, device=q.device)]
        partial += [empty(rows, dtype=torch.float32, device=q.device) for _ in self.parts.outputs[1:]]
        lists = lists_for(batch, group, cut, self.parts.kernel.block_q, q.device)
        seen = _seen(kernel, inputs, heads)
        views = [Ragged(value) if number in self.parts.kernel.ragged else value for number, value in enumerate(seen)]
        start(PARTS, [*views, *partial, lists[0]], len(partial))
        start(COMBINE, [*seen, *partial, *(by_heads(x, heads) for x in results), lists[1]], len(results))
        return results


def _results(unit: GpuKernel, kernel: KernelGrid, inputs: Sequence[Any], made: ResultShapes, layout: str) -> list[torch.Tensor]:
    """Memory of what a kernel makes; rows of no sequence are 0."""
    device = inputs[kernel.over].device
    results = [
        empty_heads(shape, dtype, layout if head else "bhsd", device)
        for shape, dtype, head in zip(made.shapes, unit.dtypes, made.heads, strict=True)
    ]
    for result in results if leaves_rows(inputs[kernel.lengths[0]]) else ():
        result.zero_()
    return results


def _seen(kernel: KernelGrid, inputs: Sequence[Any], heads: int) -> list[Any]:
    """The inputs, with heads of a group as rows."""
    return [by_heads(value, heads) if number == kernel.over else value for number, value in enumerate(inputs)]


def by_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """A tensor [1, Hq, T, ...] as [T, Hkv, group, ...]."""
    return tensor[0].unflatten(0, (heads, -1)).movedim(2, 0)
