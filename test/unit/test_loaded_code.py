"""Object files in memory: what relocations and sections become, and what is refused."""

import ctypes
import gc
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.cpu import driver, engine, jit, program
from attn_mlir.backends.cpu.engine import object_code
from attn_mlir.backends.cpu.loaded_code import LoadedCode, can_load
from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir

pytestmark = pytest.mark.skipif(not can_load(), reason="code is loaded so on Linux with x86-64 alone")

MODULE = """
llvm.mlir.global internal @calls(10 : i64) {alignment = 64 : i64} : i64
llvm.mlir.global internal constant @squares(dense<[0, 1, 4, 9, 16]> : tensor<5xi64>) {alignment = 32 : i64} : !llvm.array<5 x i64>
llvm.func @fmod(f64, f64) -> f64
llvm.func @memset(!llvm.ptr, i32, i64) -> !llvm.ptr
llvm.func @square(%i: i64) -> i64 {
  %table = llvm.mlir.addressof @squares : !llvm.ptr
  %at = llvm.getelementptr %table[%i] : (!llvm.ptr, i64) -> !llvm.ptr, i64
  %x = llvm.load %at : !llvm.ptr -> i64
  llvm.return %x : i64
}
llvm.func @count() -> i64 {
  %one = llvm.mlir.constant(1 : i64) : i64
  %place = llvm.mlir.addressof @calls : !llvm.ptr
  %before = llvm.load %place : !llvm.ptr -> i64
  %after = llvm.add %before, %one : i64
  llvm.store %after, %place : i64, !llvm.ptr
  llvm.return %after : i64
}
llvm.func @remainder(%x: f64, %y: f64) -> f64 {
  %z = llvm.call @fmod(%x, %y) : (f64, f64) -> f64
  llvm.return %z : f64
}
llvm.func @fill(%to: !llvm.ptr, %byte: i32, %size: i64) {
  %same = llvm.call @memset(%to, %byte, %size) : (!llvm.ptr, i32, i64) -> !llvm.ptr
  llvm.return
}
"""


def compiled(text: str = MODULE, pic: bool = False) -> bytes:
    with ir.Context():
        return object_code(ir.Module.parse(text), pic)


@pytest.fixture(scope="module")
def code() -> bytes:
    return compiled()


def function(loaded: LoadedCode, name: str, result: Any, *arguments: Any) -> "ctypes._CFunctionType":
    return ctypes.CFUNCTYPE(result, *arguments)(loaded.address(name))


def test_code_constants_data_and_functions_of_the_process(code: bytes) -> None:
    loaded = LoadedCode(code)
    square = function(loaded, "square", ctypes.c_int64, ctypes.c_int64)
    assert [square(i) for i in range(5)] == [0, 1, 4, 9, 16]
    assert function(loaded, "remainder", ctypes.c_double, ctypes.c_double, ctypes.c_double)(-7.5, 2.0) == -1.5
    memory = ctypes.create_string_buffer(b"a" * 8)
    function(loaded, "fill", None, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64)(ctypes.addressof(memory), 0x62, 5)
    assert memory.raw == b"bbbbbaaa\0"
    assert loaded.address("missing") == 0


def test_each_has_data_of_its_own(code: bytes) -> None:
    one, other = LoadedCode(code), LoadedCode(code)
    first, second = (function(loaded, "count", ctypes.c_int64) for loaded in (one, other))
    assert [first(), first(), second(), first(), second()] == [11, 12, 11, 13, 12]


def protections(address: int) -> str:
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(number, 16) for number in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
    return ""


def test_memory_is_protected_and_given_back(code: bytes) -> None:
    loaded = LoadedCode(code)
    address = loaded.address("square")
    assert [protections(loaded.address(name)) for name in ("square", "squares", "calls")] == ["r-xp", "r--p", "rw-p"]
    assert loaded.address("calls") % 64 == 0 and loaded.address("squares") % 32 == 0
    del loaded
    gc.collect()
    assert protections(address) != "r-xp"


def test_what_is_refused(code: bytes) -> None:
    with pytest.raises(CompileError, match="no object file for x86-64"):
        LoadedCode(b"\x7fELF\2\1" + bytes(100))
    with pytest.raises(CompileError, match="no object file for x86-64"):
        LoadedCode(b"")
    for empty in ("", "llvm.func @fmod(f64, f64) -> f64"):
        with pytest.raises(CompileError, match="the compiled module has no function"):
            compiled(empty)
    with pytest.raises(CompileError, match="LLVM gives no object file"):
        compiled(MODULE.replace("@fmod", "@no_such_function"))
    with pytest.raises(CompileError, match="compiled code calls 'fmob', which is not in this process"):
        LoadedCode(code.replace(b"\0fmod\0", b"\0fmob\0"))
    # The first relocation of the file gets a type that there is not.
    (kind,) = (at for at in range(len(code) - 24) if code[at : at + 24] == relocation(code))
    with pytest.raises(CompileError, match="a relocation of type 99, which is not known"):
        LoadedCode(code[: kind + 8] + struct.pack("<I", 99) + code[kind + 12 :])
    # One of 32 bits cannot reach what is anywhere in memory.
    with pytest.raises(CompileError, match="does not fit a relocation of type 11"):
        LoadedCode(code[: kind + 8] + struct.pack("<I", 11) + code[kind + 12 :])


def test_without_proc(code: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a sandbox does not show it, or a system has none."""
    monkeypatch.setattr(engine, "_OPEN_FILES", tmp_path / "missing")
    assert function(LoadedCode(compiled()), "count", ctypes.c_int64)() == 11
    with pytest.raises(CompileError, match="LLVM gives no object file"):
        compiled(MODULE.replace("@fmod", "@no_such_function"))


C = {
    "to be chosen when it is loaded": "static int one(void) { return 1; } static void *choose(void) { return one; } "
    'int f(void) __attribute__((ifunc("choose")));',
    "variables of threads": "__thread int x = 7; int f(void) { return x++; }",
    "functions to be called when it is loaded": "int g(void); int x; __attribute__((constructor)) void set(void) { x = g(); }",
    "aligned to 8192 bytes": "int x[4] __attribute__((aligned(8192))) = {1, 2};",
}


@needs_host_clang
@pytest.mark.parametrize("told", C)
def test_what_a_linker_would_do_more_is_refused(told: str, tmp_path: Path) -> None:
    """Kernels have none of these; without a word their addresses or numbers would be wrong."""
    (tmp_path / "a.c").write_text(C[told])
    subprocess.run([find_host_clang(), "-x", "c", "-c", "-fno-pic", "-mcmodel=large", tmp_path / "a.c", "-o", tmp_path / "a.o"], check=True)
    with pytest.raises(CompileError, match=told):
        LoadedCode((tmp_path / "a.o").read_bytes())


def relocation(code: bytes) -> bytes:
    """The first relocation of the code of an object file."""
    start, count = struct.unpack_from("<Q", code, 40)[0], struct.unpack_from("<H", code, 60)[0]
    for number in range(count):
        _, kind, _, _, offset, size, *_ = struct.unpack_from("<IIQQQQIIQQ", code, start + 64 * number)
        if kind == 4 and size:
            return code[offset : offset + 24]
    raise AssertionError("the object file has no relocations")


def test_the_engine_elsewhere_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """On other systems than Linux with x86-64 LLVM's engine stays, with the code that it made."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    q, k, v = torch.randn(3, 1, 2, 17, 40)
    found = []
    for number in range(2):
        if number:
            monkeypatch.setattr(jit, "can_load", lambda: False)
            monkeypatch.setattr(jit, "LoadedCode", type("NotLoaded", (), {}))
        monkeypatch.setattr(program, "_PROGRAMS", {})
        monkeypatch.setattr(driver, "_KERNELS", {})
        attention = attn_mlir.Attention(score_mod=lambda score, b, h, i, j: score.tanh())
        x = q.clone().requires_grad_()
        o = attention(x, k, v)
        found.append((o.detach(), torch.autograd.grad(o.square().sum(), x)[0]))
        gc.collect()
    (a, da), (b, db) = found
    assert torch.equal(a, b) and torch.equal(da, db)
