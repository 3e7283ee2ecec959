"""Plain CUDA for kernels without matrix products and without loops over keys."""

from collections.abc import Mapping

from attn_mlir.backends.gpu import simt
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt import Dialect
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.mlir import ir


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """See `gpu.simt.plan`."""
    return simt.plan(kernel, choices)


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """See `gpu.simt.emit`."""
    return simt.emit(kernel, _cuda(target.arch))


def _cuda(arch: str) -> Dialect:
    return Dialect(
        language="cuda",
        arch=arch,
        includes="#include <cuda_bf16.h>\n#include <cuda_fp16.h>\n",
        device="static __device__ __forceinline__",
        thread="threadIdx.x",
        place=("blockIdx.x", "blockIdx.y", "blockIdx.z"),
        shared="__shared__",
        barrier="__syncthreads()",
        add="atomicAdd",
        wave=32,
        neighbour=lambda x, step: f"__shfl_xor_sync(0xffffffffu, {x}, {step})",
        head=lambda threads, name, parameters: f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters})',
        blocks="gridDim.x",
    )
