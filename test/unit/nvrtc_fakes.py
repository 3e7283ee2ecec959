"""Stands in for libnvrtc: remembers what it is told, and makes code of the source's hash."""

import ctypes
import hashlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from attn_mlir.backends.nvidia import compile as cuda_compiler
from attn_mlir.backends.nvidia.nvrtc.library import Nvrtc

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'f' for 'sm_90a'
    16 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 16 bytes stack frame, 1024 bytes smem
"""


class FakeNvrtc:
    """A libnvrtc. `rejects` is what stands in sources that it does not take; `fails` a result of every compilation."""

    def __init__(self, version: tuple[int, int] = (13, 0), build: int = 1, rejects: str = "\0", fails: int = 0) -> None:
        self.version, self.build, self.rejects, self.fails = version, build, rejects, fails
        self.programs: dict[int, dict[str, Any]] = {}
        self.destroyed = 0
        self._lock = threading.Lock()

    def compiled(self) -> list[dict[str, Any]]:
        """The programs with a source, as they were given."""
        return [program for program in self.programs.values() if program["source"]]

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nvrtc"):
            raise AttributeError(name)
        function = _Function(getattr(self, f"_{name[5:]}"))
        setattr(self, name, function)
        return function

    def _Version(self, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = self.version
        return 0

    def _CreateProgram(self, program: Any, source: bytes, name: bytes, count: int, texts: Any, names: Any) -> int:
        with self._lock:
            number = program._obj.value = 1 + len(self.programs)
            headers = dict(zip([each.decode() for each in names], [each.decode() for each in texts], strict=True))
            self.programs[number] = {"source": source.decode(), "name": name.decode(), "headers": headers, "count": count}
        return 0

    def _CompileProgram(self, program: Any, count: int, options: Any) -> int:
        made = self.programs[program.value]
        assert count == len(options)
        made["options"], made["thread"] = [option.decode() for option in options], threading.current_thread().name
        return 6 if self.rejects in made["source"] else self.fails if made["source"] else 0

    def _DestroyProgram(self, program: Any) -> int:
        self.destroyed += 1
        return 0

    def _GetErrorString(self, result: int) -> bytes:
        return f"NVRTC_ERROR_{result}".encode()

    def _text(self, program: Any, what: str) -> bytes:
        made = self.programs[program.value]
        if what == "ProgramLog":
            return (f"{made['name']}(1): error: it is bad\n" if self.rejects in made["source"] else LOG).encode() + b"\0"
        if what == "PTX":
            return f"//\n// Compiler Build ID: CL-{self.build}\n.version 9.0\n.target sm_80\n".encode() + b"\0"
        return code_of(made["source"])

    def _GetProgramLogSize(self, program: Any, size: Any) -> int:
        return self._size(program, "ProgramLog", size)

    def _GetProgramLog(self, program: Any, buffer: Any) -> int:
        return self._fill(program, "ProgramLog", buffer)

    def _GetPTXSize(self, program: Any, size: Any) -> int:
        return self._size(program, "PTX", size)

    def _GetPTX(self, program: Any, buffer: Any) -> int:
        return self._fill(program, "PTX", buffer)

    def _GetCUBINSize(self, program: Any, size: Any) -> int:
        return self._size(program, "CUBIN", size)

    def _GetCUBIN(self, program: Any, buffer: Any) -> int:
        return self._fill(program, "CUBIN", buffer)

    def _size(self, program: Any, what: str, size: Any) -> int:
        size._obj.value = len(self._text(program, what))
        return 0

    def _fill(self, program: Any, what: str, buffer: Any) -> int:
        text = self._text(program, what)
        ctypes.memmove(buffer, text, len(text))
        return 0


class _Function:
    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.restype = function, None

    def __call__(self, *args: Any) -> Any:
        return self._function(*args)


def code_of(source: str) -> bytes:
    """The machine code that is made of a source."""
    return b"\x7fELF\x02\x01\x01\x41\x08" + hashlib.sha256(source.encode()).digest()


def install(monkeypatch: pytest.MonkeyPatch, fake: FakeNvrtc) -> FakeNvrtc:
    """Makes it the NVRTC of this test, in place of one that may be installed."""
    made = Nvrtc(fake)
    monkeypatch.delenv("ATTN_MLIR_CUDA_COMPILER", raising=False)
    monkeypatch.setattr(cuda_compiler.nvrtc, "find", lambda: made)
    return fake
