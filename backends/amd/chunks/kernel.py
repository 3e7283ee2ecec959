"""Sweeps over chunks (linear attention): four waves share the tiles of a chunk; the state stays in registers."""

from attn_mlir.backends.amd.chunks.core import Core
from attn_mlir.backends.amd.chunks.sweep import Sweep
from attn_mlir.backends.amd.chunks.tiles import THREADS
from attn_mlir.backends.amd.mfma.kernel import FLAGS
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body
from attn_mlir.mlir import ir


class Kernel:
    """Prints one kernel."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
        self.kernel, self.schedule = kernel, schedule
        self.core = Core(kernel, ir.IntegerAttr(sizes["block_q"]).value, bool(schedule["reuse"]))

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        core, writer = self.core, self.core.writer
        writer.indent = core.scalars.indent = "  "
        Sweep(core).block(body(self.kernel), set())
        name = ir.StringAttr(self.kernel.attributes["sym_name"]).value
        places, shared = core.memory.place()
        shared = max(16, shared)
        declarations = core.arguments.declarations()
        head = [
            '#include "attn_amd.h"',
            '#include "attn_amd_chunks.h"',
            "",
            f"{core.scalars.helper_source(cuda=False)}ATTN_KERNEL({THREADS}, {self.schedule['waves']}) {name}(",
            *(f"    {text}," for text in declarations),
        ]
        head[-1] = head[-1][:-1] + ") {"
        block = f"attn::Block<{core.size}>"
        start = [
            f"__shared__ __attribute__((aligned(16))) unsigned char memory[{shared}];",
            "const int block = __builtin_amdgcn_workgroup_id_x(), head = __builtin_amdgcn_workgroup_id_y(), "
            "batch = __builtin_amdgcn_workgroup_id_z();",
            "const int lane = attn::thread() & 63, wave = attn::uniform(attn::thread() >> 6);",
            f"const int own = {block}::own(), first = {block}::first();",
            "// Where tiles are in shared memory.",
            *(f"constexpr int {buffer} = {at};" for buffer, at in places.items()),
        ]
        text = "\n".join([*head, *(f"  {line}" for line in start), *writer.lines, "}", ""])
        return KernelCode(
            name=name,
            entry=name,
            source=text.replace("__nv_bfloat16", "__hip_bfloat16"),
            parameters=core.parameters(),
            threads=THREADS,
            shared_bytes=shared,
            language="hip",
            arch=str(self.schedule["arch"]),
            flags=FLAGS,
        )
