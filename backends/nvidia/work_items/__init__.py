"""Lists of work of packed sequences, made by one kernel where operations of torch would be some twenty launches a list."""

import functools
import struct
from importlib.resources import files

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu.packed import SemaphoreBlocks, items_of
from attn_mlir.backends.nvidia import cuda, own_kernel
from attn_mlir.passes.tiling.work import COLUMNS

SOURCE, ENTRY = "attn_work_items.cu", "attn_list_work_items"
MOST = 1024
"""Sequences that a thread block puts in order."""
_FORM = struct.Struct("=3Q2q6i")
"""What the kernel takes, `AttnWorkItems`."""
_EACH = 2048
"""Items of a thread block, about."""
Tensor = torch.Tensor


def listed_items(
    own: Tensor, others: Tensor | None, block: int, rows: int, first: bool, semaphores: SemaphoreBlocks | None = None
) -> Tensor:
    """See `gpu.packed.items_of`, which makes the list of more sequences, and on other chips than Hopper."""
    count, device = own.shape[0], own.get_device()
    most = rows // block + count
    if not 0 < count <= MOST or cuda.device(device).capability != (9, 0):
        return items_of(own, others, block, rows, first, semaphores)
    made = empty((most + 1, COLUMNS), dtype=torch.int32, device=own.device)
    of_others = (0, 0) if others is None else (others.data_ptr(), others.stride(0))
    turns = (0, 0) if semaphores is None or others is None else (semaphores.rows, semaphores.count)
    form = _FORM.pack(own.data_ptr(), of_others[0], made.data_ptr(), own.stride(0), of_others[1], count, block, most, first, *turns)
    threads = -(-max(count, min(most, 256)) // 32) * 32
    own_kernel.start(ENTRY, source, form, (-(-most // _EACH), 1, 1), (threads, 0, 0), (cuda.current_stream(device), device))
    return made


@functools.cache
def source() -> str:
    """The kernel."""
    return (files("attn_mlir.backends.nvidia.work_items") / SOURCE).read_text()
