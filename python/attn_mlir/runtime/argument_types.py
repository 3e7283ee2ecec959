"""What types of tensors a traced program takes: a graph may run on others than it was made for, as packages of AOTInductor do unasked."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.program import DTYPES
from attn_mlir.errors import ArgumentError

_ARGUMENT = re.compile(r"%[\w$.-]+: (?:tensor<((?:[?\d]+x)*)(\w+)>|\w+)")


@functools.lru_cache(maxsize=512)
def _types(text: str) -> tuple[tuple[int, str] | None, ...]:
    """Rank and element of each argument of the program with this text; None for numbers."""
    signature = text[text.index("@attention(") : text.index(") ->")]
    found = _ARGUMENT.finditer(signature)
    return tuple((match[1].count("x"), match[2]) if match[2] else None for match in found)


def check_types(text: str, names: Sequence[str], values: Sequence[Any]) -> None:
    """Checks that tensors have the dtypes and ranks of the program with this text. Raises ArgumentError."""
    for name, value, type_ in zip(names, values, _types(text), strict=True):
        if type_ is None:
            continue
        rank, element = type_
        if value.dtype is not DTYPES[element] and (element, value.dtype) != ("i8", torch.uint8):  # unsigned bytes arrive as i8
            raise ArgumentError(f"`{name}` has dtype {value.dtype}, but this graph was made for {DTYPES[element]}: make it again")
        if value.dim() != rank:
            raise ArgumentError(f"`{name}` has {value.dim()} dimensions, but this graph was made for {rank}: make it again")
