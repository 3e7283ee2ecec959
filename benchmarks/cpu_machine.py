"""What the machine is and what it can do at most: the floor that the CPU benchmark compares with."""

import datetime
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

_ROOT = Path(__file__).resolve().parents[1]


_SLOW = 0.1
"""Seconds of a product that need no larger one beside it."""


def describe(threads: int) -> dict[str, Any]:
    """Date, commit, versions and processor."""
    cpu = _cpuinfo()
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _commit(),
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "simd": torch.backends.cpu.get_cpu_capability(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def measured_peak(dtype: torch.dtype, seconds: float) -> float:
    """GFLOP/s of PyTorch's matrix product, the best of several sizes: what products can reach in practice."""
    best = 0.0
    for size in (512, 1024, 2048):
        a, b = torch.randn(size, size).to(dtype), torch.randn(size, size).to(dtype)
        took = _best(lambda a=a, b=b: a @ b, seconds)
        best = max(best, 2e-9 * size**3 / took)
        if took > _SLOW:  # as PyTorch's products of bf16 are on AVX2: eight times as long for the next size
            break
    return best


def measured_bandwidth(seconds: float) -> float:
    """GB/s of reading memory, by a sum over more than the caches hold."""
    data = torch.ones(32 * 1024 * 1024)
    return 1e-9 * data.numel() * data.element_size() / _best(data.sum, seconds)


def theoretical_peak(dtype: torch.dtype, threads: int) -> float | None:
    """GFLOP/s of the multiply-add units of the cores in use, at the clock that the system reports; None where unknown."""
    cpu = _cpuinfo()
    try:
        hertz, family = float(cpu["cpu MHz"]) * 1e6, int(cpu["cpu family"])
    except (KeyError, ValueError):
        return None
    flags = cpu.get("flags", "").split()
    # Two units of one multiply-add a lane. AMD's families before 26 run 512-bit instructions in two 256-bit halves.
    bits = 512 if "avx512f" in flags and not ("AMD" in cpu.get("vendor_id", "") and family < 26) else 256 if "fma" in flags else 128
    per_cycle = 2 * 2 * bits // 32
    if dtype == torch.bfloat16:
        per_cycle = 2048 if "amx_bf16" in flags else 2 * per_cycle if "avx512_bf16" in flags else per_cycle
    return 1e-9 * hertz * per_cycle * min(threads, _cores())


def _best(call: Callable[[], Any], seconds: float) -> float:
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def _cpuinfo() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _cores() -> int:
    """Cores that this process may use; hardware threads of one core count once."""
    available = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    siblings = set()
    for cpu in available:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text() if path.exists() else str(cpu))
    return len(siblings)


def _commit() -> str:
    command = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
