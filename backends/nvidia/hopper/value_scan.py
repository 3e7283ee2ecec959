"""Chunk scans whose value channels have decays of their own, in blocks of 16 positions.

Warpgroups hold the state, transposed, and multiply: what it gives to a block, and what the block gives to it. As many other warps compute
what decays are of a block, its pairs, one by one in f32, and rows of o and products, of blocks before and behind at the same time.
"""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.prepared_scan import emit_prepared, plan_prepared
from attn_mlir.backends.nvidia.hopper.value_blocks import BlockPrinter
from attn_mlir.backends.nvidia.hopper.value_layout import SLOTS, ValueLayout
from attn_mlir.backends.nvidia.hopper.value_read import ValueScan, read_values
from attn_mlir.backends.nvidia.hopper.value_state import ValueState
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.mlir import ir

_HELPERS = ("attn_chunks.cuh", "attn_channels.cuh", "attn_values.cuh")
_HELD, _HELD_ALONE = 2, 4
"""Steps along K whose part of the state is rounded at a time, of two warpgroups that hold it and of one."""


def plan_values(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The only schedule there is: `stages` are blocks in shared memory. None for a kernel of another form. Raises UnsupportedError for
    other choices.
    """
    scan = read_values(kernel)
    return None if scan is None else plan_prepared(emit_values(scan), SLOTS, "value channels", target, choices)


def emit_values(scan: ValueScan) -> KernelCode:
    """The source of a kernel, and how to launch it."""
    layout = ValueLayout(scan)
    held = _HELD if layout.warpgroups > 1 else _HELD_ALONE
    return emit_prepared(
        scan,
        layout,
        _HELPERS,
        prepare=lambda core: BlockPrinter(core, scan, layout).print(),
        hold=lambda core: ValueState(core, scan, layout, held).print(),
    )
