"""Sweeps over chunks whose key channels have decays of their own: 8 warps prepare chunks for the warpgroups that hold the state.

Without factors of single channels a sweep is plain products: q times its decays, k times its own, weights of pairs. To make those of a
chunk takes as long as the products of the chunk before, so both are done at the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.channel_chunk import ChannelChunks
from attn_mlir.backends.nvidia.hopper.channel_layout import STAGES, WARPS, ChannelLayout
from attn_mlir.backends.nvidia.hopper.channel_prepare import Preparer
from attn_mlir.backends.nvidia.hopper.channel_read import ChannelSweep, read_channels
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.source import header, kernel_source
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_HOLDING, _PREPARING = 144, 112
"""Registers of a thread of either role where two warpgroups hold states; each is launched with 128."""


def plan_channels(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The only schedule there is: two `stages`. None for a kernel of another form. Raises UnsupportedError for other choices."""
    sweep = read_channels(kernel)
    if sweep is None:
        return None
    fields: Fields = {"residents": 1, "stages": STAGES}
    if any(choices.get(name, value) != value for name, value in fields.items()):
        raise UnsupportedError(f"sweeps with decays of channels have one schedule, {fields}")
    code = emit_channels(sweep)
    if code.shared_bytes > target.shared_bytes:
        raise UnsupportedError(f"{code.shared_bytes} bytes of shared memory, but a block of threads can have {target.shared_bytes}")
    return fields


def emit_channels(sweep: ChannelSweep) -> KernelCode:
    """The source of a kernel, and how to launch it."""
    core, layout = Core(sweep.kernel, 0), ChannelLayout(sweep)
    core.writer.indent = "  "
    with core.scope(None):
        _Roles(core, sweep, layout).print()
    name = ir.StringAttr(sweep.kernel.attributes["sym_name"]).value
    threads = layout.consumers + 32 * WARPS
    return KernelCode(
        name=name,
        entry=name,
        source=kernel_source(core, layout.memory, (threads, 1), header("attn_sweep.cuh", "attn_channels.cuh")),
        parameters=core.arguments.parameters(),
        threads=threads,
        shared_bytes=layout.memory.bytes(),
    )


@dataclass
class _Roles:
    """Prints the body of the kernel."""

    core: Core
    sweep: ChannelSweep
    layout: ChannelLayout

    def print(self) -> None:
        core, writer, layout = self.core, self.core.writer, self.layout
        begin, end, step = (core.value(value) for value in list(self.sweep.loop.operands)[:3])
        writer.line(f"const int chunks = ({end} - {begin} + {step} - 1) / {step};")
        loads = [each.load for each in (self.sweep.q, self.sweep.k, self.sweep.v)]
        for load in [*loads, *([] if self.sweep.decays is None else [self.sweep.decays])]:
            for place in list(load.operands)[1:3]:
                core.value(place)
        uneven = layout.warpgroups > 1
        with core.scope(f"if (warpgroup >= {layout.warpgroups})"):
            if uneven:
                writer.line(f"attn::fewer_registers<{_PREPARING}>();")
            Preparer(core, self.sweep, layout).print()
        with core.scope("else"):
            if uneven:
                writer.line(f"attn::more_registers<{_HOLDING}>();")
            ChannelChunks(core, self.sweep, layout).print()
