"""The memory that kernels for GPUs write to: results, sums in one place or in slots, rows that begin where a kernel needs them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from attn_mlir.backends.allocation import empty, empty_heads, strides_of
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.packing import aligned_empty
from attn_mlir.backends.memory import OutputMemory, allocate
from attn_mlir.backends.program import DTYPES, ResultShapes
from attn_mlir.errors import UnsupportedError

_SLOT_BYTES = 1 << 30
NARROW = "narrow"
"""In the schedule of a kernel that adds tiles by TMA: "number:element" of an output, counted from behind the last one, whose sums may be of
the element type of what is added, as long as few meet."""
STORED = "stored_tiles"
"""The same of outputs whose tiles are all stored, where TMA can write them."""
ENTRIES, ROWS = "turn_entries", "turn_rows"
"""There, too: up to how many batch entries take turns, with how many queries for each. Else, but for one entry, all add to zeros."""
_ANY = (1 << 31) - 1
_FEW = 4
"""Terms of a sum in 16 bits."""


def outputs_of(
    unit: GpuKernel,
    made: ResultShapes,
    over: torch.Tensor,
    layout: str,
    alignment: Callable[[int], int],
    row_bytes: int = 0,
    sequences: int = 0,
) -> list[OutputMemory]:
    """The memory of a step's results. `over`: the tensor whose blocks of rows are the programs of the grid.

    `alignment` tells of how many elements the address and the strides of an output must be multiples; `row_bytes`, how far apart
    the kernel's rows must be at most: results whose layout puts them farther apart are copied into it. 0: anywhere. `sequences`: how many
    are packed in `over`.
    Raises UnsupportedError for sums that would need slots of more than 1 GiB, or other columns than they have.
    """
    memory = []
    for output, shape in enumerate(made.shapes):
        order, align = layout if made.heads[output] else "bhsd", alignment(output)
        if row_bytes and order != "bhsd" and strides_of(shape, order)[2] * unit.dtypes[output].itemsize >= row_bytes:
            near = _memory(unit, output, made.shapes, ("bhsd", align), over, sequences)
            memory.append(_Reordered(near.tensor, near.seen, near=near, order=order))
        else:
            memory.append(_memory(unit, output, made.shapes, (order, align), over, sequences))
    return memory


def _memory(
    unit: GpuKernel, output: int, shapes: Sequence[torch.Size], form: tuple[str, int], over: torch.Tensor, sequences: int
) -> OutputMemory:
    """The memory of one result, of those with these shapes, in an order whose rows are aligned as `form` says."""
    (order, align), shape = form, shapes[output]
    if shape and shape[-1] % align:
        return _padded(unit, output, shape, order, over.device, align)
    if unit.kernel.outputs[output] == "store":
        tensor = empty_heads(shape, unit.dtypes[output], order, over.device)
        return OutputMemory(tensor, tensor)
    return _sums(unit, output, shapes, order, over, sequences)


def _sums(unit: GpuKernel, output: int, shapes: Sequence[torch.Size], order: str, over: torch.Tensor, sequences: int) -> OutputMemory:
    """Zeros to which programs add: in one place by atomic additions or one after the other, or each in a slot of its own."""
    kernel, shape = unit.kernel, shapes[output]
    if kernel.grid == "chunks":  # every block of columns writes all of its slot
        made = empty((kernel.blocks, *shape), dtype=unit.dtypes[output], device=over.device)
        return OutputMemory(made, made, slots=True)
    batch, heads, length = over.shape[:3]
    # A list of work has no more items than that; where they add in one place, which has no stride, any number but one does.
    blocks = max(2, length // kernel.block_q + sequences) if kernel.lengths else -(-length // kernel.block_q)
    programs = (blocks, batch, heads)
    slots = (1, 1, 1)
    if unit.schedule.get("sums") == "slots" or (kernel.outputs[output] == "scatter" and unit.schedule.get("deterministic")):
        apart = kernel.disjoint[output] if kernel.outputs[output] == "scatter" else (False, True, True)
        slots = (1 if apart[0] else programs[0], 1 if apart[2] else batch, 1 if apart[1] else heads)
    dtype = dtype_of(unit, output, shape, over)
    size = math.prod(slots) * math.prod(shape) * dtype.itemsize
    if math.prod(slots) > 1 and size > _SLOT_BYTES:
        raise UnsupportedError(
            f"deterministic=True: the sums of {unit.code.name} in a fixed order would take {size / 2**30:.1f} GiB here; use shorter "
            "sequences or fewer heads a call, let the captured tensor need no gradient, or compute it on the CPU"
        )
    cleared = is_cleared(unit, output, shapes, dtype, over.shape)
    return allocate(kernel.outputs[output], shape, dtype, over.device, order, slots, programs, cleared=cleared)


def is_cleared(unit: GpuKernel, output: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, over: Sequence[int]) -> bool:
    """Whether a kernel adds to zeros in this output, of `shapes` and in this type; else the first program that has some stores them.

    `over`: the shape of the tensor whose blocks are programs.
    """
    shape, kind = shapes[output], unit.kernel.outputs[output]
    if kind == "scatter":
        return not _is_stored(unit, output, shapes, dtype, over)
    return len(shape) < 2 or shape[-2] > stored_rows(unit)


def _is_stored(unit: GpuKernel, output: int, shapes: Sequence[Sequence[int]], dtype: torch.dtype, over: Sequence[int]) -> bool:
    """Whether programs store each tile of a gradient by TMA, and together make all of it (`hopper.pairs_turns`).

    They do where it has no elements but those of the pairs of each head of queries, and of each batch entry where these are apart, or where
    entries take turns: few of them, which have many queries.
    """
    element = _told(unit, STORED, output)
    queries = next((shapes[n] for n, kind in enumerate(unit.kernel.outputs) if kind == "accumulate"), None)
    if not element or dtype != DTYPES[element] or queries is None or shapes[output][-1] * dtype.itemsize % 16:
        return False
    own = over[0] if unit.kernel.disjoint[output][2] else 1
    most, rows = (int(unit.schedule.get(name, 0)) for name in (ENTRIES, ROWS))
    turns = own == over[0] or (over[0] <= most and over[0] * rows <= queries[2])
    return turns and math.prod(shapes[output]) == own * queries[1] * queries[2] * over[2]


def _told(unit: GpuKernel, field: str, output: int) -> str:
    """What a schedule says of an output in "number:element,...", numbers counted from behind the last one; "" if nothing."""
    place = f"{output - len(unit.outputs)}:"
    return next((part.removeprefix(place) for part in str(unit.schedule.get(field, "")).split(",") if part.startswith(place)), "")


def stored_rows(unit: GpuKernel) -> int:
    """Queries up to which the first program stores sums over keys (`hopper.pairs_claims`); in the schedule 0 is none, 1 any number."""
    claims = int(unit.schedule.get("claims", 0))
    return _ANY if claims == 1 else claims


def dtype_of(unit: GpuKernel, output: int, shape: torch.Size, over: torch.Tensor) -> torch.dtype:
    """That of a sum: of 16 bits where what is added has 16 bits and only few programs add to an element.

    That is half the memory, which need not be converted. Each term is rounded to 16 bits first; a sum of two is rounded once, as in f32,
    further ones once more each.
    """
    told, apart = _told(unit, NARROW, output), unit.kernel.disjoint[output]
    few = bool(apart) and apart[0] and apart[1] and (apart[2] or over.shape[0] <= _FEW)
    return DTYPES[told] if told and few and shape[-1] % 8 == 0 and math.prod(shape) else unit.dtypes[output]


def _padded(unit: GpuKernel, output: int, shape: torch.Size, order: str, device: torch.device, align: int) -> OutputMemory:
    """Memory whose rows begin where the kernel needs them; the result is a copy of its columns in order."""
    if unit.kernel.outputs[output] != "store":
        raise UnsupportedError(f"{unit.code.name} adds to a tensor of {shape[-1]} columns, where it takes multiples of {align}")
    seen = aligned_empty(shape, unit.dtypes[output], device, align)
    return _Copied(empty_heads(shape, unit.dtypes[output], order, device), seen)


class _Copied(OutputMemory):
    """The result is a copy of what the kernel wrote."""

    def result(self) -> torch.Tensor:
        return self.tensor.copy_(self.seen)


@dataclass(frozen=True, kw_only=True)
class _Reordered(OutputMemory):
    """The result is a copy, in another order, of what the kernel wrote."""

    near: OutputMemory
    """What the kernel writes."""
    order: str

    def result(self) -> torch.Tensor:
        made = self.near.result()
        return empty_heads(made.shape, made.dtype, self.order, made.device).copy_(made)
