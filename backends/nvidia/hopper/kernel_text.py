"""Puts the text of a kernel together."""

from importlib.resources import files

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.mlir import ir


def header(*more: str) -> str:
    """The device helpers that every kernel includes, and those of further files."""
    folder = files("attn_mlir.backends.nvidia.hopper")
    text = "".join((folder / name).read_text() for name in ("attn_hopper.cuh", "attn_rows.cuh", *more))
    return text.replace("#pragma once\n", "")


def function_source(core: Core, layout: SharedAllocator, threads: int, *helpers: str) -> str:
    """A whole CUDA file: the header and those of these names, the instructions that are used, and the function around the roles' text."""
    name = core.kernel.attributes["sym_name"].value
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, 1) {name}(',
        *(f"    {text}," for text in core.arguments.declarations()),
    ]
    lines[-1] = lines[-1][:-1] + ") {"
    lines += [f"  {text}" for text in layout.declarations()]
    lines += [
        "  extern __shared__ __align__(1024) unsigned char memory[];",
        "  const uint32_t shared = attn::shared_address(memory);",
        "  const int warpgroup = attn::warpgroup_index();",
        "  if (threadIdx.x == 0) {",
        *(f"    {text}" for text in layout.initialisation()),
        "  }",
        "  __syncthreads();",  # no role meets an mbarrier before it is initialised
    ]
    return "\n".join([header(*helpers), core.instructions(), core.scalars.helper_source(), *lines, *core.writer.lines, "}", ""])


def kernel_code(core: Core, memory: SharedAllocator, threads: int, occupancy: int, *helpers: str) -> KernelCode:
    """A kernel that knows its program (`block`, `head`, `batch`): its whole CUDA file, with headers of these names, and how to launch it.

    `occupancy`: blocks of so many `threads` on a multiprocessor.
    """
    name = ir.StringAttr(core.kernel.attributes["sym_name"]).value
    declared = [f"    {text}," for text in core.arguments.declarations()]
    declared[-1] = declared[-1][:-1] + ") {"
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {occupancy}) {name}(',
        *declared,
        *[f"  {text}" for text in memory.declarations()],
        "  extern __shared__ __align__(1024) unsigned char memory[];",
        "  const uint32_t shared = attn::shared_address(memory);",
        "  const int block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, warpgroup = attn::warpgroup_index();",
        "  if (threadIdx.x == 0) {",
        *[f"    {text}" for text in memory.initialisation()],
        "  }",
        "  __syncthreads();",  # no role meets an mbarrier before it is initialised
    ]
    source = "\n".join([header(*helpers), core.instructions(), core.scalars.helper_source(), *lines, *core.writer.lines, "}", ""])
    return KernelCode(
        name=name, entry=name, source=source, parameters=core.arguments.parameters(), threads=threads, shared_bytes=memory.bytes()
    )
