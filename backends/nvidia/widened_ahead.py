"""8-bit keys and values that many 16-bit queries read: widened in memory, before a kernel of 16 bits, where that is faster.

A kernel that widens tiles does so again for each block of queries, beside products. To widen once takes one more pass over k and v, and
memory of twice their bytes, which is torch's, so that CUDA graphs capture it.
"""

import re
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.allocation import empty_strided
from attn_mlir.backends.host import Host
from attn_mlir.backends.nvidia import thresholds, widening
from attn_mlir.dialects.elements import EIGHT_BIT

_WIDE = ("f16", "bf16")


def may_widen(host: Host, prepare: str, outline: str) -> bool:
    """Whether a function is an attention of 16-bit queries whose keys, values, and nothing else, have 8 bits."""
    elements = [argument.element for argument in host.arguments]
    results = [result.type.element for step in host.steps for result in step.results]
    narrow = len(elements) > 2 and elements[1] in EIGHT_BIT and elements[1] == elements[2]
    return prepare == outline and narrow and elements[0] in _WIDE and not any(each in EIGHT_BIT for each in [*elements[3:], *results])


def wide_source(source: str, host: Host) -> str:
    """The same attention of keys and values that have the type of queries: no other type of 8 bits is in its text."""
    return re.sub(rf"{host.arguments[1].element}\b", host.arguments[0].element, source)


def pays(inputs: Sequence[Any]) -> bool:
    """Whether so many queries read each key, and there is so much to compute, that to widen once is faster."""
    q, k, v = inputs[:3]
    if not k.shape[1]:
        return False
    work = q.shape[:3].numel() * k.shape[2] * (q.shape[3] + v.shape[3])
    return q.shape[2] * (q.shape[1] // k.shape[1]) >= thresholds.WIDENED_QUERIES and work >= thresholds.WIDENED_WORK


def widened(inputs: Sequence[Any]) -> list[Any]:
    """The inputs, with k and v widened to q's type, by one kernel where they are dense on a GPU. Raises torch.OutOfMemoryError."""
    q, k, v, *rest = inputs
    wide = empties(k, v, q.dtype)
    if not (k.is_cuda and widening.widen((k, v), wide)):
        for to, x in zip(wide, (k, v), strict=True):
            to.copy_(x)
    return [q, *wide, *rest]


def empties(k: torch.Tensor, v: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Memory for keys and values in another type. Raises torch.OutOfMemoryError."""
    return _empty(k, dtype), _empty(v, dtype)


def reason(inputs: Sequence[Any]) -> str:
    """What `explain()` says of k and v."""
    q, k, v = inputs[:3]
    size = (k.numel() + v.numel()) * q.element_size()
    queries = q.shape[2] * (q.shape[1] // k.shape[1])
    return f"{queries} queries read each key: k and v are widened to {str(q.dtype).removeprefix('torch.')} before the kernel, {size} bytes"


def _empty(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Memory for a tensor in another type; rows lie in the order that they had."""
    order = [*sorted(range(x.dim() - 1), key=lambda axis: -x.stride(axis)), x.dim() - 1]
    strides, step = [0] * x.dim(), 1
    for axis in reversed(order):
        strides[axis], step = step, step * x.shape[axis]
    return empty_strided(tuple(x.shape), tuple(strides), dtype=dtype, device=x.device)
