"""Plain HIP C++ for kernels without matrix products and without loops over keys."""

from collections.abc import Mapping

from attn_mlir.backends.amd.source import FLAGS
from attn_mlir.backends.amd.target import AmdTarget
from attn_mlir.backends.gpu import simt
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.simt import Dialect
from attn_mlir.mlir import ir


def plan(kernel: ir.Operation, target: AmdTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """See `gpu.simt.plan`."""
    return simt.plan(kernel, choices, target.wave)


def emit(kernel: ir.Operation, target: AmdTarget) -> KernelCode:
    """See `gpu.simt.emit`."""
    return simt.emit(kernel, _hip(target))


def _hip(target: AmdTarget) -> Dialect:
    return Dialect(
        language="hip",
        arch=target.arch,
        includes='#include "attn_amd.h"\n',
        device="ATTN_DEVICE",
        thread="attn::thread()",
        place=tuple(f"(int)__builtin_amdgcn_workgroup_id_{axis}()" for axis in "xyz"),  # type: ignore[arg-type]
        shared="__shared__",
        barrier="attn::barrier()",
        add="attn::atomic_add",
        wave=target.wave,
        neighbour=lambda x, step: f"attn::from_lane({x}, (attn::thread() & {target.wave - 1}) ^ {step})",
        head=lambda threads, name, parameters: f"ATTN_KERNEL({threads}, 1) {name}({parameters})",
        change=lambda text: text.replace("__nv_bfloat16", "__hip_bfloat16"),
        flags=FLAGS,
    )
