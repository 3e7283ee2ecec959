"""Programs as tables in C++, which `attn_gpu_program.h` runs: kernels with their parameters, steps, shapes of results."""

from collections.abc import Mapping, Sequence

from attn_mlir.backends.ahead.tables import bools, grid_of, steps_table
from attn_mlir.backends.gpu.attributes import LAUNCH_COLUMNS, LAUNCH_VALUES
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.kernel import KernelParameter
from attn_mlir.backends.gpu.outputs import stored_rows
from attn_mlir.backends.gpu.slices import is_sliced
from attn_mlir.backends.host import Host, HostStep
from attn_mlir.errors import UnsupportedError

_KINDS = {
    "descriptor": "MAP", "window": "WINDOW", "pointer": "POINTER", "size": "SIZE", "stride": "STRIDE", "scalar": "SCALAR",
    "counter": "COUNTER", "blocks": "BLOCKS",
}  # fmt: skip
_NUMBERS = {"int": "INT", "unsigned": "UNSIGNED", "long long": "LONG", "float": "FLOAT", "double": "DOUBLE"}


def program_table(name: str, host: Host, units: Mapping[str, GpuKernel], codes: Mapping[str, str], longer: tuple[str, int] | None) -> str:
    """The definition of an `attn::Program`, with those of its kernels, whose code has the names `codes`.

    `longer`: the program that takes its place, and for how many keys and more. Raises UnsupportedError for what attention does not have.
    """
    lines = [_kernel_table(f"{name}_{kernel}", unit, codes[kernel]) for kernel, unit in units.items()]
    other = "nullptr, 0" if longer is None else f"&{longer[0]}, {longer[1]}"

    def elements_of(step: HostStep) -> Sequence[str]:
        return units[step.kernel].outputs if step.kernel else [result.type.element for result in step.results]

    return "\n".join([*lines, *steps_table(name, host, elements_of, other)])


def _kernel_table(name: str, unit: GpuKernel, code: str) -> str:
    kernel, made, schedule = unit.kernel, unit.code, unit.schedule
    over = grid_of(kernel)
    if made.grid not in ("tiles", "persistent"):
        raise UnsupportedError(f"the kernel {made.name} has a grid of the kind '{made.grid}', which libraries do not launch")
    outputs = [_output(unit, i) for i in range(len(kernel.outputs))]
    defaults = {"semaphore_over": -1, "semaphore_rows": 0, "semaphore_parts": 0}
    semaphores = (
        [schedule.get(name, value) for name, value in defaults.items()] if "semaphore_rows" in schedule else list(defaults.values())
    )
    launch = f"{made.threads}, {made.shared_bytes}, {made.cluster}, {_bool(made.grid == 'persistent')}, {made.occupancy}"
    grid = f"{kernel.block_q}, {over}, {kernel.over}"
    arrays = f"{len(made.parameters)}, {name}_parameters, {name}_outputs"
    slices = (schedule[LAUNCH_VALUES], schedule[LAUNCH_COLUMNS]) if is_sliced(unit) else (-1, 0)
    last = ", ".join(map(str, (*semaphores, schedule.get("partial_words", 0), kernel.blocks, kernel.sequences, kernel.segment, *slices)))
    return "\n".join(
        [
            f'extern "C" __attribute__((visibility("hidden"))) const char {code}[];',
            f"static const attn::Parameter {name}_parameters[] = {{{', '.join(map(_parameter, made.parameters)) or '{}'}}};",
            f"static const attn::Output {name}_outputs[] = {{{', '.join(outputs) or '{}'}}};",
            f'static const attn::Kernel {name} = {{"{made.entry}", {code}, {launch}, {grid}, {arrays}, {last}}};',
        ]
    )


def _parameter(parameter: KernelParameter) -> str:
    if parameter.kind not in _KINDS:
        raise UnsupportedError(f"a kernel takes a parameter of the kind '{parameter.kind}', which libraries do not make")
    columns, rows = parameter.box
    number = _NUMBERS.get(parameter.type, "INT")
    fields = f"{parameter.argument}, {parameter.dim}, attn::{number}, {columns}, {rows}, {parameter.swizzle}, {parameter.align}"
    return f"{{attn::{_KINDS[parameter.kind]}, {fields}}}"


def _output(unit: GpuKernel, i: int) -> str:
    kind = unit.kernel.outputs[i]
    slots = unit.schedule.get("sums") == "slots" or (kind == "scatter" and bool(unit.schedule.get("deterministic")))
    disjoint = unit.kernel.disjoint[i] if kind == "scatter" else (False, True, True)
    stored = stored_rows(unit) if kind == "accumulate" else 0
    return f"{{attn::{kind.upper()}, {_bool(slots and kind != 'store')}, {bools(disjoint)}, {stored}}}"


def _bool(value: bool) -> str:
    return str(bool(value)).lower()
