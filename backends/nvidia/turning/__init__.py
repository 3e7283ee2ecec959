"""Values of 8 bits as transposed tiles in memory, by one kernel, in the bytes that shared memory has of them. See `turned_ahead`."""

import functools
import struct
from importlib.resources import files

import torch

from attn_mlir.backends.nvidia import cuda, own_kernel

SOURCE = "attn_turning.cu"
ENTRY = "attn_turn_values"
_FORM, _THREADS, _WORD, _KEYS = struct.Struct("=2Q4Q6i"), 256, 4, 32
"""What the kernel takes, `AttnTurning`; threads of a block; bytes that a thread reads at once; keys that two threads have together."""
_MOST = (1 << 31) - 1


def may_turn(v: torch.Tensor) -> bool:
    """Whether the kernel reads values [B, H, S, D] where they are: dense columns, rows and heads that begin with whole words."""
    steps = [v.stride(axis) for axis in range(3) if v.shape[axis] > 1]
    return v.is_cuda and v.stride(3) == 1 and not any(step % _WORD for step in [*steps, v.data_ptr()]) and not v.is_neg()


def turn(v: torch.Tensor, tiles: torch.Tensor, keys: int, swizzle: int) -> None:
    """Writes values [B, H, S, D] of 8 bits, of which `may_turn` holds, to `tiles`, dense [B, H, S', D], as tiles [D, keys] in swizzle
    atoms of so many bytes (`layouts.turned_places`). S' is S up to the next multiple of `keys`: places past the last key are zeros.
    """
    device, (batch, heads, padded, columns) = v.get_device(), tiles.shape
    groups = padded // _KEYS
    every = batch * heads * groups
    blocks = -(-every * (columns // 2) // _THREADS)
    if not 0 < blocks <= _MOST:
        raise ValueError(f"values of shape {list(v.shape)} do not fit into one launch")
    strides = [v.stride(axis) // _WORD for axis in range(3)]
    form = _FORM.pack(v.data_ptr(), tiles.data_ptr(), *strides, every, v.shape[2], heads, groups, columns, keys, swizzle)
    where = cuda.current_stream(device), device
    own_kernel.start(ENTRY, source, form, (blocks, 1, 1), (_THREADS, 0, 0), where)


@functools.cache
def source() -> str:
    """The kernel."""
    return (files("attn_mlir.backends.nvidia.turning") / SOURCE).read_text()
