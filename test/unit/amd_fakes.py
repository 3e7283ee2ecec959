"""Stands in for the HIP runtime and an AMD GPU: a C library that records its calls."""

import ctypes
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch

from attn_mlir.backends.amd import hip
from attn_mlir.backends.amd.clang import find_host_clang

STREAM = 77
_SOURCE = r"""
#include <stdio.h>
#include <string.h>
static char calls[65536], values[4096];
static int count, failing;
void fake_reset(int parameters, int fails) { calls[0] = 0; count = parameters; failing = fails; }
const char *fake_calls(void) { return calls; }
const char *fake_values(void) { return values; }
#define NOTE(...) snprintf(calls + strlen(calls), sizeof calls - strlen(calls), __VA_ARGS__)
const char *hipGetErrorString(int error) { return error == 209 ? "no kernel image is available" : "unknown"; }
int hipModuleLoadData(void **module, const void *image) {
  NOTE("load %.4s\n", (const char *)image + 1);
  *module = (void *)0x1000;
  return failing;
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
  NOTE("function %s of %p\n", name, module);
  *function = (void *)0x2000;
  return 0;
}
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                          void *stream, void **parameters, void **extra) {
  NOTE("launch %p grid %u %u %u block %u %u %u shared %u stream %p extra %p\n", function, gx, gy, gz, bx, by, bz, shared, stream, extra);
  for (int i = 0; i < count; ++i) memcpy(values + 8 * i, parameters[i], 8);
  return 0;
}
"""


@cache
def _built() -> str:
    folder = Path(mkdtemp())
    (folder / "fake.c").write_text(_SOURCE)
    compiler = shutil.which("cc") or shutil.which("gcc") or find_host_clang().replace("clang++", "clang")
    subprocess.run([compiler, "-shared", "-fPIC", "-w", "-o", str(folder / "libamdhip64.so"), str(folder / "fake.c")], check=True)
    return str(folder / "libamdhip64.so")


class FakeHip:
    """The library, and what it remembers."""

    def __init__(self, parameters: int, fails: int) -> None:
        self.library = ctypes.CDLL(_built())
        self.library.fake_calls.restype = ctypes.c_char_p
        self.library.fake_values.restype = ctypes.c_void_p
        self.library.fake_reset(parameters, fails)

    def calls(self) -> list[str]:
        """One line for each."""
        return self.library.fake_calls().decode().splitlines()

    def value(self, number: int, kind: Any) -> Any:
        """A parameter of the last launch, of a type of ctypes."""
        return kind.from_address(self.library.fake_values() + 8 * number).value


@contextmanager
def fake_gpu(parameters: int, fails: int = 0) -> Iterator[FakeHip]:
    """Within it, tensors on the CPU count as on GPU 0 of a PyTorch for ROCm; launches, of so many parameters, do nothing."""
    fake = FakeHip(parameters, fails)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hip, "library", lambda: fake.library)
        patch.setattr(hip, "index_of", lambda tensor: 0)
        patch.setattr(hip, "on_device", lambda index: nullcontext())
        patch.setattr(hip, "current_stream", lambda index: STREAM)
        patch.setattr(torch.version, "hip", "6.4.0")
        yield fake
