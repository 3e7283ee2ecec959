"""Stands in for what tests of the NVIDIA driver do not have: a GPU (`FakeCuda`), and a code generator (`naive`)."""

import ctypes
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import backends
from attn_mlir.backends.gpu.kernel import KernelCode, KernelParameter
from attn_mlir.backends.host import KernelGrid
from attn_mlir.backends.nvidia import codegen, cuda, driver, launch, pipeline
from attn_mlir.backends.nvidia.compile import Cubin
from attn_mlir.mlir import ir

ROWS, KEYS = 128, 32
BINARY = Cubin(b"ELF", 40, 0, 0, 0)
_SOURCE = """
#include <cuda_fp16.h>
struct alignas(64) Map { char bytes[128]; };

// Causal softmax attention, heads of 64 columns, a thread for each of 128 rows; keys come through the copy engine.
extern "C" __global__ void attention(const __grid_constant__ Map k_map, const __half *q, const __half *v, __half *o, float *lse,
                                     int sq, int skv, int hq, int hkv, long long q0, long long q1, long long q2, long long v0,
                                     long long v1, long long v2, long long o0, long long o1, long long o2) {
  __shared__ alignas(128) __half keys[32 * 64];
  __shared__ unsigned long long barrier;
  int row = blockIdx.x * 128 + threadIdx.x, h = blockIdx.y, b = blockIdx.z, kv = h / (hq / hkv);
  unsigned where = static_cast<unsigned>(__cvta_generic_to_shared(&barrier)), into = static_cast<unsigned>(__cvta_generic_to_shared(keys));
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(where));
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float query[64], sum[64], m = -1e30f, l = 0.f;
  for (int d = 0; d < 64; ++d) query[d] = row < sq ? __half2float(q[b * q0 + h * q1 + row * q2 + d]) : 0.f, sum[d] = 0.f;
  for (int block = 0; block * 32 < skv; ++block) {
    __syncthreads();
    if (threadIdx.x == 0) {
      asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 4096;" ::"r"(where));
      asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], [%6];" ::
                   "r"(into), "l"(&k_map), "r"(0), "r"(block * 32), "r"(kv), "r"(b), "r"(where) : "memory");
    }
    unsigned done = 0;
    while (!done)
      asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                   : "=r"(done) : "r"(where), "r"(block & 1) : "memory");
    for (int j = 0; j < 32; ++j) {
      int key = block * 32 + j;
      if (key >= skv || key > row || row >= sq) continue;
      float s = 0.f;
      for (int d = 0; d < 64; ++d) s += query[d] * __half2float(keys[j * 64 + d]);
      s *= 0.125f;
      float next = fmaxf(m, s), factor = __expf(m - next), p = __expf(s - next);
      l = l * factor + p, m = next;
      for (int d = 0; d < 64; ++d) sum[d] = sum[d] * factor + p * __half2float(v[b * v0 + kv * v1 + key * v2 + d]);
    }
  }
  if (row >= sq) return;
  for (int d = 0; d < 64; ++d) o[b * o0 + h * o1 + row * o2 + d] = __float2half(sum[d] / l);
  lse[(static_cast<long long>(b) * hq + h) * sq + row] = m + __logf(l);
}
"""


def naive(kernel: ir.Operation) -> KernelCode:
    """Code for `@attention` of test/Inputs/causal-softmax.mlir in f16: arguments q, k, v, and at the end o and lse."""
    o = len(kernel.regions[0].blocks[0].arguments) - 2
    sizes = [KernelParameter("size", 0, 2), KernelParameter("size", 1, 2), KernelParameter("size", 0, 1), KernelParameter("size", 1, 1)]
    strides = [KernelParameter("stride", tensor, dim, "long long") for tensor in (0, 2, o) for dim in range(3)]
    pointers = [KernelParameter("pointer", tensor) for tensor in (0, 2, o, o + 1)]
    parameters = (KernelParameter("descriptor", 1, box=(64, KEYS), swizzle=0), *pointers, *sizes, *strides)
    return KernelCode("attention", "attention", _SOURCE, parameters, ROWS, 0, flags=())


def moving_maps(patch: pytest.MonkeyPatch) -> None:
    """Descriptions of tensors of one shape differ in the address that they begin with, as those of the driver do."""
    patch.setattr(cuda, "maps_move", lambda: True)
    patch.setattr(launch, "_MAPS", {})
    patch.setattr(cuda, "_map", lambda address, *rest: address.to_bytes(8, "little") + bytes(range(120)))


@contextmanager
def naive_emitter() -> Iterator[None]:
    """Within it, the NVIDIA backend compiles with `naive`, whatever the program is."""
    backend = dataclasses.replace(backends.load_backends()["nvidia"], compile="driver:compile_module", derive="driver:compile_derivative")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backends.load_backends(), "nvidia", backend)
        patch.setattr(codegen, "plan", lambda kernel: {"emitter": "naive", "arch": "sm_90a"})
        patch.setattr(codegen, "emit", naive)
        patch.setattr(
            pipeline,
            "KERNEL",
            "attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,"
            f"attn-tile{{block-q={ROWS} block-kv={KEYS}}},canonicalize,cse",
        )
        yield


class FakeCuda:
    """A libcuda that does nothing, and remembers its calls by name in `calls`: arguments, or what a test needs to know of them."""

    def __init__(self, **failing: int) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.failing = failing
        """Functions that return an error."""
        self.current = 0
        """The context of the thread, 0: none."""
        self.attributes = {16: 132, 97: 227 * 1024, 75: 9, 76: 0}

    def named(self, name: str) -> list[Any]:
        return [given for called, given in self.calls if called == name]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cu"):
            raise AttributeError(name)
        function = _Function(self, name)
        setattr(self, name, function)
        return function

    def answer(self, name: str, args: tuple[Any, ...]) -> Any:
        """What is remembered of a call; fills what it returns through pointers."""
        match name:
            case "cuDeviceGetAttribute":
                args[0]._obj.value = self.attributes[args[1]]
            case "cuDeviceGetName":
                args[0].value = b"NVIDIA Fake"
            case "cuGetErrorName" | "cuGetErrorString":
                args[1]._obj.value = {"cuGetErrorName": b"CUDA_ERROR_NO_BINARY_FOR_GPU", "cuGetErrorString": b"no kernel image"}[name]
            case "cuModuleGetFunction" | "cuModuleLoadData" | "cuDevicePrimaryCtxRetain":
                args[0]._obj.value = 0x1000 + len(self.calls)
            case "cuCtxGetCurrent":
                args[0]._obj.value = self.current
            case "cuCtxSetCurrent":
                self.current = args[0].value or 0
            case "cuTensorMapEncodeTiled":
                ctypes.memset(args[0].value, 7, 128)
                return {
                    "type": args[1], "address": args[3].value, "dims": list(args[4]), "strides": list(args[5]), "box": list(args[6]),
                    "swizzle": args[9],
                }  # fmt: skip
            case "cuLaunchKernelEx":
                return _launch(*args)
        return args


class _Function:
    def __init__(self, fake: FakeCuda, name: str) -> None:
        self._fake, self._name = fake, name
        self.argtypes: Any = None
        self.restype: Any = None

    def __call__(self, *args: Any) -> int:
        self._fake.calls.append((self._name, self._fake.answer(self._name, args)))
        return self._fake.failing.get(self._name, 0)


def _launch(config: int, function: int, parameters: int, extra: None) -> dict[str, Any]:
    made = cuda.Config.from_address(config)
    cluster = 1
    if made.count:
        cluster = cuda._Attribute.from_address(made.attributes).value.cluster.x
    return {
        "grid": (made.grid.x, made.grid.y, made.grid.z), "threads": made.block.x, "shared": made.shared_bytes, "stream": made.stream or 0,
        "cluster": cluster, "function": function, "parameters": parameters,
    }  # fmt: skip


def parameter(launch: dict[str, Any], number: int, kind: Any) -> Any:
    """The value of a parameter of a launch, of a type of ctypes."""
    pointers = (ctypes.c_void_p * (number + 1)).from_address(launch["parameters"])
    return kind.from_address(pointers[number]).value


@contextmanager
def fake_gpu(**failing: int) -> Iterator[FakeCuda]:
    """Within it, tensors on the CPU count as on GPU 0, and launches do nothing."""
    fake = FakeCuda(**failing)
    cached = (cuda.device, cuda._handle, cuda._context, cuda.launcher, cuda._clearing)
    for function in cached:
        function.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "library", lambda: fake)
        patch.setattr(cuda, "index_of", lambda tensor: 0)
        patch.setattr(cuda, "current_device", lambda: 0)
        patch.setattr(cuda, "current_stream", lambda index: 77)
        patch.setattr(cuda, "is_capturing", lambda index: False)
        patch.setattr(cuda, "empty", lambda size, strides, dtype: torch.empty_strided(size, strides, dtype=dtype))
        yield fake
    for function in cached:
        function.cache_clear()


def code(*parameters: KernelParameter, **more: Any) -> KernelCode:
    """A kernel without a source."""
    return KernelCode("f", "f", "", parameters, more.pop("threads", 128), more.pop("shared_bytes", 0), **more)


def kernel(grid: str = "rows", over: int = 0, outputs: tuple[str, ...] = ("store",), **more: Any) -> KernelGrid:
    """The facts about it, with blocks of 128 rows."""
    return KernelGrid("f", 128, grid, over, outputs, more.get("disjoint", ((),) * len(outputs)), False)


def heads(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Random numbers."""
    return torch.randn(shape).to(dtype)


def set_apart(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Programs, descriptors and files of one test are not those of another."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(cache))
    for module, name in ((driver, "_PROGRAMS"), (driver, "_KERNELS"), (launch, "_MAPS"), (launch, "_COUNTERS"), (launch, "_SPARE")):
        monkeypatch.setattr(module, name, {})
