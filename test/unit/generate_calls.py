"""Projects of attn-generate: written, built by CMake, and called through ctypes."""

import ctypes
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from ahead_calls import DLTensor, Sizes, dl
from attn_mlir.tools import attn_generate

MISSING = [name for name in ("cmake", "c++", "make") if shutil.which(name) is None]
needs_cmake = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}")
_MEMORY = ("saved", "workspace")


def generated(out: Path, *arguments: str) -> dict[str, Any]:
    """Writes a project and returns its manifest."""
    assert attn_generate.main([*arguments, "--out", str(out), "-j1", "--quiet"]) == 0
    return json.loads((out / "manifest.json").read_text())


def build(source: Path, folder: Path, *options: str) -> None:
    """Builds a project with a shared library; C++ is not optimised, which takes less than half of the time."""
    command = ["cmake", "-S", source, "-B", folder, "-DBUILD_SHARED_LIBS=ON", "-DATTN_OPTIMIZE=-O0", *options]
    subprocess.run(command, check=True, capture_output=True)
    made = subprocess.run(["cmake", "--build", folder, "-j2"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr


class Traits(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_char_p), ("head_dim", ctypes.c_int32), ("value_dim", ctypes.c_int32),
        *[(name, ctypes.c_char_p) for name in ("row", "mask", "bias", "layout", "variant")],
        *[(name, ctypes.c_int32) for name in ("soft_cap", "dropout", "lse", "bias_gradient", "deterministic")],
    )  # fmt: skip


_TENSOR = ctypes.POINTER(DLTensor)


class Arguments(ctypes.Structure):
    _fields_ = (
        *[(name, _TENSOR) for name in ("q", "k", "v", "bias", "alibi_slopes")],
        *[(name, ctypes.c_double) for name in ("scale", "soft_cap", "dropout_p")],
        ("dropout_seed", ctypes.c_int64), ("dropout_offset", ctypes.c_int64), ("values", ctypes.c_void_p), ("value_count", ctypes.c_int32),
        ("o", _TENSOR), ("lse", _TENSOR), ("saved", ctypes.c_void_p), ("saved_size", ctypes.c_size_t),
        *[(name, _TENSOR) for name in ("d_o", "d_lse", "d_q", "d_k", "d_v", "d_bias", "d_alibi_slopes")],
        ("workspace", ctypes.c_void_p), ("workspace_size", ctypes.c_size_t), ("threads", ctypes.c_int32),
    )  # fmt: skip


class Library:
    """A generated library through ctypes, whose tensors are told to be on a device of a kind; calls return the code and the message."""

    def __init__(self, path: Path, device_type: int = 1, stream: int | None = None) -> None:
        self._device_type, self._stream = device_type, stream
        self._library = ctypes.CDLL(str(path))
        for name in ("last_error", "find", "name"):
            getattr(self._library, f"attn_fmha_{name}").restype = ctypes.c_char_p

    def call(self, function: str, traits: dict[str, Any], threads: int = 1, **given: Any) -> tuple[int, str]:
        """Runs fwd, training_fwd or bwd."""
        code = getattr(self._library, f"attn_fmha_{function}")(
            self._traits(traits), self._arguments(given, threads), ctypes.c_void_p(self._stream)
        )
        return code, "" if code == 0 else self._library.attn_fmha_last_error().decode()

    def sizes(self, traits: dict[str, Any], backward: bool = True, **given: Any) -> Sizes:
        sizes = Sizes()
        code = self._library.attn_fmha_sizes(self._traits(traits), self._arguments(given, 1), ctypes.c_int32(backward), ctypes.byref(sizes))
        assert code == 0, self._library.attn_fmha_last_error()
        return sizes

    def find(self, backward: bool = False, **traits: Any) -> str:
        found = self._library.attn_fmha_find(self._traits(traits), ctypes.c_int32(backward))
        return "" if found is None else found.decode()

    def message(self) -> str:
        return self._library.attn_fmha_last_error().decode()

    def names(self) -> list[str]:
        return [self._library.attn_fmha_name(ctypes.c_int32(i)).decode() for i in range(self._library.attn_fmha_count())]

    def _traits(self, traits: dict[str, Any]) -> Any:
        words = {name: value.encode() if isinstance(value, str) else value for name, value in traits.items()}
        return ctypes.byref(Traits(**words))

    def _arguments(self, given: dict[str, Any], threads: int) -> Any:
        self._kept = {name: dl(value) for name, value in given.items() if isinstance(value, torch.Tensor) and name not in _MEMORY}
        for tensor in self._kept.values():
            tensor.device_type = self._device_type
        made = {name: ctypes.pointer(value) for name, value in self._kept.items()}
        plain = {name: value for name, value in given.items() if not isinstance(value, torch.Tensor) and value is not None}
        for name in _MEMORY:
            if name in given:
                made |= {name: given[name].data_ptr(), f"{name}_size": given[name].numel()}
        return ctypes.byref(Arguments(**made, **plain, threads=threads))
