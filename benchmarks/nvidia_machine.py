"""What the NVIDIA benchmark measures besides throughput: the machine, compile latency, the host's work for a launch, memory."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from cpu_machine import _commit
from nvidia_cases import Case, Problem
from nvidia_systems import ours

_FIRST_CALLS = """
import json, sys, time
import torch
device = sys.argv[1]
q, k, v = (torch.randn(1, 2, 512, 64, device=device, dtype=torch.float16, requires_grad=True) for _ in range(3))
# What torch starts once: CUDA, its context, autograd (whose first use imports sympy).
o = torch.nn.functional.scaled_dot_product_attention(q, k, v)
torch.autograd.grad(o, (q, k, v), torch.ones_like(o))[0].sum().item()
start = time.perf_counter()
import attn_mlir
from attn_mlir import masks
o = attn_mlir.attention(q, k, v, mask_mod=masks.causal())
o.sum().item()
forward = time.perf_counter() - start
torch.autograd.grad(o, (q, k, v), torch.ones_like(o))[0].sum().item()
print(json.dumps({"forward_s": forward, "both_s": time.perf_counter() - start}))
"""


def describe(device: str) -> dict[str, Any]:
    """Date, commit, versions, card, clocks and power limit."""
    known: dict[str, Any] = {"date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": _commit(), "torch": torch.__version__}
    if device == "cpu":
        return {**known, "gpu": "none"}
    query = "name,driver_version,clocks.sm,clocks.max.sm,power.limit,temperature.gpu"
    try:
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip().splitlines()[0]
        card: dict[str, Any] = dict(zip(query.split(","), (part.strip() for part in told.split(",")), strict=False))
    except (OSError, subprocess.SubprocessError, IndexError):
        card = {"name": torch.cuda.get_device_name()}
    versions: dict[str, Any] = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return {**known, **versions, "gpu": card.pop("name"), **card, "matmul_tflops": _matmul_tflops(), "copy_gbps": _copy_gbps()}


def latency(device: str) -> dict[str, Any]:
    """Seconds of the first forward, and of it with its backward, in a new process: "cold" with an empty cache, "warm" with what that left.

    Counted is all that attn-mlir does, from importing it to the result on the host: modules, tracing, derivation, the compiler, the
    cache on disk, loading code on the GPU. Not counted is what torch starts once in any process: CUDA, its context, autograd; torch's
    own attention runs before. Modules are imported from byte code, as those of installed packages are: a process before has left it.
    """
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as fresh:
        environment = {**os.environ, "ATTN_MLIR_CACHE": fresh, "PYTHONPYCACHEPREFIX": f"{fresh}/bytecode"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        command = [sys.executable, "-c", _FIRST_CALLS, device]
        for name in ("byte code", "cold", "warm"):
            try:
                cache = {"ATTN_MLIR_CACHE": "off", "ATTN_MLIR_KERNELS": "off"} if name == "byte code" else {}
                done = subprocess.run(command, capture_output=True, text=True, env={**environment, **cache}, timeout=120)
                found[name] = json.loads(done.stdout.strip().splitlines()[-1])
            except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
                found[name] = {"reason": f"{type(error).__name__}: {error}"[:200]}
    del found["byte code"]
    return found


def launch_overhead(device: str, calls: int = 300) -> dict[str, float]:
    """Microseconds of the host for a warm call, while the GPU has next to nothing to do."""
    problem = Problem(Case("causal", 1, 1, 1, 64, 64), device)
    compute, (q, k, v) = ours(problem), problem.inputs
    kernel, views = _raw(problem), [x.transpose(1, 2) for x in (q, k, v)]
    q_graph, k_graph, v_graph = (x.detach().clone().requires_grad_() for x in (q, k, v))
    systems = {
        "attention": lambda: compute(q, k, v),
        "attention with autograd": lambda: compute(q_graph, k_graph, v_graph),
        "kernel object": lambda: kernel(*views),
    }
    return {name: _host_us(call, calls, device) for name, call in systems.items()}


def peak_memory(device: str, quick: bool) -> list[dict[str, Any]]:
    """Bytes that a pass takes at its peak beyond its inputs and outputs, and how much that is for each row of q."""
    if device == "cpu":
        return []
    found = []
    for length in (512, 1024) if quick else (4096, 16384):
        for backward in (False, True):
            problem = Problem(Case("causal", 1, 16, 16, length, 128), device, backward)
            compute, (q, k, v) = ours(problem), problem.inputs
            try:
                for _ in range(2):  # the first compiles
                    o = compute(q, k, v)
                    made = torch.autograd.grad(o, (q, k, v), problem.do) if backward else [o]
                    del o, made
                torch.cuda.synchronize()
                before = torch.cuda.memory_allocated()
                torch.cuda.reset_peak_memory_stats()
                o = compute(q, k, v)
                made = [o, *(torch.autograd.grad(o, (q, k, v), problem.do) if backward else ())]
                outputs = sum(tensor.numel() * tensor.element_size() for tensor in made)
                extra = torch.cuda.max_memory_allocated() - before - outputs
                rows = length * problem.case.heads
                found.append({"case": problem.case.name, "backward": backward, "extra_bytes": extra, "bytes_per_row": extra / rows})
            except Exception as error:
                found.append({"case": problem.case.name, "backward": backward, "reason": f"{type(error).__name__}: {error}"[:200]})
    return found


def _raw(problem: Problem) -> Any:
    """The launch without the checks of the public function: `kernel.run` of the driver."""
    from attn_mlir.api.inputs import check_inputs
    from attn_mlir.runtime.programs import program_of

    q, k, v = problem.inputs
    attention = ours(problem)
    attention(q, k, v)
    entry, _ = attention._entry(check_inputs(q, k, v, "bshd").inputs)
    kernel = program_of(entry).kernel(problem.device)
    return lambda q, k, v: kernel.run(q, k, v, [q.shape[3] ** -0.5] if entry.traced.captures else [], "bshd")


def _host_us(call: Any, calls: int, device: str) -> float:
    for _ in range(20 if device == "cpu" else 2000):  # the first launches of a process take longer: the driver's queues are new to it
        call()
    best = float("inf")
    for _ in range(5):
        if device != "cpu":
            torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        best = min(best, (time.perf_counter() - start) / calls)
    return 1e6 * best


def _matmul_tflops(size: int = 8192) -> float:
    """What PyTorch's product of two large matrices reaches: the practical ceiling."""
    a, b = (torch.randn(size, size, device="cuda", dtype=torch.float16) for _ in range(2))
    return 2e-9 * size**3 / _best_ms(lambda: a @ b)


def _copy_gbps() -> float:
    """Bytes read and written per second by a copy."""
    source = torch.empty(1 << 30, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2e-6 * source.numel() / _best_ms(lambda: target.copy_(source))


def _best_ms(call: Any) -> float:
    times = []
    for number in range(12):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        if number > 1:
            times.append(begin.elapsed_time(end))
    return sorted(times)[len(times) // 2]


if __name__ == "__main__":
    print(Path(__file__).name, "is part of nvidia_attention.py")
