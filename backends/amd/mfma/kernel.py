"""Kernels with matrix products: rows of queries (forward, tangents) or of keys (backward) in the lanes of four waves."""

from attn_mlir.backends.amd.mfma.core import MfmaCore
from attn_mlir.backends.amd.mfma.scan import MfmaPrinter
from attn_mlir.backends.amd.mfma.tiles import MATRIX, ROWS, WAVES
from attn_mlir.backends.amd.mfma.windows import HEADER
from attn_mlir.backends.amd.source import FLAGS, kernel_code
from attn_mlir.backends.amd.target import TARGETS
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.structure import body
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

_SINK = ("-mllvm", "-sink-insts-to-avoid-spills=1")
"""Moves what is computed before a loop into it, rather than keep it in memory."""


class MfmaKernel:
    """Prints one kernel."""

    def __init__(self, kernel: ir.Operation, schedule: Fields) -> None:
        sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
        number = {item.name: item.attr.value for item in sizes if isinstance(item.attr, ir.IntegerAttr)}
        if number["block_q"] != ROWS * WAVES:
            raise UnsupportedError(f"amd: a program has {ROWS * WAVES} rows, not {number['block_q']}: choose block_q = {ROWS * WAVES}")
        loaded = {str(ir.RankedTensorType(load.results[0].type).element_type) for load in find_all(kernel, "tile.load")}
        self.eight_bit = any(element in MATRIX and MATRIX[element].bytes == 1 for element in loaded)
        if self.eight_bit and not TARGETS[str(schedule["arch"])].eight_bit:
            raise UnsupportedError(f"amd: {schedule['arch']} has no 8-bit matrix instructions: loads must widen q, k and v to 16 bits")
        self.kernel, self.schedule = kernel, schedule
        self.core = MfmaCore(kernel, number["block_kv"], bool(schedule.get("recompute")))

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        core, writer = self.core, self.core.writer
        writer.indent = core.scalars.indent = "  "
        scan = MfmaPrinter(core, int(self.schedule["in_turn"]), bool(self.schedule.get("deterministic")))
        scan.maps.room = int(self.schedule.get("room", 0))
        reverse = bool(self.schedule["reverse"])
        place = (
            f"{core.arguments.blocks()} - 1 - (int)__builtin_amdgcn_workgroup_id_x()" if reverse else "__builtin_amdgcn_workgroup_id_x()"
        )
        core.here()
        scan.block(body(self.kernel))
        if any(part != 1.0 for part in core.parts.values()):
            raise UnsupportedError("amd: sums of 8-bit products outside of loops: pass q, k and v in 16 bits, or use the CPU")
        windows = ['#include "attn_amd_fp8.h"'] * self.eight_bit + [HEADER] * bool(find_all(self.kernel, "tile.load_window"))
        start = [f"const int block = {place}, head = __builtin_amdgcn_workgroup_id_y(), batch = __builtin_amdgcn_workgroup_id_z();"]
        return kernel_code(
            self.kernel,
            core,
            core.aligned,
            self.schedule,
            before=[*["#define ATTN_RECOMPUTE"] * (core.recompute or "late" in self.schedule), '#include "attn_amd.h"', *windows],
            start=start,
            threads=64 * WAVES,
            shared=max(16, scan.staging.bytes, scan.sums.bytes),
            flags=(*FLAGS, *_SINK * core.recompute),
        )
