"""What `attn-translate` can make of a module for NVIDIA GPUs."""

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.backends.nvidia.compile import compile_code
from attn_mlir.backends.nvidia.tilelang import program_of
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry


def to_kernel(module: ir.Module) -> str:
    """The scheduled kernels in the `tile` dialect."""
    Pipeline.parse(pipeline.KERNEL, registry()).run(module)
    return module.operation.get_asm(use_name_loc_as_prefix=True)


def to_cuda(module: ir.Module) -> str:
    """CUDA C++ of every kernel, by the emitter that its schedule names; each kernel is a file of its own."""
    codes = _codes(module)
    if len(codes) == 1:
        return codes[0].source
    return "\n".join(f"// ==== {code.name}.cu ====\n{code.source}" for code in codes)


def to_tilelang(module: ir.Module) -> str:
    """A TileLang program of every kernel; TileLang itself is not needed for it."""
    for function in find_all(module.operation, "func.func"):
        choices = {**attributes.read(function, attributes.CHOICES), "emitter": "tilelang"}
        function.attributes[attributes.CHOICES] = attributes.write(choices)
    with module.context:
        return "\n".join(program_of(kernel).text for kernel in _kernels(module))


def to_cubin(module: ir.Module) -> bytes:
    """Machine code of the module's kernel, by nvcc. Raises CompileError for a module of several: take them one by one."""
    codes = _codes(module)
    if len(codes) != 1:
        raise CompileError(f"a cubin holds one kernel, and the module makes {len(codes)}: {', '.join(code.name for code in codes)}")
    return compile_code(codes[0]).code


def _codes(module: ir.Module) -> list[KernelCode]:
    with module.context:
        return [codegen.emit(kernel) for kernel in _kernels(module)]


def _kernels(module: ir.Module) -> list[ir.Operation]:
    """The scheduled kernels."""
    Pipeline.parse(pipeline.KERNEL, registry()).run(module)
    return [op for op in find_all(module.operation, "func.func") if attributes.SCHEDULE in op.attributes]
