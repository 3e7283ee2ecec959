"""Calls of libraries for AMD GPUs on a libamdhip64 whose launches are interpreted.

What runs, instruction by instruction, is the code object that the library hands to it, on the argument segment that its metadata describes.

For a process of its own, in which `load` loads that libamdhip64 under the name of the real one.
"""

import ctypes
import gc
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from ahead_calls import OnDevice
from amd_metadata import kernels_of
from attn_mlir.backends.amd.isa import IsaMachine
from attn_mlir.backends.amd.isa.state import GlobalTensor
from attn_mlir.backends.gpu.kernel import KernelCode

_FAKE: list[ctypes.CDLL] = []
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.POINTER(ctypes.c_void_p))
_KEPT: list[Any] = []
_MACHINES: dict[tuple[bytes, str], tuple[IsaMachine, Mapping[str, Any]]] = {}
_REGIONS: list[GlobalTensor] = []
_FAILED: list[str] = []


class OnHip(OnDevice):
    """A library on ROCm devices."""

    device_type = 10


def load(path: Path) -> None:
    """Loads the libamdhip64 at `path`, whose soname is that of the real one. Python's collector runs as seldom as in test/conftest.py."""
    gc.set_threshold(20_000, 10, 10)
    fake = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    fake.fake_log.restype = ctypes.c_char_p
    _FAKE[:] = [fake]


def fake() -> Any:
    return _FAKE[0]


def log() -> list[dict[str, Any]]:
    """The calls since the last one of this function."""
    lines = fake().fake_log().decode().splitlines()
    fake().fake_reset()
    return [json.loads(line) for line in lines]


def interpret(yes: bool) -> None:
    """Whether launches run; else they do nothing."""
    _KEPT[:] = [_CALLBACK(_launch if yes else lambda *_: 0)]
    fake().fake_launch(_KEPT[0])


def region(name: str, memory: torch.Tensor, writable: bool) -> GlobalTensor:
    """The memory of a tensor, from its first to its last byte."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(memory.shape, memory.stride(), strict=True)) if memory.numel() else 0
    flat = memory.detach().as_strided((span,), (1,)) if span else memory.new_zeros(0)
    return GlobalTensor(memory.data_ptr(), flat.view(torch.uint8).numpy(), writable, name)


def interpreted(call: Callable[[], None], read: Mapping[str, Any], written: Mapping[str, torch.Tensor]) -> list[dict[str, Any]]:
    """Runs a call whose kernels may reach these tensors and no other memory; returns what the runtime was told."""
    inputs = [region(name, tensor, False) for name, tensor in read.items() if isinstance(tensor, torch.Tensor)]
    _REGIONS[:] = [*inputs, *[region(name, tensor, True) for name, tensor in written.items()]]
    interpret(True)
    try:
        call()
    except RuntimeError as error:
        raise AssertionError("\n".join([str(error), *_FAILED])) from None
    finally:
        interpret(False)
        _REGIONS.clear()
    return log()


def _launch(code: int, entry: bytes, sizes: Any, parameters: Any) -> int:
    try:
        machine, kernel = _machine(_object_at(code), entry.decode(), int(sizes[3]))
        segment = bytearray(kernel[".kernarg_segment_size"])
        for number, argument in enumerate(kernel.get(".args", [])):
            assert argument[".value_kind"] in ("by_value", "global_buffer"), argument
            begin, size = argument[".offset"], argument[".size"]
            segment[begin : begin + size] = ctypes.string_at(parameters[number], size)
        machine.run_segment(bytes(segment), _REGIONS, (sizes[0], sizes[1], sizes[2]))
    except Exception as error:  # no exception crosses the library
        _FAILED.append(f"{type(error).__name__}: {error}")
        return 719
    return 0


def _object_at(address: int) -> bytes:
    """The ELF file at an address: its section headers are its end."""
    head = ctypes.string_at(address, 64)
    start, size, count = (int.from_bytes(head[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62)))
    return ctypes.string_at(address, start + size * count)


def _machine(code: bytes, entry: str, threads: int) -> tuple[IsaMachine, Mapping[str, Any]]:
    if (code, entry) not in _MACHINES:
        kernel = kernels_of(code)[entry]
        assert threads <= kernel[".max_flat_workgroup_size"]
        given = KernelCode(entry, entry, "", (), threads, 0, language="hip", arch="gfx90a")
        _MACHINES[code, entry] = IsaMachine(given, code), kernel
    return _MACHINES[code, entry]


def filled(like: torch.Tensor) -> torch.Tensor:
    """NaN in the shape and order of a tensor."""
    return torch.full_like(like, torch.nan, requires_grad=False)


def memory(size: int) -> torch.Tensor:
    """So many bytes, of which every f16, bf16 and f32 is NaN, at an address such as allocators give."""
    whole = torch.full((size + 256,), 255, dtype=torch.uint8)
    start = -whole.data_ptr() % 256
    return whole[start : start + size]
