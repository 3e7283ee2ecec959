"""Facts of a kernel's frame: registers of roles, and the choices in its schedule."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.mlir import ir

SCHEDULE = "warp.schedule"
"""Attribute of a kernel: what was chosen for it, by `tile-schedule` or a tuner. Options of a pass go before it."""
THREADS = 128
"""Of a warpgroup."""
MOST = 248
"""The most registers of a thread, in steps of 8."""
STEP = 8


def chosen(kernel: ir.Operation, name: str, option: int, usual: int) -> int:
    """A number: the option of a pass unless it is 0, else what the schedule says, else the usual one. Raises Refused."""
    try:
        fields: Fields = attributes.read(kernel, SCHEDULE)
    except ValueError as error:
        raise Refused(str(error)) from None
    found = option or fields.get(name, 0) or usual
    if not isinstance(found, int):
        raise Refused(f"`{name}` in the schedule is a number, not '{found}'")
    return found


def launch_registers(file: int, warpgroups: int) -> int:
    """The registers that each thread of so many warpgroups can have at launch."""
    return min(MOST, file // (THREADS * warpgroups) // STEP * STEP)
