"""Hands tensors and numbers to a worker function (see `lowering.kernel` for the words it reads)."""

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.cpu.jit import Worker
from attn_mlir.errors import ArgumentError


def launch(
    worker: Worker,
    inputs: Sequence[torch.Tensor],
    captures: Sequence[Any],
    scalars: Sequence[str],
    outputs: Sequence[torch.Tensor],
    block_q: int,
) -> None:
    """Runs the whole grid: blocks of `block_q` rows of q = inputs[0], [B, H, S, D]. `scalars` are the kinds of the captures."""
    batch, heads, length = inputs[0].shape[:3]
    blocks = -(-length // block_q)
    # Columns are read as contiguous; other strides are free.
    inputs = [t if (t.stride(3) == 1 or t.shape[3] == 1) and not t.is_neg() else t.resolve_neg().contiguous() for t in inputs]
    captures = [c.resolve_neg() if isinstance(c, torch.Tensor) and c.is_neg() else c for c in captures]
    words = array("q", (0, batch * heads * blocks, blocks, heads))
    for tensor in inputs:
        _append(words, tensor)
    for capture, kind in zip(captures, scalars, strict=True):
        if kind == "tensor":
            _append(words, capture)
        elif kind == "index":
            words.append(_in_range(capture))
        else:
            words.frombytes(struct.pack("<d", capture) if kind == "f64" else bytes(ctypes.c_float(capture)) + bytes(4))
    for tensor in outputs:
        _append(words, tensor)
    worker.run((ctypes.c_int64 * len(words)).from_buffer(words), batch * heads * blocks, torch.get_num_threads())


def _in_range(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ArgumentError(f"a captured integer must fit into 64 bits, got {number}")
    return number


def _append(words: array, tensor: torch.Tensor) -> None:
    """Adds the address, sizes and strides of a tensor, which the caller keeps alive."""
    try:
        address = tensor.data_ptr()
    except RuntimeError:
        address = 0
    if not address and tensor.numel():
        raise ArgumentError(
            f"a tensor of shape {list(tensor.shape)} holds no elements in the memory of the CPU: q, k, v and captured tensors "
            "must be dense, and not on meta, fake, or of a torch.func transform"
        )
    words.append(address)
    words.extend(tensor.shape)
    words.extend(tensor.stride())
