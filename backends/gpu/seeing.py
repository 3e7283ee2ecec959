"""What a report shows of programs for GPUs: the stages, and the source of each kernel with the ops that its lines were printed for."""

from collections.abc import Callable, Sequence

from attn_mlir.backends.gpu import attributes, origins
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.compiled_kernels import outlined
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.input_limits import check_types
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.prepared import with_prepared
from attn_mlir.backends.host import Host, read_host
from attn_mlir.backends.program import function_named, may_be_wide, reported
from attn_mlir.backends.seen import Code, Facts, Seen, StageRecorder
from attn_mlir.dialects import load_all, loaded
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

Known = list[tuple[str, str]]


def see_kernels(
    source: str,
    prepared: tuple[str, str],
    choices: Fields,
    to_kernels: str,
    maker: str,
    emit: Callable[[ir.Operation], KernelCode],
    compiled: Callable[[Sequence[KernelCode]], list[Known]] | None,
) -> Seen:
    """The program of `prepared`, a function and the pipeline that makes it (see `prepare_derivative`), as `gpu.scheduled` lowers it.

    `compiled` tells what a compiler says of kernels; it is asked where it is given, and what it raises is told in its place.
    """
    recorder = StageRecorder(source)
    with reported(), loaded() as context:
        module, host = watched(context, recorder, prepared, choices, to_kernels, maker)
        functions = kernels_in(module, host)
        schedules = [attributes.read(function, attributes.SCHEDULE) for function in functions]
        made = [emitted(function, emit) for function in functions]
    codes = [code for code, _ in made]
    told = compilers_word(codes, compiled)
    facts = [Facts(code.name, (*_facts(code, s), *known)) for code, s, known in zip(codes, schedules, told, strict=True)]
    return Seen(recorder.stages, recorder.schedule, tuple(shown for _, shown in made), tuple(facts), recorder.block)


def watched(
    context: ir.Context, recorder: StageRecorder, prepared: tuple[str, str], choices: Fields, to_kernels: str, maker: str
) -> tuple[ir.Module, Host]:
    """The recorder's program as `gpu.scheduled` lowers it, in the current context, with all stages recorded."""
    name, prepare = prepared
    load_all(context)
    module = ir.Module.parse(recorder.source)
    check_types(module, maker, wide=may_be_wide(prepare, module))
    Pipeline.parse(prepare, registry()).run(module, after=[recorder])
    host = read_host(function_named(module, name))
    outlined(module, host, choices)
    Pipeline.parse(to_kernels, registry()).run(module, after=[recorder])
    return module, with_prepared(module, host)


def kernels_in(module: ir.Module, host: Host) -> list[ir.Operation]:
    """The functions that a host launches, each once."""
    return [function_named(module, kernel) for kernel in dict.fromkeys(step.kernel for step in host.steps if step.kernel)]


def compilers_word(codes: Sequence[KernelCode], compiled: Callable[[Sequence[KernelCode]], list[Known]] | None) -> list[Known]:
    """What `compiled` tells of kernels, or why it does not; nothing where it is not given."""
    if compiled is None:
        return [[] for _ in codes]
    try:
        return compiled(codes)
    except (UnsupportedError, CompileError) as error:
        return [[("registers", f"not known: {error}")] for _ in codes]


def emitted(function: ir.Operation, emit: Callable[[ir.Operation], KernelCode]) -> tuple[KernelCode, Code]:
    """The code of a kernel, and the same with the ops of its lines."""
    code = emit(function)
    if code.program:  # made through TileLang, by a program whose printer tells nothing
        lines = tuple(code.program.splitlines())
        return code, Code(code.name, "tilelang", lines, tuple(() for _ in lines))
    with origins.recorded() as found:
        lines, locations = found.taken_out(emit(function).source)
    plain = tuple(code.source.splitlines())
    if lines != plain:  # the printer measures its lines
        return code, Code(code.name, code.language, plain, tuple(() for _ in plain))
    return code, Code(code.name, code.language, lines, locations)


def _facts(code: KernelCode, schedule: Fields) -> Known:
    """What is known without a compiler."""
    left = {name: value for name, value in schedule.items() if name not in ("emitter", "arch", SLOW)}
    return [
        ("made by", f"{schedule.get('emitter', code.language)} for {code.arch}"),
        ("thread block", f"{code.threads} threads, grid: {code.grid}"),
        ("shared memory", f"{code.shared_bytes:,} bytes a thread block"),
        ("schedule", ", ".join(f"{name} {value}" for name, value in left.items())),
        *([("slow", str(schedule[SLOW]))] if SLOW in schedule else []),
    ]
