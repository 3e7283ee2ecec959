"""What `attn-translate` can make of a module for AMD GPUs."""

from attn_mlir.backends.amd import codegen, pipeline
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry


def to_kernel(module: ir.Module) -> str:
    """The scheduled kernels in the `tile` dialect."""
    Pipeline.parse(pipeline.KERNEL, registry()).run(module)
    return module.operation.get_asm(use_name_loc_as_prefix=True)


def to_hip(module: ir.Module) -> str:
    """HIP C++ of every kernel; each kernel is a file of its own."""
    codes = codes_of(module)
    if len(codes) == 1:
        return codes[0].source
    return "\n".join(f"// ==== {code.name}.hip ====\n{code.source}" for code in codes)


def codes_of(module: ir.Module) -> list[KernelCode]:
    """The kernels of a module at stage 0 to 2, which is lowered on the way."""
    Pipeline.parse(pipeline.KERNEL, registry()).run(module)
    with module.context:
        return [codegen.emit(op) for op in find_all(module.operation, "func.func") if attributes.SCHEDULE in op.attributes]
