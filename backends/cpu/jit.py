"""Compiles LLVM dialect in process and calls the result on all threads."""

import ctypes
import io
import threading
from array import array
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from attn_mlir import forks
from attn_mlir.backends.cpu.engine import compile_module, object_code
from attn_mlir.backends.cpu.loaded_code import LoadedCode, can_load
from attn_mlir.backends.cpu.target import check_runs
from attn_mlir.mlir import ExecutionEngine, ir

SUFFIX = "mlirbc"
"""That of programs in the disk cache."""
_PACKED = "_mlir_"
"""What MLIR's engine puts before the name of a function that it adds for each, whose arguments come as an array of their addresses."""
_FORKED: dict[int, ThreadPoolExecutor] = {}
"""In a child of os.fork: for the thread that lives on there, one that calls kernels in its place. OpenMP keeps a team for each thread that
calls it, and would wait for that of the parent's thread, which is not there."""


def _forked() -> None:
    _FORKED.clear()
    _FORKED[threading.get_ident()] = ThreadPoolExecutor(1, "openmp")


forks.in_child(_forked)


class JitWorker:
    """A compiled worker function (see `lowering.kernel`) and how to run it on several threads."""

    def __init__(self, code: ExecutionEngine | LoadedCode, address: int) -> None:
        self._code = code  # which is there for as long as the function may be called
        self._function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        self._address = ctypes.c_void_p(address)

    def run(self, words: "array[int]", programs: int, threads: int) -> None:
        """Runs all programs of the grid described by `words`, 64 bits each; releases the GIL."""
        pointer = ctypes.c_void_p(words.buffer_info()[0])
        packed = (ctypes.c_void_p * 1)(ctypes.addressof(pointer))
        threads = min(threads, programs)
        if threads <= 1:
            self._function(ctypes.addressof(packed))
            return
        parallel = openmp()
        if parallel is not None:
            # The OpenMP runtime that torch uses: its threads are warm, and no second pool competes for the cores.
            if threading.get_ident() in _FORKED:
                _FORKED[threading.get_ident()].submit(parallel, self._address, packed, threads, 0).result()
            else:
                parallel(self._address, packed, threads, 0)
            return
        others = [threading.Thread(target=self._function, args=(ctypes.addressof(packed),)) for _ in range(threads - 1)]
        for other in others:
            other.start()
        self._function(ctypes.addressof(packed))
        for other in others:
            other.join()


def load_workers(module: ir.Module, names: Iterable[str]) -> dict[str, JitWorker]:
    """Compiles a module in the LLVM dialect and finds its workers. Raises UnsupportedError for code of another machine."""
    check_runs()
    code = LoadedCode(object_code(module)) if can_load() else compile_module(module)
    addresses = {name: code.address(_PACKED + name) if isinstance(code, LoadedCode) else code.raw_lookup(name) for name in names}
    if missing := [name for name, address in addresses.items() if not address]:
        raise RuntimeError(f"the compiled module lacks '{missing[0]}'")
    return {name: JitWorker(code, address) for name, address in addresses.items()}


@cache
def openmp() -> Any:
    """`GOMP_parallel` of the OpenMP runtime inside this process, or None."""
    import torch

    libraries = [*sorted((Path(torch.__file__).parent / "lib").glob("libgomp*")), Path("libgomp.so.1"), Path("libiomp5.so")]
    for library in libraries:
        try:
            function = ctypes.CDLL(str(library)).GOMP_parallel
        except (OSError, AttributeError):
            continue
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        function.restype = None
        return function
    return None


def bytecode(module: ir.Module) -> bytes:
    """The module as it is kept on disk."""
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()
