"""CUDA C++ for chunk scans whose form the emitter "hopper" does not know, delta rules above all: products of warps, states in registers."""

from collections.abc import Mapping
from importlib.resources import files

from attn_mlir.backends.gpu.attributes import Fields, grid_kind
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.scans.core import ScanCore
from attn_mlir.backends.nvidia.scans.layout import DOTS, SOLVE, THREADS, ScanLayout
from attn_mlir.backends.nvidia.scans.printer import ScanPrinter
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

HELPERS = ("attn_warp.cuh", "attn_scan.cuh")


def plan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """No decisions of its own; None for kernels that are no chunk scans with products, have other sizes, or need more shared memory."""
    if grid_kind(kernel) != "chunks" or not find_all(kernel, *DOTS):
        return None
    try:
        made = _print(kernel, target)
    except UnsupportedError:
        if choices.get("emitter") == "scans":
            raise
        return None
    return {} if made.shared_bytes <= target.shared_bytes else None


def emit(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    """The source of a kernel. Raises UnsupportedError for what this emitter cannot do."""
    return _print(kernel, target)


def pieces_of(kernel: ir.Operation) -> int:
    """Pieces of bf16 of each factor, where a kernel multiplies numbers of f32 itself: two where its inputs have 16 bits."""
    first = ir.MemRefType(kernel.regions[0].blocks[0].arguments[0].type)
    return 3 if isinstance(first.element_type, ir.F32Type) else 2


def helper(name: str) -> str:
    """The text of a file of device helpers."""
    return files("attn_mlir.backends.nvidia.scans").joinpath(name).read_text().replace("#pragma once\n", "")


def _print(kernel: ir.Operation, target: NvidiaTarget) -> KernelCode:
    layout = ScanLayout(kernel, pieces_of(kernel))
    core = ScanCore(kernel, layout)
    core.writer.indent = core.scalars.indent = "  "
    ScanPrinter(core).block(kernel.regions[0].blocks[0])
    name = ir.StringAttr(kernel.attributes["sym_name"]).value
    declared = ",\n".join(f"    {text}" for text in core.arguments.declarations())
    lines = [
        f'extern "C" __global__ void __launch_bounds__({THREADS}, 1) {name}(',
        f"{declared}) {{",
        "  extern __shared__ __align__(128) unsigned char memory[];",
        "  const int block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;",
        *core.writer.lines,
        "}",
        "",
    ]
    return KernelCode(
        name=name, entry=name, source="\n".join([*map(helper, HELPERS), core.scalars.helper_source(), *lines]), parameters=core.arguments.parameters(),
        threads=THREADS, shared_bytes=max(layout.size, 16), arch=target.arch, flags=() if find_all(kernel, SOLVE) else ("-use_fast_math",),
    )  # fmt: skip
