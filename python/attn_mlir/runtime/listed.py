"""Programs with lists of keys: they are several kernels, and the tensors of their lists must fit to each other."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.given import LISTS
from attn_mlir.runtime.programs import Program

_DTYPES = {"i32": torch.int32, "i64": torch.int64}


@dataclasses.dataclass(eq=False)
class ListedProgram(Program):
    """A traced attention whose first captures are those of `frontend.given.LISTS`, as `runtime.key_lists` makes them."""

    has_kernel: ClassVar[bool] = False

    def check(self, captures: Sequence[Any], sizes: dict[str, int], device: torch.device) -> None:
        """See `Program.check`; what entries hold was checked where the lists were made."""
        for (name, (element, rank)), tensor in zip(LISTS.items(), captures, strict=False):
            fits = isinstance(tensor, torch.Tensor) and tensor.dtype == _DTYPES[element] and tensor.dim() == rank
            if not fits or tensor.device != device or not tensor.is_contiguous():
                raise ArgumentError(f"`{name}` of key_index is a contiguous {_DTYPES[element]} tensor of rank {rank} on {device}")
        super().check(captures, sizes, device)
