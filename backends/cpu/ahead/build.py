"""Makes a library for the CPU: compiles the kernels that the JIT would run, writes the host's part, lets the system's compiler link."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attn_mlir.backends.ahead.header import header
from attn_mlir.backends.ahead.library import library_table, linear_table, scalars_of
from attn_mlir.backends.ahead.link import find_compiler, link
from attn_mlir.backends.ahead.operators import FLAGS, registration
from attn_mlir.backends.ahead.request import Library, Request
from attn_mlir.backends.ahead.source import finish, host_source, rank_of, runtime_files
from attn_mlir.backends.ahead.sources import KernelSource, Project, Sources
from attn_mlir.backends.cpu import amx, driver, pipeline, program
from attn_mlir.backends.cpu.ahead.objects import object_code
from attn_mlir.backends.cpu.ahead.tables import Compiled, kernel_table, program_table
from attn_mlir.backends.cpu.lowering.tile_registers import uses_tiles
from attn_mlir.backends.cpu.target import check_runs, instruction_sets
from attn_mlir.backends.host import Host, KernelGrid
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.dialects import loaded
from attn_mlir.mlir import ir

_VARIANTS: dict[str, tuple[str, tuple[int, int] | tuple[()]]] = {
    "usual": (pipeline.ONLINE, ()),
    "few": (pipeline.ONLINE, pipeline.FEW_ROWS),
    "one": (pipeline.ONLINE, pipeline.ONE_ROW),
    "group": (f"attn-pack-heads,{pipeline.ONLINE}", pipeline.FEW_ROWS),
}
"""The kernels that `driver.CpuKernel` has: what leads to online form, and sizes of blocks."""
_MACHINE, _PROGRAMS = (Path(__file__).with_name(name) for name in ("attn_host.h", "attn_program.h"))


@dataclass
class _Parts:
    """The host's part and the kernels' code, as far as they are made; `keep` makes it of a module and the prefix of its functions."""

    keep: Callable[[ir.Module, str], bytes] = object_code
    tables: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    kernels: dict[str, list[Compiled]] = field(default_factory=dict)
    scalars: Sequence[str] = ()
    tiles: bool = False
    """Whether some kernel uses those of AMX."""

    def add(self, name: str, prefix: str, module: ir.Module, table: str, kernels: Iterable[Compiled]) -> None:
        """Adds a program of this name."""
        self.tables.append(table)
        self.tiles = self.tiles or uses_tiles(module)
        self.objects[name] = self.keep(module, prefix)
        self.kernels[name] = list(kernels)


def build(request: Request, target: str, out: Path, compiler: str | None, version: str) -> Library:
    """See `driver.build_library`."""
    command = find_compiler(compiler)
    parts = _Parts()
    source = _source(parts, request, target, version, 0)
    return finish(request, header(request, target, version), command, source, parts.objects, out)


def build_operators(
    programs: Sequence[tuple[str, Request]],
    schema: str,
    target: str,
    out: Path,
    compiler: str | None,
    folders: Sequence[str],
    version: str,
) -> Path:
    """See `driver.build_operators`."""
    command = find_compiler(compiler)
    sources, objects, rank = {}, {}, max(rank_of(request) for _, request in programs)
    for _, request in programs:
        parts = _Parts()
        sources[request.name] = _source(parts, request, target, version, rank)
        objects |= {f"{request.name}_{name}": code for name, code in parts.objects.items()}
    sources["registration"] = registration(programs, schema, target, version)
    link(command, sources, objects, (), out, flags=[*FLAGS, *[f"-I{folder}" for folder in folders]])
    return out


def _source(parts: _Parts, request: Request, target: str, version: str, rank: int) -> str:
    """The host's part of a library, whose kernels are added to `parts`; for `rank` see `host_source`."""
    tables = _tables(parts, request)
    return host_source(request, header(request, target, version), [_MACHINE], [_PROGRAMS], tables, rank=rank)


def sources(request: Request, target: str) -> Sources:
    """See `driver.kernel_sources`."""
    check_runs()
    parts = _Parts(keep=lambda module, prefix: str(module).encode())
    tables = "\n".join(_tables(parts, request))
    made = []
    for name, text in parts.objects.items():
        kernels = parts.kernels[name]
        facts: dict[str, Any] = {"symbols": [each.symbol for each in kernels], "block_q": [each.kernel.block_q for each in kernels]}
        made.append(KernelSource(f"{request.name}.{name}", "mlir", text.decode(), f"{request.name}_{name}_", facts=facts))
    return Sources(tuple(made), tables, rank_of(request))


def project(target: str, name: str) -> Project:
    """See `driver.library_project`."""
    return Project(target, "mlir", (), (), runtime_files([_MACHINE], [_PROGRAMS]))


def _tables(parts: _Parts, request: Request) -> list[str]:
    """The tables of a library, whose kernels are added to `parts`."""
    if request.linear is None:
        _add_attention(parts, request)
        last = [library_table(request, parts.scalars)]
    else:
        host = _add_linear(parts, request, "program", "")
        if request.wrt:
            _add_linear(parts, request, "backward", "bwd")
        last = [library_table(request, scalars_of(host)), linear_table(request, [argument.shape for argument in host.arguments])]
    return [*parts.tables, _machine(parts.tiles), *last]


def _add_attention(parts: _Parts, request: Request) -> None:
    for name, (first, blocks) in _VARIANTS.items() if request.inference else ():
        _add_variant(parts, request, name, first, blocks)
    for name, function in (("training", "fwd"), ("backward", "bwd")) if request.wrt else ():
        host = _add_program(parts, request, name, function)
        parts.scalars = parts.scalars or scalars_of(host)[: len(request.captures)]
    if request.inference:
        parts.tables.append(f"static const int queries[] = {{{', '.join(map(str, request.queries)) or '0'}}};")
        more = f"{pipeline.FEW_ROWS[0]}, {len(request.queries)}, queries"
        parts.tables.append(f"static const attn::Forward forward = {{&usual, &few, &one, &group, {more}}};")


def _machine(tiles: bool) -> str:
    """Code is for the instruction sets of this machine: others are asked before any of it runs, and the system for leave to use tiles."""
    lines = [f'  if (!__builtin_cpu_supports("{name}")) return "{name}";' for name in instruction_sets()]
    headers = [amx.HEADERS] if tiles else []
    lines += [amx.LACKING] if tiles else []
    last = "static const attn::Machine machine = {lacking};"
    return "\n".join([*headers, "static const char *lacking() {", *lines, "  return nullptr;", "}", last])


def _add_linear(parts: _Parts, request: Request, name: str, function: str) -> Host:
    """Adds a program with those that take its place, for segments of longer sequences and for one position. Returns its host function."""
    assert request.linear is not None
    segment = request.linear.segment
    _add_program(parts, request, f"{name}_single", function, to_kernels=pipeline.STEP)
    longer = None
    if segment:
        longer = f"{name}_long", segment + 1
        _add_program(parts, request, longer[0], function, segment=segment)
    return _add_program(parts, request, name, function, longer=longer, single=f"{name}_single")


def _add_variant(parts: _Parts, request: Request, name: str, first: str, blocks: tuple[int, ...]) -> None:
    with loaded():
        module, signature = driver._lower(request.text, first, blocks)
        kernel = KernelGrid("attention", signature.block_q, "rows", 0, (), (), False)
        prefix = f"{request.name}_{name}_"
        compiled = Compiled(kernel, f"{prefix}attention", signature.threads)
        parts.add(name, prefix, module, kernel_table(name, compiled), [compiled])
        parts.scalars = signature.scalars


def _add_program(
    parts: _Parts,
    request: Request,
    name: str,
    function: str,
    *,
    segment: int = 0,
    to_kernels: str = pipeline.KERNEL,
    longer: tuple[str, int] | None = None,
    single: str = "",
) -> Host:
    text = request.written or request.text
    wanted = f"written-{function}" if request.written else function
    names = [request.argument(i) for i in request.wrt] if function else []
    options = prepare_derivative(wanted, names, pipeline.OUTLINE, segment, residual=True, options=pipeline.DECAYS)
    with loaded():
        module, host, kernels, threads = program._lower(text, *options, to_kernels)
        prefix = f"{request.name}_{name}_"
        compiled = {each.name: Compiled(each, prefix + each.name, threads.get(each.name, 0)) for each in kernels.values()}
        parts.add(name, prefix, module, program_table(name, host, compiled, longer, single), compiled.values())
    return host


def made_with() -> str:
    """See `Backend.ahead_with`."""
    return f"processors with the instruction sets of this machine, by {find_compiler(None)[0]}"
