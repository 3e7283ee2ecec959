"""Programs as tables in C++, whatever the target: steps with their operands and results, grids of kernels."""

from collections.abc import Callable, Iterable, Sequence

from attn_mlir.backends.ahead.results import result_text
from attn_mlir.backends.host import Host, HostStep, KernelGrid
from attn_mlir.errors import UnsupportedError

_GRIDS = {"rows": "ROWS", "elements": "ROWS", "pairs": "PAIRS", "chunks": "CHUNKS"}


def grid_of(kernel: KernelGrid) -> str:
    """The grid as an `attn::Grid`. Raises UnsupportedError for grids that attention does not have."""
    if kernel.grid not in _GRIDS:
        raise UnsupportedError(f"kernels over {kernel.grid} are not compiled ahead of time yet: use the Python API")
    return f"attn::{_GRIDS[kernel.grid]}"


def steps_table(name: str, host: Host, elements_of: Callable[[HostStep], Sequence[str]], last: str) -> list[str]:
    """The definition of an `attn::Program` after those of its kernels, which are called by its name and theirs.

    `elements_of` tells the element types of a step's results. `last`: the programs that take its place, see `attn::Program`.
    """
    lines, steps = [], []
    for number, step in enumerate(host.steps):
        one = f"{name}_{number}"
        lines.append(_numbers(f"{one}_operands", step.operands))
        results = [result_text(result, of) for result, of in zip(step.results, elements_of(step), strict=True)]
        lines.append(f"static const attn::Result {one}_results[] = {{{', '.join(results)}}};")
        kernel = f"&{name}_{step.kernel}" if step.kernel else "nullptr"
        steps.append(f"{{{kernel}, {len(step.operands)}, {one}_operands, {len(step.results)}, {one}_results, {step.same}}}")
    count = len(host.arguments) + sum(len(step.results) for step in host.steps)
    lines.append(f"static const attn::Step {name}_steps[] = {{{', '.join(steps)}}};")
    lines.append(_numbers(f"{name}_returns", host.returns))
    fields = f"{len(host.arguments)}, {len(steps)}, {name}_steps, {len(host.returns)}, {name}_returns, {count}, {last}"
    lines.append(f"static const attn::Program {name} = {{{fields}}};")
    return lines


def bools(values: Iterable[bool]) -> str:
    """Three of them, as C++ has them."""
    return f"{{{', '.join(str(bool(value)).lower() for value in values) or 'false, false, false'}}}"


def _numbers(name: str, numbers: Sequence[int]) -> str:
    return f"static const int {name}[] = {{{', '.join(map(str, numbers)) or '0'}}};"
