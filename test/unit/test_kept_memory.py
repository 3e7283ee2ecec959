"""A process keeps little of each program that it has compiled: `benchmarks/kept_memory.py`, with fewer programs."""

import importlib

import pytest

from amd_tools import needs_host_clang
from attn_mlir.backends.cpu.loaded_code import can_load
from test_benchmark_cpu import BENCHMARKS

pytestmark = pytest.mark.skipif(not can_load(), reason="elsewhere LLVM's engine keeps 0.8 MB of each program")


@pytest.mark.parametrize(
    ("kind", "count", "bar"),
    [("forward", 8, 0.1), ("gradient", 4, 0.2), pytest.param("hip-emulated", 3, 0.4, marks=needs_host_clang)],
)
def test_memory_of_a_program(kind: str, count: int, bar: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was 0.8, 1.6 and 0.7 MB on the heap while LLVM's engines lived and the emulation kept what it had noted of each access."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kept_memory = importlib.import_module("kept_memory")
    try:
        kept_memory.heap()
    except AttributeError:
        pytest.skip("only glibc tells how much of its heap is in use")
    in_use, code, _ = kept_memory.grown(kind, count, warm=2)
    assert in_use < bar and code < 0.2
