"""Calls whose dense biases the copy engine cannot read: they have programs of their own.

The `warp` dialect's kernels copy windows of captured tensors by TMA, where addresses and strides are multiples of 16 bytes. Where lanes
copy elements, as of biases of odd length, they have 0.45 of the Hopper emitter's speed (28 Nov 2026, H100, 1023 and 4095 positions, D 64).
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.packing import is_aligned

UNALIGNED = "unaligned"
"""In choices: that calls are such ones. No pass of the `warp` dialect knows it, so that kernels stay with the Hopper emitter."""
_BYTES = 16


def copies_windows(units: Iterable[GpuKernel]) -> bool:
    """Whether a kernel of the `warp` dialect copies windows."""
    return any(unit.schedule.get("emitter") == "warp" and "windows" in unit.schedule for unit in units)


def are_aligned(inputs: Sequence[Any]) -> bool:
    """Whether the copy engine can read all captured tensors of several dimensions, which follow q, k and v."""
    return all(
        is_aligned(value, _BYTES // value.element_size()) for value in inputs[3:] if isinstance(value, torch.Tensor) and value.dim() > 1
    )
