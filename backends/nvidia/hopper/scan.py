"""Chunk scans (linear attention): a producer warp that loads and sums up log decays, and a warpgroup for every 64 columns of v.

A warpgroup keeps its columns of the state, transposed, as accumulators of matrix products for the whole scan: they multiply q as operand
in registers and never pass through shared memory. See `scan_chunk` for the work on one chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu import printed
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.kernel_text import kernel_code
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.backends.nvidia.hopper.scan_chunk import ChunkPrinter
from attn_mlir.backends.nvidia.hopper.scan_common import ATOM, bind_position
from attn_mlir.backends.nvidia.hopper.scan_layout import ScanLayout
from attn_mlir.backends.nvidia.hopper.scan_producer import ScanProducer
from attn_mlir.backends.nvidia.hopper.scan_read import ChunkScan, read_scan
from attn_mlir.backends.nvidia.hopper.scan_state import StatePrinter
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_CONSUMER, _PRODUCER = 240, 24
"""Registers of a thread of either role where three warpgroups share them unevenly; each is launched with 168."""


def plan_scan(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """`stages` of tiles in shared memory, and `occupancy`: the thread blocks that find room on a multiprocessor, for which registers
    are counted. None for a kernel of another form. Raises UnsupportedError for choices that do not fit.
    """
    scan = read_scan(kernel)
    if scan is None:
        return None
    wanted = {name: int(choices[name]) for name in ("occupancy", "stages") if name in choices}
    for occupancy in (3, 2, 1):
        for stages in (2,) if occupancy > 1 else (3, 2):
            fields: Fields = {"occupancy": occupancy, "stages": stages, **wanted}
            if fields["stages"] != stages and "stages" in wanted and occupancy > 1 and "occupancy" not in wanted:
                continue
            if fields["occupancy"] == occupancy and _fits(scan, fields, target):
                return fields
    if wanted:
        raise UnsupportedError(f"scans with {wanted} do not fit into {target.shared_bytes} bytes of shared memory and the registers")
    return None


def _fits(scan: ChunkScan, fields: Fields, target: NvidiaTarget) -> bool:
    """Whether so many thread blocks have shared memory and registers."""
    occupancy, stages = int(fields["occupancy"]), int(fields["stages"])
    if not 1 <= occupancy <= 4 or not 1 < stages <= 4:
        return False
    try:
        code = printed.tried(scan.kernel, "hopper", fields, ScanKernel(scan, fields).emit())
    except UnsupportedError:
        return False
    file, room = target.share(occupancy)
    registers = file // code.threads // 8 * 8
    others = thresholds.SCAN_REGISTERS[not scan.rows] + (thresholds.SCALED_REGISTERS if scan.scaled else 0)
    return code.shared_bytes <= room and (occupancy == 1 or registers >= scan.keys // 2 + others)


def emit_scan(kernel: ir.Operation, schedule: Fields) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for a kernel of another form."""
    scan = read_scan(kernel)
    if scan is None:
        raise UnsupportedError("hopper: this kernel over chunks has a form that it does not know; use the emitter 'tilelang'")
    return ScanKernel(scan, schedule).emit()


@dataclass
class ScanKernel:
    """Prints one scan."""

    scan: ChunkScan
    schedule: Fields

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        scan = self.scan
        core = Core(scan.kernel, 0)
        layout = ScanLayout(SharedAllocator(), scan, int(self.schedule["stages"]))
        core.writer.indent = "  "
        with core.scope(None):
            self._program(core, layout)
        threads = 128 * layout.warpgroups + (128 if self._uneven() else 32)
        return kernel_code(core, layout.memory, threads, int(self.schedule["occupancy"]), "attn_chunks.cuh")

    def _uneven(self) -> bool:
        """Whether the warpgroups need so many registers that a producer warpgroup has to give them some."""
        return self.scan.values > ATOM and (self.scan.keys > 128 or (self.scan.compensated and self.scan.rows is not None))

    def _program(self, core: Core, layout: ScanLayout) -> None:
        scan, writer = self.scan, core.writer
        begin, end, step = (core.value(value) for value in list(scan.loop.operands)[:3])
        writer.line(f"const int chunks = ({end} - {begin} + {step} - 1) / {step};")
        for each in scan.inputs.values():
            for place in list(each.load.operands)[1:3]:
                core.value(place)
        producer = f"if (attn::warp_index() == {4 * layout.warpgroups})"
        if self._uneven():
            with core.scope(f"if (warpgroup == {layout.warpgroups})"):
                # First, as consumers wait for these registers.
                writer.line(f"attn::fewer_registers<{_PRODUCER}>();")
                self._produce(core, layout, producer)
        else:
            self._produce(core, layout, producer)
        with core.scope("else"):
            if self._uneven():
                writer.line(f"attn::more_registers<{_CONSUMER}>();")
            self._consume(core, layout)

    def _produce(self, core: Core, layout: ScanLayout, head: str) -> None:
        with core.scope(head):
            core.writer.line("const int lane = threadIdx.x % 32;")
            with core.scope("for (int number = 0; number < chunks; ++number)"):
                bind_position(core, self.scan, "number")
                ScanProducer(core, self.scan, layout).chunk()

    def _consume(self, core: Core, layout: ScanLayout) -> None:
        states = StatePrinter(core, self.scan)
        chunk = ChunkPrinter(core, self.scan, layout, states)
        chunk.declare()
        states.declare()
        core.writer.line("#pragma unroll 1")
        with core.scope("for (int number = 0; number < chunks; ++number)"):
            bind_position(core, self.scan, "number")
            chunk.print()
        chunk.finish()
        states.final()
