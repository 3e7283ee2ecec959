"""What `attn-translate` makes of a module for any GPU."""

from collections.abc import Sequence

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry


def to_kernel(module: ir.Module, pipeline: str) -> str:
    """The scheduled kernels in the `tile` dialect."""
    Pipeline.parse(pipeline, registry()).run(module)
    return module.operation.get_asm(use_name_loc_as_prefix=True)


def kernels_of(module: ir.Module, pipeline: str) -> list[ir.Operation]:
    """The scheduled kernels of a module at stage 0 to 2, which is lowered on the way."""
    Pipeline.parse(pipeline, registry()).run(module)
    return [op for op in find_all(module.operation, "func.func") if attributes.SCHEDULE in op.attributes]


def sources(codes: Sequence[KernelCode], suffix: str) -> str:
    """The source of every kernel; each kernel is a file of its own."""
    if len(codes) == 1:
        return codes[0].source
    return "\n".join(f"// ==== {code.name}.{suffix} ====\n{code.source}" for code in codes)
