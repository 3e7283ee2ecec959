"""Runs kernels of the `warp` dialect on numpy arrays, in float64 rounded as their types say, and finds what is wrong with them."""

from attn_mlir.reference.warp.costs import Costs
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.kernels import arguments_of, function_of, kernels_of, read_kernel, run_scheduled, run_timed, schedules_of
from attn_mlir.reference.warp.machine import Residency
from attn_mlir.reference.warp.registers import check_registers
from attn_mlir.reference.warp.timed import Event

__all__ = [
    "Costs",
    "Event",
    "Fault",
    "Residency",
    "arguments_of",
    "check_registers",
    "function_of",
    "kernels_of",
    "read_kernel",
    "run_scheduled",
    "run_timed",
    "schedules_of",
]
