"""Makes a library for NVIDIA GPUs: compiles the kernels that the driver would launch, writes the host's part, lets a C++ compiler link."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from attn_mlir.backends.ahead.header import header
from attn_mlir.backends.ahead.library import library_table
from attn_mlir.backends.ahead.link import find_compiler
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.ahead.source import finish, host_source
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.scalar_bounds import HEADS, POSITIONS
from attn_mlir.backends.host import Host
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.ahead.tables import program_table
from attn_mlir.backends.nvidia.compile import compile_all
from attn_mlir.backends.program import OUTLINE, prepare_derivative
from attn_mlir.errors import CompileError, UnsupportedError

_SOURCES = ("attn_cuda.h", "attn_cuda_program.h")
_DEVICE = "attn_device"


@dataclass
class _Parts:
    """The host's part and the kernels, as far as they are made."""

    choices: attributes.Fields
    tables: list[str] = field(default_factory=list)
    codes: dict[str, KernelCode] = field(default_factory=dict)


def build(request: Request, target: str, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    if sys.platform != "linux":
        raise UnsupportedError(f"libraries for NVIDIA GPUs are made on Linux, this is {sys.platform}")
    if request.linear is not None:
        raise UnsupportedError(f"linear attentions are not compiled ahead of time for {target} yet: use target='cpu', or the Python API")
    command = find_compiler(compiler)
    parts = _Parts({"arch": target, **({"deterministic": 1} if request.deterministic else {})})
    host = _add_program(parts, "online", request.text, "attention", OUTLINE)
    if request.wrt:
        for name, function in (("training", "fwd"), ("backward", "bwd")):
            wanted = f"written-{function}" if request.written else function
            prepared = prepare_derivative(wanted, [request.argument(i) for i in request.wrt], pipeline.outline(target))
            _add_program(parts, name, request.written or request.text, *prepared)
    parts.codes[_DEVICE] = _device_code(target)
    binaries = compile_all(list(parts.codes.values()))
    scalars = ["tensor" if argument.shape is not None else argument.element for argument in host.arguments[3:]]
    major, minor = divmod(int("".join(filter(str.isdigit, target))), 10)
    tables = [
        f"#define ATTN_MAX_HEADS {HEADS}\n#define ATTN_MAX_POSITIONS {POSITIONS}",
        *parts.tables,
        "static const attn::Forward forward = {&online};",
        f'static const attn::Machine machine = {{"{target}", {major}, {minor}}};',
        library_table(request, scalars),
    ]
    text = header(request, target, version)
    source = host_source(request, text, Path(__file__).parent, _SOURCES, tables[1:], tables[:1])
    objects = {name: binary.code for name, binary in zip(parts.codes, binaries, strict=True)}
    return finish(request, text, command, source, objects, out, data=True)


def _add_program(parts: _Parts, name: str, text: str, function: str, prepare: str, length: int = 0) -> Host:
    """Adds a program, and those that take its place for longer sequences. Returns its host function."""
    choices = {**parts.choices, **({"length": length} if length else {})}
    host, units = driver._lower(text, function, prepare, choices)
    keys = min((int(unit.schedule["longer"]) for unit in units.values() if "longer" in unit.schedule), default=0)
    longer = None
    if keys > length:
        longer = f"{name}_from_{keys}", keys
        other = _add_program(parts, longer[0], text, function, prepare, keys)
        if (other.arguments, other.returns) != (host.arguments, host.returns):
            raise CompileError(f"the schedule for {keys} keys and more of @{function} changes what it takes and returns")
    codes = {kernel: f"{name}_{kernel}" for kernel in units}
    parts.codes.update({codes[kernel]: unit.code for kernel, unit in units.items()})
    parts.tables.append(program_table(name, host, units, {kernel: f"{code}_code" for kernel, code in codes.items()}, longer))
    return host


def _device_code(target: str) -> KernelCode:
    """What every library does on the GPU besides its kernels."""
    source = (Path(__file__).parent / "attn_device.cu").read_text(encoding="utf-8")
    return KernelCode(_DEVICE, "attn_copy", source, (), 256, 0, arch=target, flags=())
