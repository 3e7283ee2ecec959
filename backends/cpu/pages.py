"""Large new tensors in large pages: the first write of each small page is a fault that takes longer than writing it."""

import ctypes
import sys
from functools import cache
from typing import Any

import torch

_LEAST = 32 << 20
"""Bytes from which on allocators take fresh memory from the system each time, and give it back."""
_HUGE, _PAGE = 14, 4096


def in_large_pages(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor, new and not yet written; where the system knows large pages, it is asked for them."""
    size = tensor.numel() * tensor.element_size()
    madvise = _madvise() if size >= _LEAST else None
    if madvise is not None:
        first = -(-tensor.data_ptr() // _PAGE) * _PAGE
        madvise(first, (tensor.data_ptr() + size) // _PAGE * _PAGE - first, _HUGE)  # a refusal changes nothing
    return tensor


@cache
def _madvise() -> Any:
    """The C library's function, or None."""
    if not sys.platform.startswith("linux"):
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function
