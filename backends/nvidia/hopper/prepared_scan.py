"""The code of chunk scans whose channels have decays of their own: warps that prepare chunks, warpgroups that hold the state."""

from collections.abc import Callable, Mapping
from typing import Protocol

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.kernel_text import kernel_code
from attn_mlir.backends.nvidia.hopper.memory import SharedAllocator
from attn_mlir.backends.nvidia.hopper.prepared_read import PreparedScan
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.errors import UnsupportedError

HOLDING, PREPARING = 144, 112
"""Registers of a thread of either role where two warpgroups hold states; each is launched with 128."""

Printer = Callable[[Core], None]
"""Prints what the warps of a role do."""


class PreparedLayout(Protocol):
    """What the code of both forms needs of a layout: shared memory, the warpgroups that hold states, the threads of all warps."""

    @property
    def memory(self) -> SharedAllocator: ...

    @property
    def warpgroups(self) -> int: ...

    @property
    def threads(self) -> int: ...


def plan_prepared(code: KernelCode, stages: int, what: str, target: NvidiaTarget, choices: Mapping[str, int | str]) -> Fields:
    """The only schedule there is for decays of `what`. Raises UnsupportedError for other choices, or where the code does not fit."""
    fields: Fields = {"occupancy": 1, "stages": stages}
    if any(choices.get(name, value) != value for name, value in fields.items()):
        raise UnsupportedError(f"scans with decays of {what} have one schedule, {fields}")
    if code.shared_bytes > target.shared_bytes:
        raise UnsupportedError(f"{code.shared_bytes} bytes of shared memory, but a thread block can have {target.shared_bytes}")
    return fields


def emit_prepared(scan: PreparedScan, layout: PreparedLayout, helpers: tuple[str, ...], prepare: Printer, hold: Printer) -> KernelCode:
    """The source of a kernel, with headers of these names before it, and how to launch it."""
    core = Core(scan.kernel, 0)
    core.writer.indent = "  "
    with core.scope(None):
        _print_roles(core, scan, layout.warpgroups, prepare, hold)
    return kernel_code(core, layout.memory, layout.threads, 1, *helpers)


def _print_roles(core: Core, scan: PreparedScan, warpgroups: int, prepare: Printer, hold: Printer) -> None:
    """Prints the body of the kernel."""
    writer = core.writer
    begin, end, step = (core.value(value) for value in list(scan.loop.operands)[:3])
    writer.line(f"const int chunks = ({end} - {begin} + {step} - 1) / {step};")
    for load in scan.loads:
        for place in list(load.operands)[1:3]:
            core.value(place)
    uneven = warpgroups > 1
    with core.scope(f"if (warpgroup >= {warpgroups})"):
        if uneven:
            # First, as the warps that hold the state wait for these registers.
            writer.line(f"attn::fewer_registers<{PREPARING}>();")
        prepare(core)
    with core.scope("else"):
        if uneven:
            writer.line(f"attn::more_registers<{HOLDING}>();")
        hold(core)
