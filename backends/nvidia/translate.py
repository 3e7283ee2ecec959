"""What `attn-translate` can make of a module for NVIDIA GPUs."""

from attn_mlir.backends.gpu import attributes, translations
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.compile import compile_code
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all


def to_kernel(module: ir.Module) -> str:
    """The scheduled kernels in the `tile` dialect."""
    return translations.to_kernel(module, pipeline.KERNEL)


def to_cuda(module: ir.Module) -> str:
    """CUDA C++ of every kernel, by the emitter that its schedule names; each kernel is a file of its own."""
    return translations.sources(_codes(module), "cu")


def to_tilelang(module: ir.Module) -> str:
    """A TileLang program of every kernel; TileLang itself is not needed for it."""
    for function in find_all(module.operation, "func.func"):
        choices = {**attributes.read(function, attributes.CHOICES), "emitter": "tilelang"}
        function.attributes[attributes.CHOICES] = attributes.write(choices)
    with module.context:
        return "\n".join(program_of(kernel).text for kernel in translations.kernels_of(module, pipeline.KERNEL))


def to_cubin(module: ir.Module) -> bytes:
    """Machine code of the module's kernel, by nvcc. Raises CompileError for a module of several: take them one by one."""
    codes = _codes(module)
    if len(codes) != 1:
        raise CompileError(f"a cubin holds one kernel, and the module makes {len(codes)}: {', '.join(code.name for code in codes)}")
    return compile_code(codes[0]).code


def _codes(module: ir.Module) -> list[KernelCode]:
    with module.context:
        return [codegen.emit(kernel) for kernel in translations.kernels_of(module, pipeline.KERNEL)]
