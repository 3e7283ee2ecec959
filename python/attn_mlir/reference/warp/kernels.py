"""Kernels of a module, and their runs."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import barriers, fragments, made_rows, memory, pages, products, structure, turned, windows
from attn_mlir.reference.warp.costs import Costs
from attn_mlir.reference.warp.faults import Fault
from attn_mlir.reference.warp.machine import Machine, Residency, Rule
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.schedules import Schedule, schedules
from attn_mlir.reference.warp.timed import Event, TimedMachine

RULES: dict[str, Rule] = {
    **structure.RULES,
    **barriers.RULES,
    **memory.RULES,
    **pages.RULES,
    **products.RULES,
    **fragments.RULES,
    **made_rows.RULES,
    **turned.RULES,
    **windows.RULES,
}


def kernels_of(module: ir.Module | ir.Operation | ir.OpView) -> list[ir.Operation]:
    """The scheduled kernels of a module."""
    return find_all(module.operation, "warp.kernel")


def function_of(kernel: ir.Operation) -> str:
    """The name of the function that a kernel computes, "" for none."""
    return ir.StringAttr(kernel.attributes["function"]).value


def arguments_of(kernel: ir.Operation) -> list[ir.Type]:
    """The types of a kernel's arguments."""
    return [argument.type for argument in kernel.regions[0].blocks[0].arguments]


def schedules_of(kernel: ir.Operation, seeds: int = 2) -> dict[str, Schedule]:
    """The schedules for a kernel's warpgroups (`schedules.schedules`)."""
    roles = [(role.attributes["sym_name"], role.attributes["warpgroups"]) for role in find_all(kernel, "warp.role")]
    return schedules([f"{ir.StringAttr(name).value} {n}" for name, count in roles for n in range(ir.IntegerAttr(count).value)], seeds)


def read_kernel(kernel: ir.Operation) -> Inst:
    """A kernel as `run_scheduled` takes it: reading it takes as long as a run of a few tiles does. It does not see later changes."""
    return Inst(kernel, {})


def run_scheduled(kernel: Inst, arguments: Sequence[Any], schedule: Schedule, blocks: int = 2, residency: Residency | None = None) -> int:
    """Runs `blocks` thread blocks of a kernel, at the same time or as `residency` says; how many steps it took.

    `arguments`: float64 or integer arrays and numbers; outputs are written in place. The counter that hands tiles out may be left out.
    Raises Fault for a race, a deadlock and the like.
    """
    with np.errstate(all="ignore"):
        own = counters_for(kernel, arguments)
        steps = Machine(kernel, [*arguments, *own], schedule(), blocks, RULES, residency).execute()
    if any(counter.any() for counter in own):
        raise Fault("counter left", kernel.location, "the counter that hands tiles out is not zero again")
    return steps


def counters_for(kernel: Inst, arguments: Sequence[Any]) -> list[np.ndarray]:
    """The counter of tiles that a kernel takes after its arguments, where these have none."""
    names, _ = kernel.blocks[0]
    return [np.zeros(1, np.int64)] * (len(names) - len(arguments))


def run_timed(kernel: ir.Operation, arguments: Sequence[Any], costs: Costs, blocks: int = 1) -> list[Event]:
    """What the warpgroups of a kernel do, in the order of the time that a model gives their ops; see `run_scheduled`."""
    with np.errstate(all="ignore"):
        read = read_kernel(kernel)
        machine = TimedMachine(read, [*arguments, *counters_for(read, arguments)], costs, blocks, RULES)
        machine.execute()
        return machine.record
