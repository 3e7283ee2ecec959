"""Makes a library for GPUs: compiles the kernels that the driver would launch, writes the host's part, lets a C++ compiler link."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.backends.ahead.header import header
from attn_mlir.backends.ahead.library import library_table, linear_table, scalars_of
from attn_mlir.backends.ahead.link import find_compiler
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.ahead.source import finish, host_source, rank_of, runtime_files
from attn_mlir.backends.ahead.sources import KernelSource, Project, Sources
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.ahead.tables import program_table
from attn_mlir.backends.gpu.compiled_kernels import GpuKernel
from attn_mlir.backends.gpu.compiler import CompiledCode
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_bounds import HEADS, POSITIONS
from attn_mlir.backends.host import Host
from attn_mlir.backends.program import OUTLINE, prepare_derivative
from attn_mlir.errors import CompileError, UnsupportedError

_HERE = Path(__file__).parent
_LIMITS = [f"#define ATTN_MAX_HEADS {HEADS}\n#define ATTN_MAX_POSITIONS {POSITIONS}"]


@dataclass(frozen=True)
class Chip:
    """What a library for one kind of GPU takes from the backend of its maker.

    `lower` makes a host function and its kernels of (text, function, pipeline, choices), `compile` machine code of sources; `outline` leads
    from a differentiated program to kernels, for `residual` and `options` see `prepare_derivative`. `device` is the text before
    attn_device.h, with the `language` and `flags` that it is compiled with. `files` are the C++ of the machine, and of how its kernels are
    launched; `machine` is the initialiser of its `attn::Machine`.
    """

    arch: str
    maker: str
    lower: Callable[[str, str, str, attributes.Fields], tuple[Host, dict[str, GpuKernel]]]
    compile: Callable[[Sequence[KernelCode]], Sequence[CompiledCode]]
    outline: str
    residual: bool
    options: str
    device: Path
    language: str
    flags: tuple[str, ...]
    files: tuple[Path, ...]
    machine: str


@dataclass
class _Parts:
    """The host's part and the kernels, as far as they are made."""

    chip: Chip
    library: str
    choices: attributes.Fields
    tables: list[str] = field(default_factory=list)
    codes: dict[str, KernelCode] = field(default_factory=dict)


def build_for(chip: Chip, request: Request, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    if sys.platform != "linux":
        raise UnsupportedError(f"libraries for {chip.maker} GPUs are made on Linux, this is {sys.platform}")
    command = find_compiler(compiler)
    parts, tables = _tables(chip, request)
    parts.codes[f"{request.name}_device"] = _device_code(chip)
    binaries = chip.compile(list(parts.codes.values()))
    text = header(request, chip.arch, version)
    source = host_source(request, text, *_files(chip), tables, _LIMITS)
    objects = {name: binary.code for name, binary in zip(parts.codes, binaries, strict=True)}
    return finish(request, text, command, source, objects, out, data=True)


def sources_for(chip: Chip, request: Request) -> Sources:
    """See `driver.kernel_sources`."""
    parts, tables = _tables(chip, request)
    made = [kernel_source(request.name, name, code) for name, code in parts.codes.items()]
    return Sources(tuple(made), "\n".join(tables), rank_of(request))


def project_for(chip: Chip, name: str, flags: tuple[str, ...], headers: Iterable[Path]) -> Project:
    """See `driver.library_project`; `flags` and `headers` are those of every kernel."""
    device = kernel_source(name, f"{name}_device", _device_code(chip))
    return Project(chip.arch, chip.language, flags, tuple(_LIMITS), runtime_files(*_files(chip)), tuple(sorted(headers)), (device,))


def kernel_source(library: str, name: str, code: KernelCode) -> KernelSource:
    """A kernel as a file, which a compiler of the vendor takes. Raises UnsupportedError for what takes more than that."""
    if code.language == "tilelang" or code.includes:
        raise UnsupportedError(
            f"the kernel {code.name} is made by TileLang and includes its headers, so that it is no source file by itself: leave this "
            "attention out, or make its library with attn-ahead"
        )
    facts = {
        "symbol": code.entry, "threads": code.threads, "shared_bytes": code.shared_bytes, "grid": code.grid, "cluster": code.cluster,
    }  # fmt: skip
    file = f"{library}.{name.removeprefix(f'{library}_')}"
    return KernelSource(file, {"cuda": "cu"}.get(code.language, code.language), code.source, f"{name}_code", code.flags, facts)


def _files(chip: Chip) -> tuple[list[Path], list[Path]]:
    """The files of the runtime that are the machine's, and those that run programs on it."""
    machine, *launch = chip.files
    programs = [*launch, _HERE / "attn_elementwise.h", _HERE / "attn_gpu_program.h"]
    return [_HERE / "attn_kernel.h", machine, _HERE / "attn_memory.h"], programs


def _tables(chip: Chip, request: Request) -> tuple[_Parts, list[str]]:
    """The kernels and the tables of a library."""
    parts = _Parts(chip, request.name, {"arch": chip.arch, **({"deterministic": 1} if request.deterministic else {})})
    host = _add_attention(parts, request) if request.linear is None else _add_linear(parts, request)
    scalars = scalars_of(host)[: len(request.captures)]
    tables = [*parts.tables, f"static const attn::Machine machine = {chip.machine};", library_table(request, scalars)]
    if request.linear is not None:
        tables.append(linear_table(request, [argument.shape for argument in host.arguments]))
    elif request.inference:
        tables.insert(-1, "static const attn::Forward forward = {&online};")
    return parts, tables


def _add_attention(parts: _Parts, request: Request) -> Host:
    hosts = [_add_program(parts, "online", request.text, "attention", OUTLINE)] if request.inference else []
    for name, function in (("training", "fwd"), ("backward", "bwd")) if request.wrt else ():
        hosts.append(_add_program(parts, name, request.written or request.text, *_prepared(parts.chip, request, function)))
    return hosts[0]


def _add_linear(parts: _Parts, request: Request) -> Host:
    """Adds the programs of a linear attention, with those for segments of longer sequences. Returns the forward pass's host function."""
    assert request.linear is not None
    segment, hosts = request.linear.segment, []
    for name, function in (("program", ""), ("backward", "bwd")) if request.wrt else (("program", ""),):
        longer = None
        if segment:
            longer = f"{name}_long", segment + 1
            _add_program(parts, longer[0], request.text, *_prepared(parts.chip, request, function, segment))
        hosts.append(_add_program(parts, name, request.text, *_prepared(parts.chip, request, function), longer=longer))
    return hosts[0]


def _prepared(chip: Chip, request: Request, function: str, segment: int = 0) -> tuple[str, str]:
    wanted = f"written-{function}" if request.written else function
    names = [request.argument(i) for i in request.wrt] if function else []
    return prepare_derivative(wanted, names, chip.outline, segment, chip.residual, "" if segment else chip.options)


def _add_program(
    parts: _Parts, name: str, text: str, function: str, prepare: str, length: int = 0, longer: tuple[str, int] | None = None
) -> Host:
    """Adds a program, and those that take its place for longer sequences: `longer`, or what schedules say. Returns its host function."""
    choices = {**parts.choices, **({"length": length} if length else {})}
    host, units = parts.chip.lower(text, function, prepare, choices)
    if any(unit.pairs is not None for unit in units.values()):
        raise UnsupportedError(
            "gradients of heads of more than 256 columns, and on GPUs before Hopper all of these, take matrix products of torch, which "
            "libraries made ahead of time have not: leave backward out, or compute them in Python"
        )
    keys = min((int(unit.schedule["longer"]) for unit in units.values() if "longer" in unit.schedule), default=0)
    if keys > length:
        if longer is not None:
            raise CompileError(f"@{function} is to have one program for segments and another one for {keys} keys and more")
        longer = f"{name}_from_{keys}", keys
        other = _add_program(parts, longer[0], text, function, prepare, keys)
        if (other.arguments, other.returns) != (host.arguments, host.returns):
            raise CompileError(f"the schedule for {keys} keys and more of @{function} changes what it takes and returns")
    codes = {kernel: f"{parts.library}_{name}_{kernel}" for kernel in units}
    parts.codes.update({codes[kernel]: unit.code for kernel, unit in units.items()})
    parts.tables.append(program_table(name, host, units, {kernel: f"{code}_code" for kernel, code in codes.items()}, longer))
    return host


def _device_code(chip: Chip) -> KernelCode:
    """What every library does on the GPU besides its kernels."""
    source = chip.device.read_text(encoding="utf-8") + (_HERE / "attn_device.h").read_text(encoding="utf-8")
    return KernelCode("attn_device", "attn_copy", source, (), 256, 0, language=chip.language, arch=chip.arch, flags=chip.flags)
