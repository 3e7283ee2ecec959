"""Hands tensors and numbers to a worker function (see `lowering.kernel` for the words it reads)."""

import ctypes
import struct
from array import array
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.copies import Copies
from attn_mlir.backends.cpu.jit import JitWorker
from attn_mlir.backends.cpu.slots import SlotGrid
from attn_mlir.errors import ArgumentError


def launch(
    worker: JitWorker,
    inputs: Sequence[torch.Tensor],
    captures: Sequence[Any],
    scalars: Sequence[str],
    outputs: Sequence[torch.Tensor],
    block_q: int,
    *,
    copies: Copies,
    threads: int = 0,
    entries: int = 0,
) -> None:
    """Runs the whole grid: blocks of `block_q` rows of q = inputs[0], [B, H, S, D]. `scalars` are the kinds of the captures.

    On `threads` threads at most; 0: as many as torch has. `entries`: those of the results where they are not B.
    """
    batch, heads, length = inputs[0].shape[:3]
    batch = entries or batch
    blocks = -(-length // block_q)
    words = [0, batch * heads * blocks, blocks, heads]
    # Copies must live as long as the kernel runs: the words hold addresses only.
    given, inputs = inputs, [readable(tensor, True) for tensor in inputs]
    if inputs[0] is not given[0] or inputs[1] is not given[1] or inputs[2] is not given[2]:
        copies.compare(given, inputs)
    for tensor in inputs:
        _append(words, tensor)
    if captures or scalars:
        captures = _held(captures)
        for capture, kind in zip(captures, scalars, strict=True):
            _append_any(words, capture, kind)
    for tensor in outputs:
        _append(words, tensor)
    worker.run(array("q", words), batch * heads * blocks, _threads(threads))


def launch_grid(
    worker: JitWorker,
    grid: SlotGrid,
    arguments: Sequence[tuple[Any, str]],
    outputs: Sequence[torch.Tensor],
    chunked: bool,
    threads: int = 0,
    lists: Sequence[torch.Tensor] = (),
) -> None:
    """Runs a kernel of a derivative: `arguments` come with their kinds ("tensor" or a scalar type); `chunked` ones get their chunk.

    `lists` are those of kernels on packed tensors. For `threads` see `launch`.
    """
    words = [0, 0, grid.blocks, grid.heads]
    values = _held([value for value, _ in arguments])
    for value, (_, kind) in zip(values, arguments, strict=True):
        _append_any(words, value, kind)
    for tensor in outputs:
        _append(words, tensor)
    for tensor in lists:
        _append(words, tensor)
    if chunked:
        words.append(grid.size)
    threads = _threads(threads) if grid.level < 3 else 1
    packed = array("q", words)
    for first, end in grid.ranges():
        packed[0], packed[1] = first, end
        worker.run(packed, end - first, threads)


def _threads(most: int) -> int:
    """As many threads as torch has, at most `most` where that is not 0."""
    found = torch.get_num_threads()
    return min(found, most) if most else found


def readable(tensor: torch.Tensor, by_columns: bool) -> torch.Tensor:
    """The tensor itself where a kernel can read it, else a copy: `by_columns` ones need contiguous columns; other strides are free."""
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    return tensor.contiguous() if by_columns and tensor.stride(-1) != 1 and tensor.shape[-1] != 1 else tensor


def _held(values: Sequence[Any]) -> list[Any]:
    """Arguments as kernels can read them, any strides allowed."""
    return [readable(value, False) if isinstance(value, torch.Tensor) else value for value in values]


def _append_any(words: list[int], value: Any, kind: str) -> None:
    if kind == "tensor":
        _append(words, value)
    elif kind == "index":
        words.append(_in_range(value))
    else:
        words.append(*struct.unpack("<q", struct.pack("<d", value) if kind == "f64" else bytes(ctypes.c_float(value)) + bytes(4)))


def _in_range(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise ArgumentError(f"a captured integer must fit into 64 bits, got {number}")
    return number


def _append(words: list[int], tensor: torch.Tensor) -> None:
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
    words += (address, *tensor.shape, *tensor.stride())
