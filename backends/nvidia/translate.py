"""What `attn-translate` can make of a module for NVIDIA GPUs."""

from collections.abc import Sequence

from attn_mlir.backends.gpu import attributes, translations
from attn_mlir.backends.gpu.emitters import SLOW
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.compile import Cubin, compile_all
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir
from attn_mlir.passes.position_code import position_code
from attn_mlir.passes.regions import find_all
from attn_mlir.performance import because, told


def to_kernel(module: ir.Module) -> str:
    """The scheduled kernels in the `tile` dialect."""
    return translations.to_kernel(module, pipeline.KERNEL, "NVIDIA")


def to_cuda(module: ir.Module) -> str:
    """CUDA C++ of every kernel, by the emitter that its schedule names; each kernel is a file of its own."""
    return translations.sources(_codes(module), "cu")


def to_tilelang(module: ir.Module) -> str:
    """A TileLang program of every kernel; TileLang itself is not needed for it."""
    for function in find_all(module.operation, "func.func"):
        try:
            choices = {**attributes.read(function, attributes.CHOICES), "emitter": "tilelang"}
        except ValueError as error:
            raise CompileError(f"the function has a '{attributes.CHOICES}' that no target reads: {error}") from error
        function.attributes[attributes.CHOICES] = attributes.write(choices)
    with module.context:
        return "\n".join(program_of(kernel).text for kernel in translations.kernels_of(module, pipeline.KERNEL, "NVIDIA"))


def to_cubin(module: ir.Module) -> bytes | dict[str, bytes]:
    """Machine code of the module's kernel; of several, a cubin each, by the kernels' names."""
    likely = position_code(module.operation)
    codes = _codes(module)
    made = {code.name: binary.code for code, binary in zip(codes, _compiled(codes, likely), strict=True)}
    return made if len(made) > 1 else made.popitem()[1]


def to_report(module: ir.Module) -> str:
    """What the compiler says of every kernel: registers, spills, shared memory; and who made it, with which schedule."""
    likely = position_code(module.operation)
    with module.context:
        kernels = translations.kernels_of(module, pipeline.KERNEL, "NVIDIA")
        codes = [codegen.emit(kernel) for kernel in kernels]
        schedules = [attributes.read(kernel, attributes.SCHEDULE) for kernel in kernels]
    return "\n".join(map(_report, codes, schedules, _compiled(codes, likely)))


def _report(code: KernelCode, schedule: attributes.Fields, binary: Cubin) -> str:
    made, arch, slow = (schedule.pop(name, "") for name in ("emitter", "arch", SLOW))
    lines = [
        f"kernel {code.name} ({code.threads} threads, {arch}, made by {made})",
        f"  registers      {binary.registers} a thread; {binary.spills} bytes of spills, {binary.stack} bytes of stack",
        f"  shared memory  {code.shared_bytes + binary.shared} bytes a thread block",
        f"  code           {len(binary.code)} bytes",
        f"  schedule       {', '.join(f'{name} {value}' for name, value in schedule.items())}",
        *[f"  slow           {reason}" for reason in (slow, binary.slow) if reason],
        *[f"  {warning}" for warning in binary.warnings],
    ]
    return "\n".join(lines) + "\n"


def _compiled(codes: Sequence[KernelCode], likely: str) -> list[Cubin]:
    """The kernels, compiled. Warns of those with too few registers; `likely` says which code may need them."""
    binaries = compile_all(codes)
    for code, binary in zip(codes, binaries, strict=True):
        if binary.slow:
            told(f"{code.name} is slower than it could be: {because(binary.slow, likely)}")
    return binaries


def _codes(module: ir.Module) -> list[KernelCode]:
    with module.context:
        return [codegen.emit(kernel) for kernel in translations.kernels_of(module, pipeline.KERNEL, "NVIDIA")]
