"""Sweeps over chunks whose value channels have decays of their own, in blocks of 16 positions.

Warpgroups hold the state, transposed, and multiply: what it gives to a block, and what the block gives to it. As many other warps compute
what decays are of a block, its pairs, one by one in f32, and rows of o and products, of blocks before and behind at the same time.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.source import header, kernel_source
from attn_mlir.backends.nvidia.hopper.value_blocks import BlockPrinter
from attn_mlir.backends.nvidia.hopper.value_layout import SLOTS, ValueLayout
from attn_mlir.backends.nvidia.hopper.value_read import ValueSweep, read_values
from attn_mlir.backends.nvidia.hopper.value_state import ValueState
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_HOLDING, _BLOCKS = 144, 112
"""Registers of a thread of either role where two warpgroups hold states; each is launched with 128."""
_HELD, _HELD_ALONE = 2, 4
"""Steps along K whose part of the state is rounded at a time, of two warpgroups that hold it and of one."""


def plan_values(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The only schedule there is: `stages` are blocks in shared memory. None for a kernel of another form. Raises UnsupportedError for
    other choices.
    """
    sweep = read_values(kernel)
    if sweep is None:
        return None
    fields: Fields = {"residents": 1, "stages": SLOTS}
    if any(choices.get(name, value) != value for name, value in fields.items()):
        raise UnsupportedError(f"sweeps with decays of value channels have one schedule, {fields}")
    code = emit_values(sweep)
    if code.shared_bytes > target.shared_bytes:
        raise UnsupportedError(f"{code.shared_bytes} bytes of shared memory, but a block of threads can have {target.shared_bytes}")
    return fields


def emit_values(sweep: ValueSweep) -> KernelCode:
    """The source of a kernel, and how to launch it."""
    core, layout = Core(sweep.kernel, 0), ValueLayout(sweep)
    core.writer.indent = "  "
    with core.scope(None):
        _Roles(core, sweep, layout).print()
    name = ir.StringAttr(sweep.kernel.attributes["sym_name"]).value
    helpers = header("attn_sweep.cuh", "attn_channels.cuh", "attn_values.cuh")
    return KernelCode(
        name=name,
        entry=name,
        source=kernel_source(core, layout.memory, (layout.threads, 1), helpers),
        parameters=core.arguments.parameters(),
        threads=layout.threads,
        shared_bytes=layout.memory.bytes(),
    )


@dataclass
class _Roles:
    """Prints the body of the kernel."""

    core: Core
    sweep: ValueSweep
    layout: ValueLayout

    def print(self) -> None:
        core, writer, layout = self.core, self.core.writer, self.layout
        begin, end, step = (core.value(value) for value in list(self.sweep.loop.operands)[:3])
        writer.line(f"const int chunks = ({end} - {begin} + {step} - 1) / {step};")
        loads = [each.load for each in self.sweep.inputs.values()]
        for load in [*loads, *([] if self.sweep.decays is None else [self.sweep.decays])]:
            for place in list(load.operands)[1:3]:
                core.value(place)
        uneven = layout.warpgroups > 1
        with core.scope(f"if (warpgroup >= {layout.warpgroups})"):
            if uneven:
                writer.line(f"attn::fewer_registers<{_BLOCKS}>();")
            BlockPrinter(core, self.sweep, layout).print()
        with core.scope("else"):
            if uneven:
                writer.line(f"attn::more_registers<{_HOLDING}>();")
            ValueState(core, self.sweep, layout, _HELD if uneven else _HELD_ALONE).print()
