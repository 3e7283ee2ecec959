"""Puts the text of a kernel together."""

from collections.abc import Sequence

from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.unread import without_unread
from attn_mlir.backends.nvidia.device_helpers import text_of
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.mlir import ir

WORDS = "#define ATTN_DESCRIPTOR_WORDS"
"""In front of headers: words of descriptors are added to apart (`advance` in attn_wgmma.cuh)."""


def header(*more: str) -> str:
    """The device helpers that every kernel includes, and those of further files."""
    return text_of(*(f"hopper/{name}" for name in ("attn_wgmma.cuh", "attn_hopper.cuh", "attn_rows.cuh", *more)))


def function_source(
    core: Core, layout: SharedAllocator, threads: int, *helpers: str, occupancy: int = 1, places: str = "", first: Sequence[str] = ()
) -> str:
    """A whole CUDA file: the header and those of these names, the instructions that are used, and the function around the roles' text.

    `occupancy`: thread blocks of so many `threads` on a multiprocessor. `places`: names with values that are known at the start.
    `first`: what all threads do before they have roles.
    """
    name = ir.StringAttr(core.kernel.attributes["sym_name"]).value
    declared = ",\n".join(f"    {text}" for text in core.arguments.declarations())
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {occupancy}) {name}(',
        f"{declared}) {{",
        *(f"  {text}" for text in layout.declarations()),
        "  extern __shared__ __align__(1024) unsigned char memory[];",
        "  const uint32_t shared = attn::shared_address(memory);",
        f"  const int {places}warpgroup = attn::warpgroup_index();",
        "  if (threadIdx.x == 0) {",
        *(f"    {text}" for text in layout.initialisation()),
        "  }",
        "  __syncthreads();" if core.cluster == 1 else "  attn::cluster_sync();",  # no role meets an mbarrier before it is initialised
        *(f"  {text}" for text in first),
    ]
    return "\n".join(
        [header(*helpers), core.instructions(), core.scalars.helper_source(), *lines, *without_unread(core.writer.lines), "}", ""]
    )


def kernel_code(core: Core, memory: SharedAllocator, threads: int, occupancy: int, *helpers: str) -> KernelCode:
    """A kernel that knows its program (`block`, `head`, `batch`): its CUDA file, with headers of these names, and how to launch it."""
    name = ir.StringAttr(core.kernel.attributes["sym_name"]).value
    places = "block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, "
    # With descriptors advanced by one instruction, ptxas spills in scans of 256 x 128 with products, and serialises those of wgmma (C7512).
    source = f"{WORDS}\n{function_source(core, memory, threads, *helpers, occupancy=occupancy, places=places)}"
    return KernelCode(
        name=name, entry=name, source=source, parameters=core.arguments.parameters(), threads=threads, shared_bytes=memory.bytes()
    )
