"""Divisions of positions by captured numbers: a product for each column, exact, and only where a number is captured."""

import ctypes
import shutil
import subprocess
from typing import Any

import numpy as np
import pytest

from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.gpu.scalar_ops import HELPERS
from generated_code import complaints, kernels, traced
from test_nvidia_scalars import HOST

WIDTH, HEIGHT = 32, 32
_HOST = """
static int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
%s
extern "C" void floors(long long d, const int *x, int *to, int n) { Divisor by(d); for (int i = 0; i < n; ++i) to[i] = by.floor(x[i]); }
"""
LARGEST = (1 << 26) - 1


def neighbourhood(b: Any, h: Any, q: Any, k: Any) -> Any:
    columns = abs((q % WIDTH).clamp(3, WIDTH - 4) - k % WIDTH) <= 3
    return columns & (abs((q // WIDTH).clamp(3, HEIGHT - 4) - k // WIDTH) <= 3)


def sorted_blocks(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    """A dividend that depends on both, below zero as well."""
    return s + 0.5 * ((q - k) // WIDTH)


@pytest.fixture(scope="module")
def floors(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("divisor")
    (folder / "x.cpp").write_text(HOST + _HOST % HELPERS["divisor"])
    compiler = shutil.which("c++") or shutil.which("g++") or find_host_clang()
    subprocess.run([compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(folder / "x.so"), str(folder / "x.cpp")], check=True)
    library = ctypes.CDLL(str(folder / "x.so"))
    library.floors.argtypes = [ctypes.c_longlong, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
    return library.floors


def test_floors_are_exact(floors: Any) -> None:
    random = np.random.default_rng(0)
    ends = [1, 2, 3, 7, 13, 255, 256, 257, 65536, (1 << 24) - 1, 1 << 26, (1 << 26) + 1, 1 << 31, 1 << 40, (1 << 63) - 1]
    divisors = [0, -(1 << 63), *ends, *[-end for end in ends], *random.integers(-(1 << 26), 1 << 26, 300), *range(-200, 200)]
    for number in map(int, divisors):
        size = min(max(abs(number), 1), LARGEST)
        multiples = random.integers(-(LARGEST // size), LARGEST // size + 1, 300) * size
        x = np.concatenate([multiples - 1, multiples, multiples + 1, np.arange(-40, 40), [LARGEST, -LARGEST]])
        x = np.clip(x, -LARGEST, LARGEST).astype(np.int32)
        made = np.empty_like(x)
        floors(number, x.ctypes.data, made.ctypes.data, len(x))
        assert (made == x.astype(np.int64) // (number or 1)).all(), number


def columns_of(source: str) -> list[str]:
    """The lines of loops over columns."""
    found, loop = [], 1 << 30
    for line in source.splitlines():
        indent = len(line) - len(line.lstrip())
        loop = 1 << 30 if indent <= loop and line.strip() else loop
        found += [line] if indent > loop else []
        loop = min(loop, indent) if line.lstrip().startswith("for (int c = 0;") else loop
    return found


@pytest.mark.parametrize(("mask", "score"), [(neighbourhood, None), (None, sorted_blocks)])
def test_columns_are_not_divided(mask: Any, score: Any) -> None:
    made = kernels(traced(mask, score), vendors=("nvidia",))
    divided = [code for code in made if ".floor(" in code.source]
    assert len(divided) == 2  # forward and backward
    for code in divided:
        lines = columns_of(code.source)
        assert any(".floor(" in line for line in lines) and not any("floor_quotient" in line for line in lines)
        assert not complaints(code)


def test_constants_and_plain_masks_stay_as_they_are() -> None:
    for mask in (lambda b, h, q, k: q // 48 == k // 48, lambda b, h, q, k: q - k <= WIDTH):
        assert all("Divisor" not in code.source for code in kernels(traced(mask), vendors=("nvidia",)))
