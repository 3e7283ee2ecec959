"""Plain CUDA for kernels without matrix products and without loops over keys."""

from collections.abc import Mapping
from dataclasses import replace

from attn_mlir.backends.gpu import simt
from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt import Dialect
from attn_mlir.backends.gpu.simt.merge import emit_merge, is_merge
from attn_mlir.backends.gpu.structure import body, is_row, operations
from attn_mlir.backends.nvidia import scans
from attn_mlir.backends.nvidia.passes.float32_products import PIECES
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_AROUND = ('asm volatile("griddepcontrol.launch_dependents;" ::: "memory");', 'asm volatile("griddepcontrol.wait;" ::: "memory");')
"""Statements around those of a kernel of sm_90 that may overlap with another, see `backends.nvidia.overlap`."""
_OF_SUMS = {
    *("arith.constant", "arith.muli", "arith.subi", "arith.minsi", "memref.dim", "func.return"),
    *("tile.program_id", "tile.load", "tile.map", "tile.store"),
}
"""The ops of a kernel that only adds up rows."""


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """See `gpu.simt.plan`. Sums over heads and of steps of delta rules are those of `scans`, where it makes them: these were measured."""
    fields = simt.plan(kernel, choices)
    if fields is None or PIECES not in kernel.attributes or not ("steps" in fields or _adds_heads(kernel)):
        return fields
    return None if "emitter" not in choices and isinstance(scans.plan(kernel, target, choices), dict) else fields


def _adds_heads(kernel: ir.Operation) -> bool:
    """Whether what a loop of a kernel over rows carries is what it stores."""
    loops, stores = find_all(kernel, "scf.for"), find_all(kernel, "tile.store")
    return grid_kind(kernel) == "rows" and len(loops) == len(stores) == 1 and stores[0].operands[0] in list(loops[0].results)


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """See `gpu.simt.emit`. Kernels that only add up rows may run beside each other."""
    dialect = _cuda(target.arch)
    if not target.bulk_copies or not _adds_rows(kernel):
        return simt.emit(kernel, dialect)
    return replace(simt.emit(kernel, replace(dialect, around=_AROUND)), overlaps=True)


def _adds_rows(kernel: ir.Operation) -> bool:
    """Whether a kernel stores nothing but a number for each row, and has no loop."""
    stores = find_all(kernel, "tile.store")
    names = {op.name for op in operations(body(kernel))}
    return grid_kind(kernel) == "rows" and bool(stores) and names <= _OF_SUMS and all(is_row(store.operands[0].type) for store in stores)


def emit_inside(kernel: ir.Operation, target: NvidiaTarget, threads: int) -> KernelCode:
    """A function that merges the parts of a row of a head, for `threads` of a warp inside of another kernel. Raises UnsupportedError."""
    if not is_merge(kernel):
        raise UnsupportedError("no kernel that merges parts of rows")
    of_device = "static __device__ __forceinline__"

    def head(_: int, name: str, parameters: str) -> str:
        # What another thread block of a cluster wrote is no constant.
        return f"{of_device} void {name}(int merge_thread, int merge_head, {parameters.replace('__restrict__ ', '')})"

    dialect = replace(_cuda(target.arch), includes="", thread="merge_thread", place=("0", "merge_head", "0"), head=head)
    return emit_merge(kernel, dialect, threads)


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
