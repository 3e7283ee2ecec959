"""Facts of a kernel's frame: registers of roles, and the choices in its schedule."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.forming.refusal import Refused
from attn_mlir.backends.nvidia.target import HOPPER, TARGETS, NvidiaTarget
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all

SCHEDULE = "warp.schedule"
"""Attribute of a kernel: what was chosen for it, by `tile-schedule` or a tuner. Options of a pass go before it."""
FIELDS = (
    *("stages", "first_stages", "warp_rows", "group", "reverse", "draw", "order", "align", "join", "ping_pong"),
    *("lazy_rescale", "producer_registers", "consumer_registers", "key_sums", "together", "uniform", "pack", "occupancy", "shift", "tell"),
    *("early", "scale", "claims", "tile_stages", "windows", "turned", "reduction_warps", "named", "elect", "held", "dropout"),
    "unsigned_lanes",
)
"""Names of choices that passes read in it, or in that of tiles."""
OF_HOPPER = frozenset({"reduction_warps", "held"})
"""Of these, those that a schedule of the Hopper emitter has, too: there they are for its own kernels, and passes do not take them over."""
PING_PONG = 1
"""The first of the named barriers of warpgroups in ping-pong, one for each of them; 0 is that of all threads."""
ADDITIONS = 5
"""The first of the named barriers at which a warpgroup tells a warp that adds its sums that these are written, one for each of them."""
STORES = 8
"""The first of the named barriers at which a warpgroup's threads meet before a store, one for each of them."""
EXCHANGE = 12
"""The named barrier at which all warpgroups of a role meet before and behind the exchange of weights through shared memory.

Where named barriers tell of late sums (`warp-delay-sums`), this and the next three are the barriers of weights that were written, and
`PING_PONG` and the next three those of weights that were multiplied.
"""
CUT, COLUMN_SUMS = EXCHANGE + 1, EXCHANGE + 2
"""Of scans, where all warpgroups meet once rows of the next sequence are zeros, and once sums along columns are in shared memory."""
ALL = 1
"""The named barrier at which all warps of a kernel without a producer meet, before copies and behind them."""
THREADS = 128
"""Of a warpgroup."""
_NEIGHBOURS = 8
"""The most thread blocks of a multiprocessor that a schedule may ask for."""
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


def wanted(kernel: ir.Operation, name: str) -> bool:
    """Whether the schedule does not say 0 for something that is usually done. Raises Refused."""
    try:
        return attributes.read(kernel, SCHEDULE).get(name, 1) != 0
    except ValueError as error:
        raise Refused(str(error)) from None


def said(kernel: ir.Operation, name: str, usual: str) -> str:
    """A choice of several in the schedule, or the usual one. Raises Refused."""
    try:
        return str(attributes.read(kernel, SCHEDULE).get(name, usual))
    except ValueError as error:
        raise Refused(str(error)) from None


def draws(kernel: ir.Operation) -> bool:
    """Whether thread blocks draw their tiles from a counter: the schedule says so by `draw`, or, without it, by `order`. Raises Refused.

    They do where tiles wait for each other.
    """
    if find_all(kernel, "warp.order_wait"):
        return True
    usual = "1" if said(kernel, "order", "static") == "dynamic" else "0"
    return said(kernel, "draw", usual) != "0"


def target_of(kernel: ir.Operation) -> NvidiaTarget:
    """The chip that a kernel is for, by `arch` in its schedule; Hopper without one. Raises Refused for an unknown one."""
    try:
        arch = str(attributes.read(kernel, SCHEDULE).get("arch", HOPPER.arch))
    except ValueError as error:
        raise Refused(str(error)) from None
    if arch not in TARGETS:
        raise Refused(f"there is no description of '{arch}' (known: {', '.join(TARGETS)})")
    return TARGETS[arch]


def launch_registers(file: int, warpgroups: int) -> int:
    """The registers that each thread of so many warpgroups can have at launch."""
    return min(MOST, file // (THREADS * warpgroups) // STEP * STEP)


def occupancy_of(function: ir.Operation, usual: int) -> int:
    """The thread blocks that a multiprocessor has: `occupancy` in the schedule of tiles, or as many as usual. Raises Refused."""
    try:
        count = attributes.read(function, attributes.SCHEDULE).get("occupancy", usual)
    except ValueError as error:
        raise Refused(str(error)) from None
    if not isinstance(count, int) or not 1 <= count <= _NEIGHBOURS:
        raise Refused(f"a multiprocessor has one to {_NEIGHBOURS} thread blocks, not '{count}'")
    return count
