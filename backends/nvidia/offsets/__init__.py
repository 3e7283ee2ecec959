"""Offsets of packed sequences, made ready by one kernel: where they lie, and their lengths. See `driver.offset_maker`."""

import functools
import struct
from collections.abc import Sequence
from importlib.resources import files

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.nvidia import cuda, own_kernel
from attn_mlir.backends.work import cover_rows

SOURCE, ENTRY, SINGLE = "attn_offsets.cu", "attn_cut_offsets", "attn_cut_single_offsets"
MOST_SINGLE = 1024
"""Sequences of one query each that one thread block looks at."""
_FORM, _THREADS = struct.Struct("=4Q3q4i"), 128
"""What the kernel takes, `AttnOffsets`."""
Tensor = torch.Tensor


def cut_offsets(
    of_q: Tensor, of_k: Tensor | None, used: Tensor | None, inside: tuple[int, int], paged: bool, single: bool = False
) -> Sequence[Tensor] | None:
    """First queries, numbers of queries, first keys and numbers of keys; None on chips older than what code is made for.

    With `single`, sequences have a query each at most; where they are as many as there are rows, one without a query gets a row of no
    sequence, and no keys, and no row is left out.
    """
    device, count = of_q.get_device(), of_q.shape[0] - 1
    if cuda.device(device).capability != (9, 0):
        return None
    made = empty((4, count), dtype=torch.int32, device=of_q.device)
    if count:
        given = [(0, 0) if x is None else (x.data_ptr(), x.stride(0)) for x in (of_q, of_k, used)]
        form = _FORM.pack(*(address for address, _ in given), made.data_ptr(), *(step for _, step in given), count, *inside, paged)
        where = cuda.current_stream(device), device
        if single and count == inside[0] <= MOST_SINGLE:
            own_kernel.start(SINGLE, source, form, (1, 1, 1), (-(-count // 32) * 32, 0, 0), where)
            lengths = cover_rows(made[1])
            return made[0], lengths, made[2], made[3]
        own_kernel.start(ENTRY, source, form, (-(-count // _THREADS), 1, 1), (_THREADS, 0, 0), where)
    return made.unbind()


@functools.cache
def source() -> str:
    """The kernel."""
    return (files("attn_mlir.backends.nvidia.offsets") / SOURCE).read_text()
