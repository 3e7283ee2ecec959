"""What `attn-translate` can make of a module for AMD GPUs."""

from attn_mlir.backends.amd import codegen, pipeline
from attn_mlir.backends.gpu import translations
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir


def to_kernel(module: ir.Module) -> str:
    """The scheduled kernels in the `tile` dialect."""
    return translations.to_kernel(module, pipeline.KERNEL, "AMD")


def to_hip(module: ir.Module) -> str:
    """HIP C++ of every kernel; each kernel is a file of its own."""
    return translations.sources(codes_of(module), "hip")


def codes_of(module: ir.Module) -> list[KernelCode]:
    """The kernels of a module at stage 0 to 2, which is lowered on the way."""
    with module.context:
        return [codegen.emit(kernel) for kernel in translations.kernels_of(module, pipeline.KERNEL, "AMD")]
