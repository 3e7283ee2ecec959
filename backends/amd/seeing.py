"""What a report shows of programs for AMD GPUs."""

from collections.abc import Sequence

from attn_mlir.backends.amd import codegen, pipeline
from attn_mlir.backends.amd.compile import compile_code
from attn_mlir.backends.amd.driver import arch_for
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.seeing import Known, see_kernels
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.backends.seen import Seen


def see(source: str, function: str, wrt: Sequence[str], binaries: bool, device: str = "hip") -> Seen:
    """See `Backend.see`; kernels are the same for all devices."""
    prepared = prepare_derivative(function, wrt, pipeline.OUTLINE, residual=True)
    choices = {"arch": arch_for("hip")}
    return see_kernels(source, prepared, choices, pipeline.KERNEL, "AMD", codegen.emit, _compiled if binaries else None)


def _compiled(codes: Sequence[KernelCode]) -> list[Known]:
    """What clang said of kernels."""
    return [[("compiled", compile_code(code).describe())] for code in codes]
