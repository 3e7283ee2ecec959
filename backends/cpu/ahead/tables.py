"""Programs as tables in C++, which `attn_program.h` runs: kernels with their grids, steps, shapes of results."""

from collections.abc import Mapping
from dataclasses import dataclass

from attn_mlir.backends.ahead.tables import bools, grid_of, steps_table
from attn_mlir.backends.host import Host, KernelGrid

_KINDS = {"store": "STORE", "accumulate": "ACCUMULATE", "scatter": "SCATTER"}


@dataclass(frozen=True)
class Compiled:
    """A kernel, the symbol of its worker, and on how many threads it runs at most (0: on all)."""

    kernel: KernelGrid
    symbol: str
    threads: int


def kernel_table(name: str, compiled: Compiled) -> str:
    """The definition of an `attn::Kernel`. Raises UnsupportedError for grids that attention does not have."""
    kernel = compiled.kernel
    outputs = [f"{{attn::{_KINDS[kind]}, {bools(axes)}}}" for kind, axes in zip(kernel.outputs, kernel.disjoint, strict=True)]
    chunks = f"{kernel.blocks}, {kernel.sequences}, {kernel.segment}"
    over = f"{kernel.block_q}, {grid_of(kernel)}, {kernel.over}, {str(kernel.serial).lower()}, {compiled.threads}"
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
    other = f"&{longer[0]}, {longer[1]}" if longer else "nullptr, 0"
    other += f", &{single}" if single else ", nullptr"
    return "\n".join([*lines, *steps_table(name, host, lambda step: [result.type.element for result in step.results], other)])
