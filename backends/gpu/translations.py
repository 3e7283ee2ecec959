"""What `attn-translate` makes of a module for any GPU."""

from collections.abc import Sequence

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.compiled_kernels import slow_kernels
from attn_mlir.backends.gpu.input_limits import check_programs
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.performance import told
from attn_mlir.registry import registry


def to_kernel(module: ir.Module, pipeline: str, vendor: str) -> str:
    """The scheduled kernels in the `tile` dialect, for GPUs of "NVIDIA" or "AMD"."""
    check_programs(module, vendor)
    Pipeline.parse(pipeline, registry()).run(module)
    return module.operation.get_asm(use_name_loc_as_prefix=True)


def kernels_of(module: ir.Module, pipeline: str, vendor: str) -> list[ir.Operation]:
    """The scheduled kernels of a module at stage 0 to 2, which is lowered on the way.

    Warns of those that are not made by the best code generator. Raises CompileError where there is none, and
    for what kernels for GPUs of that vendor do not take, as the API does.
    """
    check_programs(module, vendor)
    Pipeline.parse(pipeline, registry()).run(module)
    kernels = [op for op in find_all(module.operation, "func.func") if attributes.SCHEDULE in op.attributes]
    if not kernels:
        raise CompileError("no kernel in this module: it needs a function at its top level with an attn op in it, such as attn.attention")
    for name, reason in slow_kernels(kernels).items():
        told(f"{name} is slower than it could be: {reason}")
    return kernels


def sources(codes: Sequence[KernelCode], suffix: str) -> str:
    """The source of every kernel; each kernel is a file of its own."""
    if len(codes) == 1:
        return codes[0].source
    return "\n".join(f"// ==== {code.name}.{suffix} ====\n{code.source}" for code in codes)
