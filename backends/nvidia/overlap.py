"""Kernels that start while the one before them runs, as they read nothing of it: programmatic dependent launch.

Kernels that may have such neighbours take half of a multiprocessor's registers, let the next one start as soon as all of their thread
blocks run, and wait at their end for the one before, so that what follows a kernel follows both.
"""

from collections.abc import Mapping
from dataclasses import replace

from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.host import Host, HostStep

_IN_PLACE = ("pointer", "size", "stride", "scalar", "blocks")
"""Kinds of parameters of kernels that read tensors of any strides."""


def overlapped(host: Host, units: Mapping[str, GpuKernel]) -> dict[str, GpuKernel]:
    """The kernels, those marked that start beside the one before them: of pairs of neighbours that do not overlap otherwise.

    What the earlier one of a pair reads and makes outlives the later one, whose results may have the places of what nothing reads any
    more. That holds for arguments, too: a program reads some of them as copies, which it frees behind their last reader.
    """
    found, early = dict(units), False
    last = _last_readers(host)
    values = len(host.arguments)
    for place, (step, after) in enumerate(zip(host.steps, host.steps[1:], strict=False)):
        made = range(values, values + len(step.results))
        values = made.stop
        apart = not set(made) & set(after.operands) and all(last.get(value, -1) > place for value in (*step.operands, *made))
        early = not early and apart and _overlaps(step, units) and _overlaps(after, units) and _is_alone(host, after)
        if early:
            unit = units[after.kernel]
            found[after.kernel] = replace(unit, code=replace(unit.code, early=True))
    return found


def _last_readers(host: Host) -> dict[int, int]:
    """By value, the number of the last step that reads it, or one more than there are where it is returned."""
    found = {operand: place for place, step in enumerate(host.steps) for operand in step.operands}
    return found | dict.fromkeys(host.returns, len(host.steps))


def _overlaps(step: HostStep, units: Mapping[str, GpuKernel]) -> bool:
    """Whether a step's kernel may have neighbours, and reads its operands where they are: a copy would be freed while it runs."""
    code = units[step.kernel].code if step.kernel in units else None
    return code is not None and code.overlaps and all(part.kind in _IN_PLACE and not part.align for part in code.parameters)


def _is_alone(host: Host, step: HostStep) -> bool:
    """Whether no other step launches its kernel."""
    return [each.kernel for each in host.steps].count(step.kernel) == 1
