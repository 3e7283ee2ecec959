"""What `attn-translate` makes of kernels of the `warp` dialect: CUDA, machine code, and what the compiler says of it."""

from attn_mlir.backends.gpu import translations
from attn_mlir.backends.gpu.input_limits import check_programs
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.compile import Cubin, compile_all
from attn_mlir.backends.nvidia.forming.refusal import REFUSED, reasons
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry


def kernels_of(module: ir.Module) -> list[ir.Operation]:
    """The scheduled kernels of a module, which is lowered first unless it has some. Raises CompileError where a function becomes none."""
    if not find_all(module.operation, "warp.kernel"):
        check_programs(module, "NVIDIA", wide=False)
        Pipeline.parse(pipeline.WARP, registry()).run(module)
    for function in [op for op in find_all(module.operation, "func.func") if REFUSED in op.attributes]:
        name = ir.StringAttr(function.attributes["sym_name"]).value
        raise CompileError(f"no scheduled kernel is made of @{name}: {'; '.join(reasons(function).values())}")
    kernels = find_all(module.operation, "warp.kernel")
    if not kernels:
        raise CompileError("no kernel in this module: it needs a function at its top level with an attn op in it, or a 'warp.kernel'")
    return kernels


def codes_of(module: ir.Module) -> list[KernelCode]:
    """The kernels of a module, printed."""
    with module.context:
        return [kernel_code(kernel, RULES) for kernel in kernels_of(module)]


def to_warp(module: ir.Module) -> str:
    """The scheduled kernels in the `warp` dialect."""
    with module.context:
        kernels_of(module)
    return module.operation.get_asm(use_name_loc_as_prefix=True)


def to_cuda(module: ir.Module) -> str:
    """CUDA C++ of every kernel; each kernel is a file of its own."""
    return translations.sources(codes_of(module), "cu")


def to_cubin(module: ir.Module) -> bytes | dict[str, bytes]:
    """Machine code of the module's kernel; of several, a cubin each, by the kernels' names."""
    codes = codes_of(module)
    made = {code.name: binary.code for code, binary in zip(codes, compile_all(codes), strict=True)}
    return made if len(made) > 1 else made.popitem()[1]


def to_report(module: ir.Module) -> str:
    """What the compiler says of every kernel: registers, spills, shared memory."""
    codes = codes_of(module)
    return "\n".join(map(_report, codes, compile_all(codes)))


def _report(code: KernelCode, binary: Cubin) -> str:
    lines = [
        f"kernel {code.name} ({code.threads} threads, {code.arch}, printed from 'warp')",
        f"  registers      {binary.registers} a thread; {binary.spills} bytes of spills, {binary.stack} bytes of stack",
        f"  shared memory  {code.shared_bytes + binary.shared} bytes a thread block",
        f"  code           {len(binary.code)} bytes",
        *[f"  {warning}" for warning in binary.warnings],
    ]
    return "\n".join(lines) + "\n"
