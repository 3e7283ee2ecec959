"""Calls of libraries made ahead of time, through ctypes: torch tensors as DLTensors."""

import ctypes
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from attn_mlir.backends.ahead import link

_CODES = {
    torch.float16: (2, 16), torch.float32: (2, 32), torch.float64: (2, 64), torch.bfloat16: (4, 16), torch.bool: (6, 8),
    torch.uint8: (1, 8), torch.int8: (0, 8), torch.int32: (0, 32), torch.int64: (0, 64),
}  # fmt: skip
STREAM = 100
"""One of device 0, of the libraries that stand in for drivers."""


@contextmanager
def plain_host(plain: bool = True) -> Iterator[None]:
    """Libraries made within have a host's part that is compiled without optimisation, which takes less than half of the time, if `plain`.

    For further libraries of a kind of which a test has an optimised one: their C++ differs in tables alone. clang, where it is, takes
    two thirds of the time of g++ for it; others have what is usual here.
    """
    flags = tuple("-O0" if flag == "-O2" else flag for flag in link.FLAGS) if plain else link.FLAGS
    assert "-O2" in link.FLAGS
    clang = shutil.which("clang++-22") if plain and "CXX" not in os.environ else None
    with mock.patch.object(link, "FLAGS", flags), mock.patch.dict(os.environ, {"CXX": clang} if clang else {}):
        yield


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class Sizes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_size_t) for name in ("forward_workspace", "training_workspace", "saved", "backward_workspace"))


def dl(tensor: torch.Tensor) -> DLTensor:
    """The tensor as DLPack describes it; it must outlive what is returned."""
    shape = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.shape)
    strides = (ctypes.c_int64 * max(1, tensor.dim()))(*tensor.stride())
    return DLTensor(tensor.data_ptr(), 1, 0, tensor.dim(), *_CODES[tensor.dtype], 1, shape, strides, 0)


class Loaded:
    """A library; numbers are given as they are, None is NULL. Errors are RuntimeErrors with the library's message."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self._name = path, name
        self._library = ctypes.CDLL(str(path))
        self._error = getattr(self._library, f"{name}_last_error")
        self._error.restype = ctypes.c_char_p

    def sizes(self, *inputs: Any) -> Sizes:
        sizes = Sizes()
        self._call("sizes", [*inputs, ctypes.byref(sizes)])
        return sizes

    def forward(self, inputs: tuple[Any, ...], results: list[Any], threads: int = 1) -> None:
        self._call("forward", [*inputs, *results, None, ctypes.c_size_t(0), None, ctypes.c_int32(threads)])

    def training_forward(self, inputs: tuple[Any, ...], results: list[Any], threads: int = 1) -> torch.Tensor:
        sizes = self.sizes(*inputs)
        saved, work = (torch.full((n,), 255, dtype=torch.uint8) for n in (sizes.saved, sizes.training_workspace))
        space = [ctypes.c_void_p(work.data_ptr()), ctypes.c_size_t(sizes.training_workspace), None, ctypes.c_int32(threads)]
        self._call("training_forward", [*inputs, *results, ctypes.c_void_p(saved.data_ptr()), ctypes.c_size_t(sizes.saved), *space])
        return saved

    def backward(
        self, inputs: tuple[Any, ...], results: list[Any], saved: torch.Tensor, grads: list[Any], made: list[Any], threads: int = 1
    ) -> None:
        need = self.sizes(*inputs).backward_workspace
        work = torch.full((need,), 255, dtype=torch.uint8)
        space = [ctypes.c_void_p(work.data_ptr()), ctypes.c_size_t(need), None, ctypes.c_int32(threads)]
        kept = [ctypes.c_void_p(saved.data_ptr()), ctypes.c_size_t(saved.numel())]
        self._call("backward", [*inputs, *results, *kept, *grads, *made, *space])

    def _call(self, function: str, arguments: list[Any]) -> None:
        found = getattr(self._library, f"{self._name}_{function}")
        given = [_argument(each) for each in arguments]
        code = found(*given)
        if code:
            raise RuntimeError(f"{code}: {self._error().decode()}")


def _argument(value: Any) -> Any:
    if isinstance(value, (torch.Tensor, DLTensor)):
        return ctypes.byref(dl(value) if isinstance(value, torch.Tensor) else value)
    if isinstance(value, float):
        return ctypes.c_double(value)
    return ctypes.c_int64(value) if isinstance(value, int) else value


class OnDevice(Loaded):
    """A library for a GPU; tensors, also those on the CPU, are told to be on its device 0. Calls get a stream, and a workspace or none."""

    device_type = 0

    def call(self, function: str, arguments: list[Any], stream: int = STREAM, workspace: torch.Tensor | None = None) -> None:
        space = [None, ctypes.c_size_t(0)] if workspace is None else self.pointer(workspace)
        self._call(function, [*map(self.told, arguments), *space, ctypes.c_void_p(stream), ctypes.c_int32(0)])

    @staticmethod
    def pointer(memory: torch.Tensor) -> list[Any]:
        """The address and size of memory."""
        return [ctypes.c_void_p(memory.data_ptr()), ctypes.c_size_t(memory.numel())]

    def sizes_of(self, *inputs: Any) -> Sizes:
        sizes = Sizes()
        self._call("sizes", [*map(self.told, inputs), ctypes.byref(sizes)])
        return sizes

    @classmethod
    def told(cls, value: Any, device: int = 0) -> Any:
        """A tensor as one on a device of this kind."""
        if not isinstance(value, torch.Tensor):
            return value
        made = dl(value)
        made.device_type, made.device_id = cls.device_type, device
        return made
