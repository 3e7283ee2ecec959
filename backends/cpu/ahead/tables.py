"""Programs as tables in C++, which `attn_program.h` runs: kernels with their grids, steps, shapes of results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.backends.ahead.library import element
from attn_mlir.backends.host import Host, Kernel, Result
from attn_mlir.errors import UnsupportedError

_KINDS = {"store": "STORE", "accumulate": "ACCUMULATE", "scatter": "SCATTER"}
_GRIDS = {"rows": "ROWS", "elements": "ROWS", "pairs": "PAIRS"}
_ROLES = {"query": "QUERY", "key": "KEY", "row": "ROW"}


@dataclass(frozen=True)
class Compiled:
    """A kernel, the symbol of its worker, and on how many threads it runs at most (0: on all)."""

    kernel: Kernel
    symbol: str
    threads: int


def kernel_table(name: str, compiled: Compiled) -> str:
    """The definition of an `attn::Kernel`. Raises UnsupportedError for grids that attention does not have."""
    kernel = compiled.kernel
    if kernel.grid not in _GRIDS:
        raise UnsupportedError(f"kernels over {kernel.grid} are not compiled ahead of time yet: use the Python API")
    outputs = [f"{{attn::{_KINDS[kind]}, {_bools(axes)}}}" for kind, axes in zip(kernel.outputs, kernel.disjoint, strict=True)]
    over = f"{kernel.block_q}, attn::{_GRIDS[kernel.grid]}, {kernel.over}, {str(kernel.serial).lower()}, {compiled.threads}"
    return "\n".join(
        [
            f'extern "C" __attribute__((visibility("hidden"))) void {compiled.symbol}(int64_t *);',
            f"static const attn::Output {name}_outputs[] = {{{', '.join(outputs) or '{}'}}};",
            f"static const attn::Kernel {name} = {{{compiled.symbol}, {over}, {name}_outputs}};",
        ]
    )


def program_table(name: str, host: Host, compiled: Mapping[str, Compiled]) -> str:
    """The definition of an `attn::Program`, with those of its kernels. Raises UnsupportedError as `kernel_table` does."""
    lines = [kernel_table(f"{name}_{kernel}", each) for kernel, each in compiled.items()]
    steps = []
    for number, step in enumerate(host.steps):
        one = f"{name}_{number}"
        lines.append(_numbers(f"{one}_operands", step.operands))
        lines.append(f"static const attn::Result {one}_results[] = {{{', '.join(_result(result) for result in step.results)}}};")
        kernel = f"&{name}_{step.kernel}" if step.kernel else "nullptr"
        steps.append(f"{{{kernel}, {len(step.operands)}, {one}_operands, {len(step.results)}, {one}_results}}")
    count = len(host.arguments) + sum(len(step.results) for step in host.steps)
    lines.append(f"static const attn::Step {name}_steps[] = {{{', '.join(steps)}}};")
    lines.append(_numbers(f"{name}_returns", host.returns))
    fields = f"{len(host.arguments)}, {len(steps)}, {name}_steps, {len(host.returns)}, {name}_returns, {count}"
    lines.append(f"static const attn::Program {name} = {{{fields}}};")
    return "\n".join(lines)


def _numbers(name: str, numbers: Sequence[int]) -> str:
    return f"static const int {name}[] = {{{', '.join(map(str, numbers)) or '0'}}};"


def _result(result: Result) -> str:
    role, operand = result.role, 0
    if role.startswith("like:"):
        kind, operand = "LIKE", int(role[5:])
    elif role in _ROLES:
        kind = _ROLES[role]
    else:
        raise UnsupportedError(f"results of the kind '{role}' are not compiled ahead of time yet: use the Python API")
    shape = result.type.shape or ()
    return f"{{attn::{kind}, {operand}, {element(result.type.element)}, {len(shape)}, {{{', '.join(map(str, shape)) or '0'}}}}}"


def _bools(values: Iterable[bool]) -> str:
    given = [str(value).lower() for value in values]
    return f"{{{', '.join(given or ['false'] * 3)}}}"
