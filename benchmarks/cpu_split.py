"""Decoding on the CPU: one query with long caches, in parts and in one, beside torch's scaled_dot_product_attention, in turn.

    python benchmarks/cpu_split.py [--threads 2] [--rounds 9]

Prints the least wall and CPU milliseconds of a call; CPU time counts all threads. On a machine with other work, wall times say
little, and CPU time holds what threads spin while they wait for each other.
"""

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from attn_mlir import attention

CASES = ((1, 1, 1, 4096, 128), (1, 1, 1, 32768, 128), (1, 2, 2, 32768, 128), (1, 8, 2, 16384, 128), (1, 16, 16, 8192, 128))
"""B, Hq, Hkv, keys and head dimension."""


def once(function: Callable[[], object], calls: int) -> tuple[float, float]:
    """Wall and CPU milliseconds of a call."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(calls):
        function()
    return (time.perf_counter() - wall) / calls * 1e3, (time.process_time() - cpu) / calls * 1e3


def measure(case: tuple[int, int, int, int, int], rounds: int) -> dict[str, tuple[float, float]]:
    """The least times of each way, taken in turn."""
    b, heads, kv_heads, keys, dim = case
    q, (k, v) = torch.randn(b, heads, 1, dim), torch.randn(2, b, kv_heads, keys, dim)
    ways: dict[str, Callable[[], object]] = {
        "parts": lambda: attention(q, k, v),
        "one part": lambda: attention(q, k, v, num_splits=1),
        "torch": lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=heads != kv_heads),
    }
    for function in ways.values():
        function()
    calls = max(1, (1 << 22) // (b * kv_heads * keys * dim))
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, function in ways.items():
            found[name].append(once(function, calls))
    return {name: (min(wall for wall, _ in times), min(cpu for _, cpu in times)) for name, times in found.items()}


def main() -> None:
    """One line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads; B, Hq, Hkv, keys, D; wall / CPU ms of a call")
    with torch.no_grad():
        for case in CASES:
            times = measure(case, options.rounds)
            print(case, "  ".join(f"{name} {wall:.3f} / {cpu:.3f}" for name, (wall, cpu) in times.items()), flush=True)


if __name__ == "__main__":
    main()
