"""Chunk scans (linear attention): four waves share the tiles of a chunk; the state stays in registers."""

from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.scan import ChunkOps
from attn_mlir.backends.amd.chunks.tiles import THREADS
from attn_mlir.backends.amd.source import kernel_code
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body
from attn_mlir.mlir import ir


class ChunkKernel:
    """Prints one kernel."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
        self.kernel, self.schedule = kernel, schedule
        self.core = ChunkCore(kernel, ir.IntegerAttr(sizes["block_q"]).value, int(schedule["reuse"]), int(schedule.get("split", 1)))

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        core, writer = self.core, self.core.writer
        writer.indent = core.scalars.indent = "  "
        ChunkOps(core).block(body(self.kernel), set())
        places, shared = core.memory.place()
        block = f"attn::Block<{core.size}>"
        start = [
            "const int block = __builtin_amdgcn_workgroup_id_x(), head = __builtin_amdgcn_workgroup_id_y(), "
            "batch = __builtin_amdgcn_workgroup_id_z();",
            "const int lane = attn::thread() & 63, wave = attn::uniform(attn::thread() >> 6);",
            f"const int own = {block}::own(), first = {block}::first();",
            "// Where tiles are in shared memory.",
            *(f"constexpr int {buffer} = {at};" for buffer, at in places.items()),
        ]
        before = ['#include "attn_amd.h"', '#include "attn_amd_chunks.h"']
        return kernel_code(
            self.kernel, core, core.aligned, self.schedule, before=before, start=start, threads=THREADS, shared=max(16, shared)
        )
