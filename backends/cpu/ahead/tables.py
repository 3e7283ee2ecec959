"""Programs as tables in C++, which `attn_program.h` runs: kernels with their grids, steps, shapes of results."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attn_mlir.backends.ahead.results import result_text
from attn_mlir.backends.host import Host, Kernel
from attn_mlir.errors import UnsupportedError

_KINDS = {"store": "STORE", "accumulate": "ACCUMULATE", "scatter": "SCATTER"}
_GRIDS = {"rows": "ROWS", "elements": "ROWS", "pairs": "PAIRS", "chunks": "CHUNKS"}


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
    chunks = f"{kernel.blocks}, {kernel.sequences}, {kernel.segment}"
    over = f"{kernel.block_q}, attn::{_GRIDS[kernel.grid]}, {kernel.over}, {str(kernel.serial).lower()}, {compiled.threads}"
    return "\n".join(
        [
            f'extern "C" __attribute__((visibility("hidden"))) void {compiled.symbol}(int64_t *);',
            f"static const attn::Output {name}_outputs[] = {{{', '.join(outputs) or '{}'}}};",
            f"static const attn::Kernel {name} = {{{compiled.symbol}, {over}, {name}_outputs, {chunks}}};",
        ]
    )


def program_table(name: str, host: Host, compiled: Mapping[str, Compiled], longer: tuple[str, int] | None = None, single: str = "") -> str:
    """The definition of an `attn::Program`, with those of its kernels. Raises UnsupportedError as `kernel_table` does.

    `longer` is the program that takes its place, and for how many keys and more, `single` the one for a single position.
    """
    lines = [kernel_table(f"{name}_{kernel}", each) for kernel, each in compiled.items()]
    steps = []
    for number, step in enumerate(host.steps):
        one = f"{name}_{number}"
        lines.append(_numbers(f"{one}_operands", step.operands))
        results = [result_text(result, result.type.element) for result in step.results]
        lines.append(f"static const attn::Result {one}_results[] = {{{', '.join(results)}}};")
        kernel = f"&{name}_{step.kernel}" if step.kernel else "nullptr"
        steps.append(f"{{{kernel}, {len(step.operands)}, {one}_operands, {len(step.results)}, {one}_results}}")
    count = len(host.arguments) + sum(len(step.results) for step in host.steps)
    lines.append(f"static const attn::Step {name}_steps[] = {{{', '.join(steps)}}};")
    lines.append(_numbers(f"{name}_returns", host.returns))
    other = f"&{longer[0]}, {longer[1]}" if longer else "nullptr, 0"
    other += f", &{single}" if single else ", nullptr"
    fields = f"{len(host.arguments)}, {len(steps)}, {name}_steps, {len(host.returns)}, {name}_returns, {count}, {other}"
    lines.append(f"static const attn::Program {name} = {{{fields}}};")
    return "\n".join(lines)


def _numbers(name: str, numbers: Sequence[int]) -> str:
    return f"static const int {name}[] = {{{', '.join(map(str, numbers)) or '0'}}};"


def _bools(values: Iterable[bool]) -> str:
    given = [str(value).lower() for value in values]
    return f"{{{', '.join(given or ['false'] * 3)}}}"
