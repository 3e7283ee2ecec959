"""Attention of heads of more than 256 columns and its gradients on a GPU: time, TFLOP/s of present pairs, and memory beside tensors.

python benchmarks/wide_gradients.py
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import attention, masks

CASES = (
    (576, 512, 1, 16, 1, 4096),
    (576, 512, 1, 128, 1, 2048),
    (512, 512, 2, 8, 8, 4096),
    (320, 320, 2, 8, 8, 4096),
    (1024, 1024, 1, 8, 8, 4096),
)
"""Columns of q and of v, batch entries, heads of queries and of keys, positions."""


def milliseconds(run: Callable[[], Any], rounds: int = 7, calls: int = 3) -> float:
    """The median of rounds of a few calls, after one to warm up."""
    run()
    found = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / calls)
    return sorted(found)[rounds // 2]


def row(case: tuple[int, ...], name: str, mask: Any) -> str:
    """A row of the table."""
    head, value, batch, heads, of_keys, length = case
    sizes = ((heads, head), (of_keys, head), (of_keys, value), (heads, value))
    q, k, v, do = (torch.randn(batch, h, length, d, device="cuda", dtype=torch.bfloat16) for h, d in sizes)
    ins: Any = [x.requires_grad_() for x in (q, k, v)]
    o = attention(*ins, mask_mod=mask)
    pairs = batch * heads * (length * (length + 1) / 2 if mask is not None else length**2)

    def backward() -> None:
        torch.autograd.grad(o, ins, do, retain_graph=True)

    def forward() -> None:
        with torch.no_grad():
            attention(*ins, mask_mod=mask)

    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    backward()
    memory = (torch.cuda.max_memory_allocated() - before) / 2**20
    there, back = milliseconds(forward), milliseconds(backward)
    rates = 2e-9 * pairs * (head + value) / there, 2e-9 * pairs * (3 * head + 2 * value) / back
    shape = f"{head} / {value}, {batch}, {heads}:{of_keys}, {length}"
    return f"| {shape} | {name} | {there:.2f} | {rates[0]:.0f} | {back:.2f} | {rates[1]:.0f} | {memory:.0f} |"


def main() -> None:
    """Prints a table in Markdown."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16\n")
    print("| q / v columns, B, heads, positions | mask | forward ms | TFLOP/s | gradients ms | TFLOP/s | memory MiB |")
    print("|---|---|--:|--:|--:|--:|--:|")
    for case in CASES:
        for name, mask in (("causal", masks.causal()), ("none", None)):
            print(row(case, name, mask), flush=True)


if __name__ == "__main__":
    main()
