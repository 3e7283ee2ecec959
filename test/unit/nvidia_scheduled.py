"""Programs of linear attention as NVIDIA's kernels: scheduled, and their code."""

from collections.abc import Iterator
from contextlib import contextmanager

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import codegen, pipeline
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context


@contextmanager
def scheduled(text: str) -> Iterator[ir.Operation]:
    """The scheduled kernel of a program."""
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse(pipeline.KERNEL, registry()).run(module)
        (kernel,) = module.body.operations
        yield kernel.operation


def emitter_of(text: str) -> str:
    """The emitter that a program's kernel is scheduled for."""
    with scheduled(text) as kernel:
        return str(attributes.read(kernel, attributes.SCHEDULE)["emitter"])


def hopper_code(text: str) -> KernelCode:
    """The code of a program's kernel, which is Hopper's."""
    with scheduled(text) as kernel:
        assert attributes.read(kernel, attributes.SCHEDULE)["emitter"] == "hopper"
        return codegen.emit(kernel)


def alone(function: ir.Operation) -> ir.Module:
    """A module with this function of tiles and no other; needs an active context."""
    return ir.Module.parse(f"module {{\n{function.get_asm(print_generic_op_form=True)}\n}}")


def formed(module: ir.Module) -> ir.Module:
    """The module, with its functions of tiles as scheduled kernels."""
    with module.context, ir.Location.unknown():
        Pipeline.parse(pipeline.SCHEDULE, registry()).run(module)
    return module
