"""Chunk scans of the emitter "scans", and plain kernels, on a CPU: their CUDA, compiled for the host, beside the evaluator's results."""

import atexit
import ctypes
import functools
import re
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.amd.emulation import build
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.device_helpers import text_of as helper
from attn_mlir.backends.nvidia.scans import HELPERS, OF_WARPGROUPS

_SHIM = Path(__file__).with_name("scan_emulation.h")
_FIBERS = Path(build.__file__).parent
_TYPES = {"int": ctypes.c_int, "long long": ctypes.c_longlong, "float": ctypes.c_float, "double": ctypes.c_double}
_MAIN = """
extern "C" void launch(char *stacks, int descending, int blocks, int heads, int sequences{declared}) {{
  static struct {{ {members} }} given;
  given = {{ {names} }};
  kernel = [] {{ {entry}({passed}); }};
  for (blockIdx.z = 0; blockIdx.z < sequences; ++blockIdx.z)
    for (blockIdx.y = 0; blockIdx.y < heads; ++blockIdx.y)
      for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {{
        memset(memory, 255, sizeof memory);
        run_block(stacks, descending);
      }}
}}
"""

_WRAPPER = re.compile(
    r"__device__ __forceinline__ void (wgmma_m64n\d+k16_(rs|ss)_(bf16|f16)(_tb)?)\((float \(&d\)\[\d+\]), .*?\n}", re.DOTALL
)


def _of_host(found: re.Match[str]) -> str:
    """A wrapper of wgmma as the emulation has it."""
    name, form, element, turned, sums = found.groups()
    if form == "ss":
        call = f"wgmma_shared({element.upper()}{{}}, d, a, b, accumulate)"
        return f"static void {name}({sums}, uint64_t a, uint64_t b, int accumulate) {{ {call}; }}"
    call = f"wgmma<{element.upper()}, {'true' if turned else 'false'}>({element.upper()}{{}}, d, a0, a1, a2, a3, b, accumulate)"
    return f"static void {name}({sums}, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) {{ {call}; }}"


class _Map(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("strides", ctypes.c_longlong * 3), *((name, ctypes.c_int) for name in ("length", "columns", "rows"))
    ]  # fmt: skip


_LOCK = threading.Lock()


@functools.cache
def _stacks() -> np.ndarray[Any, Any]:
    """Of the fibers, for all libraries: each would keep 32 MB of its own to the end. Pages that no fiber uses take no memory."""
    return np.empty(1024 << 17, np.uint8)


def _command(*options: object) -> list[str]:
    return [find_host_clang(), "-std=c++17", "-mf16c", "-fno-exceptions", "-Wno-everything", "-fPIC", f"-I{_FIBERS}", *map(str, options)]


@functools.cache
def _folder() -> Path:
    """For what all kernels share. It goes when the process ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    return Path(folder.name)


@functools.cache
def _header(warps: int) -> list[str]:
    """Options of a kernel of as many warps: the header, compiled ahead, is half of what there is to compile.

    Kernels are not optimised, which takes ten times as long as such code runs; the sums of matrix instructions, most of it, are.
    """
    options = ["-O0", f"-DWARPS={warps}"]
    made = _folder() / f"scan_emulation_{warps}.pch"
    subprocess.run(_command(*options, "-x", "c++-header", _SHIM, "-o", made), check=True)
    return [*options, "-include-pch", str(made)]


@functools.cache
def _sums() -> Path:
    """What sums of matrix instructions are compiled to."""
    made = _folder() / "scan_sums.o"
    subprocess.run(_command("-O2", "-c", _SHIM.with_name("scan_sums.cpp"), "-o", made), check=True)
    return made


class HostScan:
    """A kernel's code on tensors of the CPU. Shared memory begins as NaN."""

    def __init__(self, code: KernelCode, plain: bool = False) -> None:
        """`plain`: code of the emitter "simt"."""
        self._code = code
        warp, scan, *_ = map(helper, HELPERS)
        source = code.source.replace(warp, "").replace(helper(OF_WARPGROUPS[0]), "")
        source = re.sub(r"extern __shared__ __align__\(\d+\) unsigned char memory\[\];", "", source)
        source = _WRAPPER.sub(_of_host, source.replace(helper(OF_WARPGROUPS[1]), ""))
        source = source.replace("#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n", "")
        source = re.sub(r"asm volatile\(\"griddepcontrol[^;]*;[^;]*;", "", source)  # kernels run one after another
        assert plain or (scan in source and warp not in source)
        declared = re.search(rf" {code.entry}\((.*?)\) {{", source, re.DOTALL)
        assert declared is not None
        texts = [text.strip().replace("__restrict__", "").replace("const __grid_constant__ ", "") for text in declared.group(1).split(",")]
        names = [re.split(r"[\s*]+", text)[-1] for text in texts]
        main = _MAIN.format(
            declared="".join(f", {text}" for text in texts), members=" ".join(f"{text};" for text in texts), names=", ".join(names),
            entry=code.entry, passed=", ".join(f"given.{name}" for name in names),
        )  # fmt: skip
        options = _header(code.threads // 32)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "scan.so"
            # The process has libm, and all else that is asked for: to look through libraries takes a third of the time.
            command = _command(*options, "-shared", "-nostdlib", _sums(), "-x", "c++", "-", "-o", path)
            made = subprocess.run(command, input=source + main, text=True, capture_output=True)
            assert made.returncode == 0, made.stderr[:4000]
            self._library = ctypes.CDLL(str(path))

    def __call__(self, arguments: Sequence[Any], grid: tuple[int, int, int], descending: bool) -> None:
        """Runs all programs of a grid; `descending`: threads take their turns in the other order."""
        given: list[Any] = []
        for parameter in self._code.parameters:
            x = arguments[parameter.argument]
            match parameter.kind:
                case "pointer":
                    given.append(ctypes.c_void_p(x.data_ptr()))
                case "size" | "stride":
                    given.append(_TYPES[parameter.type](x.shape[parameter.dim] if parameter.kind == "size" else x.stride(parameter.dim)))
                case "descriptor":
                    assert x.stride(3) == 1 and x.element_size() == 2
                    columns, rows = parameter.box
                    given.append(_Map(x.data_ptr(), (ctypes.c_longlong * 3)(*x.stride()[:3]), x.shape[2], columns, rows))
                case _:
                    given.append(_TYPES[parameter.type](x))
        with _LOCK:
            self._library.launch(_stacks().ctypes.data_as(ctypes.c_void_p), int(descending), *grid, *given)


def as_array(x: Any) -> Any:
    """What the evaluator takes."""
    return (
        x.detach().to(torch.float64 if x.is_floating_point() else torch.int64).numpy().copy()
        if isinstance(x, torch.Tensor)
        else np.asarray(x)
    )
