"""Chunk scans whose key channels have decays of their own: 8 warps prepare chunks for the warpgroups that hold the state.

Without factors of single channels a scan is plain products: q times its decays, k times its own, weights of pairs. To make those of a
chunk takes as long as the products of the chunk before, so both are done at the same time.
"""

from collections.abc import Mapping

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.channel_chunk import ChannelChunks
from attn_mlir.backends.nvidia.hopper.channel_layout import STAGES, ChannelLayout
from attn_mlir.backends.nvidia.hopper.channel_prepare import Preparer
from attn_mlir.backends.nvidia.hopper.channel_read import ChannelScan, read_channels
from attn_mlir.backends.nvidia.hopper.prepared_scan import emit_prepared, plan_prepared
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.mlir import ir


def plan_channels(kernel: ir.Operation, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields | None:
    """The only schedule there is: two `stages`. None for a kernel of another form. Raises UnsupportedError for other choices."""
    scan = read_channels(kernel)
    return None if scan is None else plan_prepared(emit_channels(scan), STAGES, "channels", target, choices)


def emit_channels(scan: ChannelScan) -> KernelCode:
    """The source of a kernel, and how to launch it."""
    layout = ChannelLayout(scan)
    return emit_prepared(
        scan,
        layout,
        ("attn_chunks.cuh", "attn_channels.cuh"),
        prepare=lambda core: Preparer(core, scan, layout).print(),
        hold=lambda core: ChannelChunks(core, scan, layout).print(),
    )
