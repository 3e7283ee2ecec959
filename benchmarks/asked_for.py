"""What users of other attention libraries have asked for again and again, measured: python benchmarks/asked_for.py [--device cuda].

Prints a table for docs/asked-for.md: masks of 806,000 positions, new lengths, invented rows, tangents and second derivatives, training on
a CPU, gradients of biases, the same bits twice. Where PyTorch's compiled FlexAttention can do it, it is timed beside, in turn.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.nn.attention import flex_attention as pytorch

import attn_mlir
from attn_mlir import flex, masks

LONG = 806_000
"""Positions of pytorch/attention-gym#149."""


def documents(length: int, device: str) -> Callable[..., Any]:
    """Causal attention within documents of about 4,000 positions."""
    ids = torch.arange(length, device=device) // 4000

    def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (ids[q_idx] == ids[kv_idx])

    return mask_mod


def seconds(run: Callable[[], Any], device: str) -> float:
    """Of one call, until its results are there."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def in_turn(calls: dict[str, Callable[[], Any]], device: str, rounds: int = 7) -> dict[str, float]:
    """Median milliseconds of each, after one call of each that is not counted."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 1):
        for name, call in calls.items():
            taken = 1e3 * seconds(call, device)
            if turn:
                times[name].append(taken)
    return {name: statistics.median(values) for name, values in times.items()}


def peak(device: str) -> float:
    """Bytes at the peak so far: of the GPU's memory, or of the process."""
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def size(count: float) -> str:
    """Bytes, to read."""
    return f"{count / 2**20:.1f} MiB" if count < 2**30 else f"{count / 2**30:.1f} GiB"


def long_masks(device: str) -> Iterator[tuple[str, str]]:
    """The time and memory of making a block mask, and of using it."""
    mask_mod = documents(LONG, device)
    before = peak(device)
    taken = seconds(lambda: flex.create_block_mask(mask_mod, 1, None, LONG, LONG, device=device), device)
    yield f"block mask of {LONG:,} positions", f"{1e3 * taken:.2f} ms, {size(peak(device) - before)}"
    short = 32_768 if device == "cuda" else 8_192
    before, other = peak(device), documents(short, device)
    taken = seconds(lambda: pytorch.create_block_mask(other, 1, None, short, short, device=device), device)
    yield f"the same by PyTorch, {short:,} positions", f"{1e3 * taken:.0f} ms, {size(peak(device) - before)} more at the peak"
    if device == "cuda":
        q, k, v = (torch.randn(1, 1, LONG, 64, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        mask = flex.create_block_mask(mask_mod, 1, None, LONG, LONG, device=device)
        do, before = torch.randn_like(q), torch.cuda.memory_allocated()

        def step() -> None:
            torch.autograd.grad(flex.flex_attention(q, k, v, block_mask=mask), (q, k, v), do)

        first = seconds(step, device)
        torch.cuda.reset_peak_memory_stats()
        again = seconds(step, device)
        yield (
            f"forward and backward with it, {LONG:,} positions, one head, D 64, bf16",
            f"{1e3 * again:.1f} ms (the first {first:.1f} s), {size(peak(device) - before)}",
        )


def new_lengths(device: str) -> Iterator[tuple[str, str]]:
    """Twenty lengths that were not there before."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    lengths = [200 + 37 * n for n in range(20)]

    def bias(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s - 0.1 * (q_idx - kv_idx)

    systems: dict[str, Callable[..., Any]] = {"here": attn_mlir.flex_attention}
    if device == "cuda":
        systems["PyTorch, compiled"] = torch.compile(pytorch.flex_attention, dynamic=True)
    for name, run in systems.items():
        taken = []
        for length in lengths:
            q, k, v = (torch.randn(1, 2, length, 64, device=device, dtype=dtype) for _ in range(3))
            taken.append(seconds(lambda: run(q, k, v, score_mod=bias), device))  # noqa: B023
        yield (
            f"{len(lengths)} lengths one after the other, {name}",
            f"the first {taken[0]:.2f} s, the slowest other {1e3 * max(taken[1:]):.1f} ms",
        )


def rows(device: str) -> Iterator[tuple[str, str]]:
    """A row that nobody has written a kernel for."""

    def row(s: Any) -> Any:
        w = s.max(0.0) ** 2
        return w / (w.sum() + 1e-6)

    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    length = 1024 if device == "cpu" else 4096
    q, k, v = (torch.randn(1, 8, length, 64, device=device, dtype=dtype) for _ in range(3))

    def dense() -> torch.Tensor:
        w = (q @ k.mT * 0.125).clamp_min(0.0) ** 2
        return (w / (w.sum(-1, keepdim=True) + 1e-6)) @ v

    compiled = torch.compile(dense)
    run = attn_mlir.Attention(row=row)
    assert float((run(q, k, v) - dense()).norm() / dense().norm()) < 1e-2
    ms = in_turn({"here": lambda: run(q, k, v), "dense": dense, "compiled": compiled}, device)
    yield (
        f"an invented row, relu(s)^2 / sum, 8 heads, {length} positions, forward",
        f"{ms['here']:.2f} ms; the formula in PyTorch {ms['dense']:.2f}, compiled {ms['compiled']:.2f}",
    )


def derivatives(device: str) -> Iterator[tuple[str, str]]:
    """A tangent and a gradient of a gradient, against the dense formula in float64."""
    dtype = torch.float32 if device == "cpu" else torch.float16
    q, k, v, t = (torch.randn(1, 2, 300, 64, device=device, dtype=dtype) for _ in range(4))

    def ours(x: torch.Tensor) -> torch.Tensor:
        return attn_mlir.attention(x, k.to(x.dtype), v.to(x.dtype), mask_mod=masks.causal())

    def dense(x: torch.Tensor) -> torch.Tensor:
        s = (x @ k.to(x.dtype).mT * 0.125).masked_fill(torch.ones(300, 300, device=device, dtype=torch.bool).triu(1), float("-inf"))
        return s.softmax(-1) @ v.to(x.dtype)

    def of(run: Callable[[torch.Tensor], torch.Tensor], kind: torch.dtype) -> list[torch.Tensor]:
        x, tangent = q.to(kind), t.to(kind)
        moved = torch.func.jvp(run, (x,), (tangent,))[1]
        leaf = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(
            run(leaf).float().square().sum() if kind != torch.float64 else run(leaf).square().sum(), leaf, create_graph=True
        )
        (second,) = torch.autograd.grad(first, leaf, tangent)
        return [moved.double(), second.double()]

    for name, a, b in zip(("jvp", "gradient of a gradient"), of(ours, dtype), of(dense, torch.float64), strict=True):
        yield f"{name}, causal, {str(dtype)[6:]}", f"relative error {float((a - b).norm() / b.norm()):.0e} against float64"


def training(device: str) -> Iterator[tuple[str, str]]:
    """Forward and backward with a bias that is learned, where FlexAttention refuses gradients (CPU) or sums them by atomics (GPU)."""
    dtype, length, heads = (torch.float32, 1024, 4) if device == "cpu" else (torch.bfloat16, 4096, 16)
    q, k, v = (torch.randn(1, heads, length, 64, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    table = torch.zeros(heads, 257, device=device, dtype=dtype).normal_().requires_grad_()
    do = torch.randn_like(q)
    i, j = torch.arange(length, device=device)[:, None], torch.arange(length, device=device)

    def bias(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s + table[h, (q_idx - kv_idx).clamp(-128, 128) + 128]

    def step(run: Callable[[], torch.Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(run(), (q, k, v, table), do)

    def dense() -> torch.Tensor:
        s = q @ k.mT * 0.125 + table[:, (i - j).clamp(-128, 128) + 128]
        return s.softmax(-1) @ v

    systems = {"here": step(lambda: attn_mlir.flex_attention(q, k, v, score_mod=bias)), "dense": step(dense)}
    if device == "cuda":
        compiled = torch.compile(pytorch.flex_attention, dynamic=False)
        systems["PyTorch's FlexAttention"] = step(lambda: compiled(q, k, v, score_mod=bias))
    told = []
    for name in [*systems]:
        try:
            systems[name]()
        except Exception as error:
            told.append(f"{name}: {type(error).__name__}")
            del systems[name]
    ms = in_turn(systems, device)
    told = [f"{name} {value:.2f} ms" for name, value in ms.items()] + told
    yield f"training step with a learned table of 257 distances, {heads} heads, {length} positions", "; ".join(told)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    first, second = (systems["here"]() for _ in range(2))
    torch.use_deterministic_algorithms(before)
    same = all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    yield "the same step twice, `torch.use_deterministic_algorithms(True)`", "the same bits" if same else "OTHER BITS"


def odd_sizes(device: str) -> Iterator[tuple[str, str]]:
    """Gradients where neither the length nor the head dimension is a multiple of anything, against the dense formula in float64."""
    dtype = torch.float32 if device == "cpu" else torch.float16
    given = [torch.randn(1, 2, 127, 100, device=device, dtype=dtype) for _ in range(4)]

    def gradients(run: Callable[..., torch.Tensor], kind: torch.dtype) -> list[torch.Tensor]:
        leaves = [x.to(kind).requires_grad_() for x in given[:3]]
        return [x.double() for x in torch.autograd.grad(run(*leaves), leaves, given[3].to(kind))]

    def ours(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attn_mlir.attention(q, k, v, mask_mod=masks.causal())

    def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    error = max(float((a - b).norm() / b.norm()) for a, b in zip(gradients(ours, dtype), gradients(dense, torch.float64), strict=True))
    yield f"gradients of q, k and v, causal, 127 positions, D 100, {str(dtype)[6:]}", f"relative error {error:.0e} against float64"


def packed(device: str) -> Iterator[tuple[str, str]]:
    """Packed sequences of several lengths with a score function, against each sequence by itself in float64."""
    if device != "cpu":
        return
    lengths = [1, 17, 127, 300]
    begins = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    q, k, v = (torch.randn(sum(lengths), 2, 64, requires_grad=True) for _ in range(3))
    do = torch.randn_like(q)

    def bias(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return s - 0.1 * (h + 1) * (q_idx - kv_idx)

    options: dict[str, Any] = {"score_mod": bias, "mask_mod": masks.causal()}
    got = torch.autograd.grad(attn_mlir.attention_varlen(q, k, v, begins, **options), (q, k, v), do)
    bounds = list(zip(begins.tolist(), begins.tolist()[1:], strict=False))
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    parts = [[x[a:b].transpose(0, 1) for x in wide] for a, b in bounds]
    made = []
    for x, y, z in parts:
        i, j = torch.arange(x.shape[1])[:, None], torch.arange(x.shape[1])
        s = x @ y.mT * 0.125 - 0.1 * torch.tensor([1, 2])[:, None, None] * (i - j)
        made.append((s.masked_fill(j > i, -torch.inf).softmax(-1) @ z).transpose(0, 1))
    wanted = torch.autograd.grad(torch.cat(made), wide, do.double())
    error = max(float((a - b).norm() / b.norm()) for a, b in zip(got, wanted, strict=True))
    yield "gradients of packed sequences of 1, 17, 127 and 300, ALiBi, causal", f"relative error {error:.0e} against float64"


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    torch.manual_seed(0)
    print("| | |\n|---|---|", flush=True)
    for part in (long_masks, new_lengths, rows, derivatives, training, odd_sizes, packed):
        for what, answer in part(device):
            print(f"| {what} | {answer} |", flush=True)


if __name__ == "__main__":
    main()
