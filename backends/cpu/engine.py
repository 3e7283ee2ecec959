"""LLVM's engine for a module, optimised as far as its size allows."""

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attn_mlir.backends.cpu.signals import kept_handlers
from attn_mlir.backends.llvm_level import llvm_level
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ExecutionEngine, ir

_OPEN_FILES = Path("/proc/self/fd")
LARGEST_OPTIMISED = 11_000
"""Operations of a function up to which LLVM optimises: usual kernels have 600 to 2,000, with matrix tiles 2,000 to 10,400. A mask of 1,000
joined conditions, forward and backward, has 20,000 and 29,000: 16 s in LLVM at level 0, 98 s at level 1. Such straight code runs about
as fast (+5 %)."""


def compile_module(module: ir.Module, pic: bool = False) -> ExecutionEngine:
    """Compiles a module in the LLVM dialect, with `pic` for a library. Warns where it is too large to be optimised."""
    if llvm_level() == 0:
        _select_fast(module)
    return ExecutionEngine(module, opt_level=level_of(module), enable_pic=pic)


def object_code(module: ir.Module, pic: bool = False) -> bytes:
    """The object file of a module in the LLVM dialect; the engine that makes it goes with all that it needed.

    Raises CompileError where code calls a function that is not in this process: LLVM links what it has compiled before it gives it away.
    So it does for a module without a function, which an entry of the disk cache may be: the engine would crash, as it has no object then.
    """
    if not any(_size(view.operation) for view in module.body.operations):
        raise CompileError("the compiled module has no function")
    engine = compile_module(module, pic)
    with _file() as path:
        code = _dumped(engine, path)
    if not code:
        raise CompileError("LLVM gives no object file; it says why on the standard error")
    return code


@contextmanager
def _file() -> Iterator[Path]:
    """A file for a moment, in memory where the system has that and shows it under /proc."""
    if hasattr(os, "memfd_create") and _OPEN_FILES.is_dir():
        handle = os.memfd_create("attn-mlir")
        try:
            yield _OPEN_FILES / str(handle)
        finally:
            os.close(handle)
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder) / "kernel.o"


def _dumped(engine: ExecutionEngine, path: Path) -> bytes:
    """What the engine writes, which is nothing where it fails."""
    with kept_handlers():
        engine.dump_to_object_file(str(path))
    return path.read_bytes() if path.exists() else b""


def _select_fast(module: ir.Module) -> None:
    """Marks functions as not to be optimised: MLIR's engine leaves passes over IR out at level 0, but generates code as at level 2.

    Not where a function is too large for another level: it would run several times slower.
    """
    for view in module.body.operations:
        if any(len(region.blocks) for region in view.operation.regions):
            for name in ("no_inline", "optimize_none"):
                view.operation.attributes[name] = ir.UnitAttr.get(module.context)


def level_of(module: ir.Module) -> int:
    """How much LLVM optimises a module: as $ATTN_MLIR_LLVM_LEVEL says, which is 3, or 0 where a function is too large for that."""
    level = llvm_level()
    size = max((_size(view.operation) for view in module.body.operations), default=0)
    if size <= LARGEST_OPTIMISED:
        return level
    text = f"a kernel of {size} operations is compiled without optimisation (above {LARGEST_OPTIMISED} it takes minutes) and may run slower"
    warnings.warn(f"{text}; a captured tensor that holds the conditions or numbers makes a short program", RuntimeWarning, stacklevel=2)
    return 0


def _size(function: ir.Operation) -> int:
    """Operations of an `llvm.func`, in which blocks hold no others."""
    return sum(len(block.operations) for region in function.regions for block in region.blocks)
