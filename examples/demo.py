"""The demo: softmax attention written by hand, compiled stage by stage, checked and timed on the CPU.

Runs the quick start of AttentionEngine (examples/seed_quick_start.py) and then the same attention in attn-mlir's own form, writes
the IR after every pass to a folder, and compares result and time with PyTorch.

    python examples/demo.py [--ir-dir build/demo-ir] [--length 2048]
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

import attn_mlir
import seed_quick_start


def row(s):
    """One row of scores becomes one row of weights: this is all that attn-mlir is told."""
    e = (s - s.max()).exp()
    return e / e.sum()


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def median_ms(systems: dict[str, Callable[[], object]], rounds: int = 7) -> dict[str, float]:
    """Milliseconds of each system: the median over rounds in which every system runs in turn."""
    times: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(rounds + 1):
        for name, run in systems.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values[1:]) * 1e3 for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs attn-mlir's demo on the CPU.")
    parser.add_argument("--ir-dir", type=Path, default=Path("build/demo-ir"), help="where the IR after each pass goes")
    parser.add_argument("--length", type=int, default=2048, help="sequence length")
    args = parser.parse_args()

    print("1. AttentionEngine's quick start, on the CPU")
    seed_quick_start.main([])

    print("\n2. The same attention from a plain Python function")
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 8, args.length, 64)
    attention = attn_mlir.Attention(row=row, mask_mod=causal)
    start = time.perf_counter()
    o = attention(q, k, v)
    print(f"   traced, derived, compiled and run in {time.perf_counter() - start:.2f} s")
    expected = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    error = (o - expected).abs().max().item()
    print(f"   largest error against PyTorch in float64: {error:.1e}")
    if not error < 1e-5:
        raise SystemExit("the result is wrong")

    print("\n3. What was derived")
    print("   " + attention.explain().strip().replace("\n", "\n   "))

    print(f"\n4. The IR after each pass, in {args.ir_dir}")
    args.ir_dir.mkdir(parents=True, exist_ok=True)
    for number, (name, text) in enumerate(attention.stages().items()):
        path = args.ir_dir / f"{number:02}-{name.replace('(', '-').replace(')', '')}.mlir"
        path.write_text(text)
        print(f"   {path.name:40} {len(text.splitlines()):5} lines")

    print(f"\n5. Time, {torch.get_num_threads()} threads, [1, 8, {args.length}, 64] f32, causal")
    times = median_ms(
        {"attn-mlir": lambda: attention(q, k, v), "PyTorch SDPA": lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)}
    )
    for name, value in times.items():
        print(f"   {name:14} {value:8.1f} ms")
    print(f"   ratio          {times['PyTorch SDPA'] / times['attn-mlir']:8.2f}  (above 1: attn-mlir is faster)")


if __name__ == "__main__":
    main()
