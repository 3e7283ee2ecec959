"""Emulated kernels on torch tensors."""

import _ctypes
import ctypes
import struct
import subprocess
import tempfile
import weakref
import zlib
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from attn_mlir import forks
from attn_mlir.backends.amd.clang import find_host_clang, find_tool
from attn_mlir.backends.amd.emulation.build import build
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.gpu.packed import tensor_of
from attn_mlir.backends.gpu.packing import FORMATS, PackedArguments, values_of
from attn_mlir.errors import AttnError, CompileError, UnsupportedError

_SHARED_LIMIT = 64 * 1024
_LOCK = forks.lock()


class EmulationError(AttnError, RuntimeError):
    """An emulated kernel does what a GPU must not: the message says which, where in the grid, and at which line of the source."""


class EmulatedHipKernel:
    """A kernel, compiled for the CPU."""

    def __init__(self, code: KernelCode) -> None:
        """Raises CompileError where the source does not compile, or does not match what `code` says of it."""
        self.code = code
        binary, self._library = build(code, _loaded)
        self._binary = zlib.compress(binary, 1)  # a fifth of it: only faults need it again
        weakref.finalize(self, _ctypes.dlclose, self._library._handle).atexit = False
        self._check()

    def _check(self) -> None:
        code = self.code
        shared = self._library.attn_emulated_shared_bytes()
        if shared != code.shared_bytes or shared > _SHARED_LIMIT:
            limit = f"at most {_SHARED_LIMIT}, and {code.shared_bytes} as told"
            raise CompileError(f"the kernel {code.name} takes {shared} bytes of shared memory, where it should take {limit}")
        sizes = (ctypes.c_int * 256)()
        count = self._library.attn_emulated_parameters(sizes)
        told = [8 if p.kind in ("pointer", "counter") else struct.calcsize(FORMATS.get(p.type, "i")) for p in code.parameters]
        if list(sizes[:count]) != told:
            raise CompileError(f"the parameters of the kernel {code.name} have {list(sizes[:count])} bytes, where they should have {told}")

    def run(
        self,
        arguments: Sequence[Any],
        outputs: Collection[int],
        grid: tuple[int, int, int],
        blocks: int = 0,
        seed: int = 0,
        flush: bool = True,
    ) -> None:
        """Runs on tensors of the CPU and numbers: the arguments of the tile function, of which `outputs` may be written.

        `blocks` are the blocks of rows. `seed` decides in which order waves run. With `flush`, products take and give subnormal numbers as
        zero, as MI200's do. Raises EmulationError for accesses out of bounds, races, and lanes that miss an operation of their wave.
        """
        counter = torch.zeros(1, dtype=torch.int32, device="cpu")
        packed = PackedArguments(values_of(self.code, arguments, blocks, counter.data_ptr()))
        with _LOCK:
            self._library.attn_emulated_forget()
            self._register(counter, True, "the counter")
            for number, argument in enumerate(map(tensor_of, arguments)):
                if isinstance(argument, torch.Tensor):
                    self._register(argument, number in outputs, f"argument {number}")
            entry = ctypes.cast(self._library.attn_emulated_entry, ctypes.c_void_p)
            sizes = (ctypes.c_uint * 3)(*grid)
            wrong = self._library.attn_emulated_run(entry, ctypes.c_void_p(packed.address), sizes, self.code.threads, seed, int(flush))
            self._library.attn_emulated_forget()  # what was noted of each access
        if wrong is not None:
            raise EmulationError(self._explained(wrong.decode()))

    def _register(self, tensor: torch.Tensor, writable: bool, name: str) -> None:
        if tensor.numel():
            span = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)) + 1
            size = ctypes.c_size_t(span * tensor.element_size())
            self._library.attn_emulated_tensor(ctypes.c_void_p(tensor.data_ptr()), size, int(writable), name.encode())

    def _explained(self, message: str) -> str:
        """With the line of the source, where a tool that finds it is there."""
        what, _, offset = message.partition("\n")
        lines = [f"kernel {self.code.name}, {what}"]
        place = self._line(int(offset)) if offset else 0
        source = self.code.source.splitlines()
        if 0 < place <= len(source):
            lines.append(f"  line {place}: {source[place - 1].strip()}")
        return "\n".join(lines)

    def _line(self, offset: int) -> int:
        """The line of the kernel's source that an instruction of the library was made from, or 0."""
        try:
            tool = find_tool("llvm-symbolizer", find_host_clang())
        except UnsupportedError:
            return 0
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(zlib.decompress(self._binary))
            file.flush()
            command = [tool, "--obj", file.name, "--inlining=true", hex(offset)]
            frames = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()[1::2]
        for frame in frames:  # innermost first; helpers of headers lead to the line that calls them
            path, _, rest = frame.partition(".hip.cpp:")
            if rest and Path(path).name == self.code.name:
                return int(rest.split(":")[0])
        return 0


def _loaded(binary: bytes) -> tuple[bytes, ctypes.CDLL]:
    """The library beside what it was loaded from. Raises OSError or AttributeError where that is none."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(binary)
        file.flush()
        library = ctypes.CDLL(file.name)
    library.attn_emulated_run.restype = ctypes.c_char_p
    return binary, library
