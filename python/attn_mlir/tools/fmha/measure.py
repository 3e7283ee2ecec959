"""What a run of attn-fmha takes and does: milliseconds, floating point operations, bytes."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.tools.fmha.options import FmhaOptions
from attn_mlir.tools.fmha.problem import DTYPES


def milliseconds(call: Callable[[], Any], options: FmhaOptions, device: torch.device, by_events: bool) -> float:
    """The mean of `repeat` calls after `warmup` ones."""
    for _ in range(options.warmup):
        call()
    if device.type == "cuda" and by_events:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(options.repeat):
            call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / options.repeat
    taken = []
    for _ in range(options.repeat):
        _wait(device)
        begin = time.perf_counter()
        call()
        _wait(device)
        taken.append(time.perf_counter() - begin)
    return 1e3 * statistics.fmean(taken)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def flops(options: FmhaOptions) -> int:
    """Of the matrix products, two in the forward pass and five in the backward, over the pairs that the mask keeps."""
    o = options
    pairs = o.batch * o.heads * o.coordinates.area(o.q_len, o.kv_len)
    return pairs * (6 * o.head_dim + 4 * o.value_dim if o.backward else 2 * o.head_dim + 2 * o.value_dim)


def bytes_moved(options: FmhaOptions) -> int:
    """Of each tensor once, as CK counts them."""
    o = options
    size = torch.finfo(DTYPES[o.precision]).bits // 8
    rows, keys = o.batch * o.heads * o.q_len, o.batch * o.kv_heads * o.kv_len
    once = size * (rows * (o.head_dim + o.value_dim) + keys * (o.head_dim + o.value_dim))
    # Backward: gradients of all four besides, and lse.
    return 2 * once + 4 * rows if o.backward else once
