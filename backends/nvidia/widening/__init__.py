"""Keys and values of 8 bits widened to 16 by one kernel for both, where they are dense. See `widened_ahead`."""

import functools
import struct
from importlib.resources import files

import torch

from attn_mlir.backends.nvidia import cuda, own_kernel

SOURCE = "attn_widening.cu"
_FORM, _THREADS, _EACH, _TOGETHER = struct.Struct("=6Qi4x"), 256, 8, 8
"""What the kernels take, `AttnWidening`; threads of a block, loads of a thread, and elements of a load."""
_BYTES = {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2"}
_HALVES = {torch.float16: "f16", torch.bfloat16: "bf16"}
_MOST = (1 << 31) - 1
Tensor = torch.Tensor


def widen(narrow: tuple[Tensor, Tensor], wide: tuple[Tensor, Tensor]) -> bool:
    """Writes two tensors of 8 bits to two of 16 with the same strides; False where it cannot, as they are not dense, or not aligned.

    They are of one type, as are those that are written. `wide` is dense.
    """
    keys, values = narrow
    for x, y in zip(narrow, wide, strict=True):
        same = all(size == 1 or a == b for size, a, b in zip(x.shape, x.stride(), y.stride(), strict=True))
        if not same or x.numel() % _TOGETHER or x.data_ptr() % _TOGETHER:
            return False
    sizes = [x.numel() // _TOGETHER for x in narrow]
    blocks = [-(-size // (_THREADS * _EACH)) for size in sizes]
    if not 0 < sum(blocks) <= _MOST:
        return False
    device = keys.get_device()
    form = _FORM.pack(keys.data_ptr(), values.data_ptr(), *(x.data_ptr() for x in wide), *sizes, blocks[0])
    where = cuda.current_stream(device), device
    own_kernel.start(entry(keys.dtype, wide[0].dtype), source, form, (sum(blocks), 1, 1), (_THREADS, 0, 0), where)
    return True


@functools.cache
def entry(byte: torch.dtype, half: torch.dtype) -> str:
    """The kernel from one type to another."""
    return f"attn_widen_{_BYTES[byte]}_{_HALVES[half]}"


@functools.cache
def source() -> str:
    """The kernels."""
    return (files("attn_mlir.backends.nvidia.widening") / SOURCE).read_text()
