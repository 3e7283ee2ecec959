"""Kernels with matrix products: rows of queries (forward, tangents) or of keys (backward) in the lanes of four waves."""

from attn_mlir.backends.amd.mfma.core import Core
from attn_mlir.backends.amd.mfma.sweep import Sweep
from attn_mlir.backends.amd.mfma.tiles import ROWS, WAVES
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

FLAGS = (
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fapprox-func",
    "-freciprocal-math",
    "-fgpu-flush-denormals-to-zero",
    "-munsafe-fp-atomics",
)
"""What clang may do to f32: roots and divisions are those of the hardware (1 to 2.5 ulp), numbers below 2^-126 count as 0."""
_SINK = ("-mllvm", "-sink-insts-to-avoid-spills=1")
"""Moves what is computed before a loop into it, rather than keep it in memory."""


class Kernel:
    """Prints one kernel."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
        number = {item.name: item.attr.value for item in sizes if isinstance(item.attr, ir.IntegerAttr)}
        if number["block_q"] != ROWS * WAVES:
            raise UnsupportedError(f"amd: a program has {ROWS * WAVES} rows, not {number['block_q']}: choose block_q = {ROWS * WAVES}")
        self.kernel, self.schedule = kernel, schedule
        self.core = Core(kernel, number["block_kv"], bool(schedule.get("recompute")))

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        core, writer = self.core, self.core.writer
        writer.indent = core.scalars.indent = "  "
        sweep = Sweep(core, bool(self.schedule["in_turn"]), bool(self.schedule.get("deterministic")))
        reverse = bool(self.schedule["reverse"])
        place = (
            f"{core.arguments.blocks()} - 1 - (int)__builtin_amdgcn_workgroup_id_x()" if reverse else "__builtin_amdgcn_workgroup_id_x()"
        )
        core.here()
        sweep.block(body(self.kernel))
        name = ir.StringAttr(self.kernel.attributes["sym_name"]).value
        shared = max(16, sweep.staging.bytes, sweep.sums.bytes)
        head = [
            *["#define ATTN_RECOMPUTE"] * core.recompute,
            '#include "attn_amd.h"',
            "",
            f"{core.scalars.helper_source(cuda=False)}ATTN_KERNEL({64 * WAVES}, {self.schedule['waves']}) {name}(",
            *(f"    {text}," for text in core.arguments.declarations()),
        ]
        head[-1] = head[-1][:-1] + ") {"
        start = [
            f"__shared__ __attribute__((aligned(16))) unsigned char memory[{shared}];",
            f"const int block = {place}, head = __builtin_amdgcn_workgroup_id_y(), batch = __builtin_amdgcn_workgroup_id_z();",
        ]
        text = "\n".join([*head, *(f"  {line}" for line in start), *writer.lines, "}", ""])
        return KernelCode(
            name=name,
            entry=name,
            source=text.replace("__nv_bfloat16", "__hip_bfloat16"),
            parameters=core.parameters(),
            threads=64 * WAVES,
            shared_bytes=shared,
            language="hip",
            arch=str(self.schedule["arch"]),
            flags=(*FLAGS, *_SINK * core.recompute),
        )
