"""Sweeps over chunks (linear attention): a producer warp that loads and sums up log decays, and a warpgroup for every 64 columns of v.

A warpgroup keeps its columns of the state, transposed, as accumulators of matrix products for the whole sweep: they multiply q as operand
in registers and never pass through shared memory. See `sweep_chunk` for the work on one chunk.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.memory import Layout
from attn_mlir.backends.nvidia.hopper.source import header
from attn_mlir.backends.nvidia.hopper.sweep_chunk import ChunkPrinter
from attn_mlir.backends.nvidia.hopper.sweep_layout import SweepLayout
from attn_mlir.backends.nvidia.hopper.sweep_producer import SweepProducer
from attn_mlir.backends.nvidia.hopper.sweep_read import Sweep, read_sweep
from attn_mlir.backends.nvidia.hopper.sweep_state import StatePrinter
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_RESERVED = 1024
"""Bytes of shared memory of each block of threads that the chip keeps for itself."""
_PRODUCER = 24
_CONSUMER = {1: 232, 2: 240}
"""Registers of a thread of either role, by warpgroups, where the roles' differ: as many as the launch gives, 256 or 168 a thread."""


def plan_sweep(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """`stages` of tiles in shared memory; None for a kernel of another form. Raises UnsupportedError for stages that do not fit."""
    sweep = read_sweep(kernel)
    if sweep is None:
        return None
    try:
        needed = {stages: SweepKernel(sweep, {"stages": stages}).emit().shared_bytes for stages in (4, 3, 2)}
    except UnsupportedError:
        return None
    if "stages" in choices:
        wanted = int(choices["stages"])
        if needed.get(wanted, target.shared_bytes + 1) > target.shared_bytes:
            raise UnsupportedError(f"a sweep has 2 to 4 stages that fit into {target.shared_bytes} bytes of shared memory, not {wanted}")
        return {"stages": wanted}
    if 2 * (needed[2] + _RESERVED) <= target.shared_bytes + _RESERVED and sweep.values == 64:
        return {"stages": 2}
    return next(({"stages": stages} for stages in (3, 2) if needed[stages] <= target.shared_bytes), None)


def emit_sweep(kernel: ir.Operation, schedule: Fields) -> KernelCode:
    """The source of a scheduled kernel. Raises UnsupportedError for a kernel of another form."""
    sweep = read_sweep(kernel)
    if sweep is None:
        raise UnsupportedError("hopper: this kernel over chunks has a form that it does not know; use the emitter 'tilelang'")
    return SweepKernel(sweep, schedule).emit()


@dataclass
class SweepKernel:
    """Prints one sweep."""

    sweep: Sweep
    schedule: Fields

    def emit(self) -> KernelCode:
        """The source and how to launch it."""
        sweep = self.sweep
        core = Core(sweep.kernel, 0)
        layout = SweepLayout(Layout(), sweep, int(self.schedule["stages"]))
        core.writer.indent = "  "
        with core.scope(None):
            self._program(core, layout)
        threads = 128 * layout.warpgroups + (128 if self._uneven() else 32)
        name = ir.StringAttr(sweep.kernel.attributes["sym_name"]).value
        return KernelCode(
            name=name,
            entry=name,
            source=_source(core, layout, name, threads),
            parameters=core.arguments.parameters(),
            threads=threads,
            shared_bytes=layout.memory.bytes(),
        )

    def _uneven(self) -> bool:
        """Whether a state is so large that the warpgroups need registers that a producer warpgroup gives them."""
        return self.sweep.keys > 128

    def _program(self, core: Core, layout: SweepLayout) -> None:
        sweep, writer = self.sweep, core.writer
        begin, end, step = (core.value(value) for value in list(sweep.loop.operands)[:3])
        writer.line(f"const int chunks = ({end} - {begin} + {step} - 1) / {step};")
        for each in sweep.inputs.values():
            for place in list(each.load.operands)[1:3]:
                core.value(place)
        producer = f"if (attn::warp_index() == {4 * layout.warpgroups})"
        if self._uneven():
            with core.scope(f"if (warpgroup == {layout.warpgroups})"):
                writer.line(f"attn::fewer_registers<{_PRODUCER}>();")
                self._produce(core, layout, producer)
        else:
            self._produce(core, layout, producer)
        with core.scope("else"):
            if self._uneven():
                writer.line(f"attn::more_registers<{_CONSUMER[layout.warpgroups]}>();")
            self._consume(core, layout)

    def _produce(self, core: Core, layout: SweepLayout, head: str) -> None:
        with core.scope(head):
            core.writer.line("const int lane = threadIdx.x % 32;")
            with core.scope("for (int number = 0; number < chunks; ++number)"):
                layout.bind_position(core, self.sweep, "number")
                SweepProducer(core, self.sweep, layout).chunk()

    def _consume(self, core: Core, layout: SweepLayout) -> None:
        states = StatePrinter(core, self.sweep, layout)
        chunk = ChunkPrinter(core, self.sweep, layout, states)
        chunk.declare()
        states.declare()
        core.writer.line("#pragma unroll 1")
        with core.scope("for (int number = 0; number < chunks; ++number)"):
            layout.bind_position(core, self.sweep, "number")
            chunk.print()
        chunk.finish()
        states.final()


def _source(core: Core, layout: SweepLayout, name: str, threads: int) -> str:
    """The whole CUDA file."""
    declared = [f"    {text}," for text in core.arguments.declarations()]
    declared[-1] = declared[-1][:-1] + ") {"
    # Registers for two blocks on a multiprocessor, where their shared memory has room for two.
    blocks = 2 if threads < 256 else 1
    lines = [
        f'extern "C" __global__ void __launch_bounds__({threads}, {blocks}) {name}(',
        *declared,
        *[f"  {text}" for text in layout.memory.declarations()],
        "  extern __shared__ __align__(1024) unsigned char memory[];",
        "  const uint32_t shared = attn::shared_address(memory);",
        "  const int block = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, warpgroup = attn::warpgroup_index();",
        "  if (threadIdx.x == 0) {",
        *[f"    {text}" for text in layout.memory.initialisation()],
        "  }",
        "  __syncthreads();",
    ]
    return "\n".join([header("attn_sweep.cuh"), core.instructions(), core.scalars.helper_source(), *lines, *core.writer.lines, "}", ""])
