"""What `attn-translate` can make of a module for the CPU."""

from attn_mlir.backends.cpu import pipeline
from attn_mlir.backends.cpu.engine import object_code
from attn_mlir.backends.cpu.lowering.tile_registers import uses_tiles
from attn_mlir.backends.cpu.target import check_runs
from attn_mlir.diagnostics import DiagnosticError, at
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir, llvm
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import walk
from attn_mlir.registry import registry


def _lower(module: ir.Module) -> None:
    """Lowers to LLVM. Raises DiagnosticError where something has no form there, or nothing is left, on which LLVM would crash."""
    Pipeline.parse(pipeline.ALL, registry()).run(module)
    other = next((op for op in walk(module.operation) if op != module.operation and not op.name.startswith("llvm.")), None)
    if other is not None:
        raise DiagnosticError([at(other.location, "error", f"'{other.name}' has no form for the CPU")])
    if not any(op.name == "llvm.func" for op in walk(module.operation)):
        raise DiagnosticError([at(module.operation.location, "error", "there is nothing to translate: the module holds no function")])


def to_kernel(module: ir.Module) -> str:
    """The scheduled kernel in the `tile` dialect."""
    Pipeline.parse(pipeline.KERNEL, registry()).run(module)
    return module.operation.get_asm(use_name_loc_as_prefix=True)


def to_llvm(module: ir.Module) -> str:
    """LLVM IR of the worker function, before LLVM's own optimisation."""
    _lower(module)
    return llvm.translate_module_to_llvmir(module.operation)


def to_object(module: ir.Module) -> bytes:
    """An object file for this machine, optimised.

    Raises UnsupportedError where ATTN_MLIR_CPU asks for another, and for code that needs leave which an object file cannot ask for.
    """
    check_runs()
    _lower(module)
    if uses_tiles(module):
        raise UnsupportedError(
            "a process asks for leave to use AMX tiles, which an object file by itself does not: set ATTN_MLIR_CPU=avx512, "
            "or make a library by compile_ahead"
        )
    return object_code(module)
