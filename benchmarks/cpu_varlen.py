"""Packed sequences on the CPU: attention_varlen beside padding, and one call of `attention` or torch's fused attention a sequence.

Times are CPU time of the process, the least of several rounds in which the systems take turns, so that other processes count less.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

import attn_mlir
from attn_mlir import masks

_MOST_PADDING = 16
"""Beyond so many rows for each one that counts, padding takes too much memory."""
_SYSTEMS = ("attention_varlen", "one call each", "torch, one call each", "padded")
Tensor = torch.Tensor
System = Callable[[], Tensor]


@dataclasses.dataclass(frozen=True)
class Workload:
    """Lengths of queries and keys, heads of both, and the head dimension; causal from the bottom right."""

    name: str
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: tuple[int, int] = (8, 8)
    dim: int = 64

    def tensors(self) -> list[Tensor]:
        shapes = [(sum(self.queries), self.heads[0]), (sum(self.keys), self.heads[1]), (sum(self.keys), self.heads[1])]
        return [torch.randn(*shape, self.dim, requires_grad=True) for shape in shapes]


def _drawn(count: int, low: int, high: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(count)
    return tuple(torch.randint(low, high + 1, (count,), generator=generator).tolist())


def workloads() -> list[Workload]:
    """What is measured."""
    mixed, huge, short, cache = _drawn(32, 16, 512), (2048, *_drawn(100, 8, 64)), _drawn(10_000, 1, 8), _drawn(128, 32, 2048)
    return [
        Workload("32 of 16 to 512", mixed, mixed),
        Workload("2048 and 100 of 8 to 64", huge, huge),
        Workload("10000 of 1 to 8", short, short, (4, 4), 32),
        Workload("decoding, 128 caches of 32 to 2048, 8:2 heads", (1,) * 128, cache, (8, 2)),
    ]


def offsets(lengths: Sequence[int]) -> Tensor:
    """cu_seqlens."""
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)


def systems(w: Workload, q: Tensor, k: Tensor, v: Tensor) -> dict[str, System]:
    """Each system on packed tensors; all give o, [Tq, Hq, D]."""
    of_q, of_k = offsets(w.queries), offsets(w.keys)
    causal = masks.causal("bottom_right")
    used_q, used_k = torch.tensor(w.queries), torch.tensor(w.keys)

    def own() -> Tensor:
        return attn_mlir.attention_varlen(q, k, v, of_q, of_k, mask_mod=causal)

    def alone() -> Tensor:
        parts = zip(q.split(w.queries), k.split(w.keys), v.split(w.keys), strict=True)
        found = [attn_mlir.attention(a[None], b[None], c[None], mask_mod=causal, layout="bshd")[0] for a, b, c in parts]
        return torch.cat(found)

    def inside(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx < used_k[b]) & (kv_idx - used_k[b] <= q_idx - used_q[b])

    def padded() -> Tensor:
        parts = (q, w.queries), (k, w.keys), (v, w.keys)
        all_q, all_k, all_v = (torch.nn.utils.rnn.pad_sequence(list(x.split(n)), batch_first=True) for x, n in parts)
        o = attn_mlir.attention(all_q, all_k, all_v, mask_mod=inside, layout="bshd")
        return torch.cat([o[b, :n] for b, n in enumerate(w.queries)])

    def fused() -> Tensor:
        found = []
        for part in zip(q.split(w.queries), k.split(w.keys), v.split(w.keys), strict=True):
            a, b, c = (x.transpose(0, 1)[None] for x in part)
            o = torch.nn.functional.scaled_dot_product_attention(a, b, c, is_causal=a.shape[2] > 1, enable_gqa=w.heads[0] != w.heads[1])
            found.append(o[0].transpose(0, 1))
        return torch.cat(found)

    found = {"attention_varlen": own, "one call each": alone, "torch, one call each": fused}
    if len(w.queries) * max(w.queries) <= _MOST_PADDING * sum(w.queries):
        found["padded"] = padded
    return found


def measured(run: Callable[[], Any]) -> float:
    """CPU milliseconds of a run."""
    start = time.process_time()
    run()
    return 1e3 * (time.process_time() - start)


def report(rounds: int, backward: bool) -> None:
    """Prints a table."""
    print(f"| lengths | pass | {' | '.join(_SYSTEMS)} |")
    print("|---" * (2 + len(_SYSTEMS)) + "|")
    for w in workloads():
        q, k, v = w.tensors()
        modes = ["forward", "forward + backward"] if backward and w.queries == w.keys else ["forward"]
        for mode in modes:
            runs = {n: _forward(s) if mode == "forward" else _both(s, (q, k, v)) for n, s in systems(w, q, k, v).items()}
            results = [run() for run in runs.values()]  # compiles, and warms up
            for other in results[1:]:
                torch.testing.assert_close(other, results[0], rtol=1e-3, atol=1e-3)
            times: dict[str, list[float]] = {name: [] for name in runs}
            for _ in range(rounds):
                for name, run in runs.items():
                    times[name].append(measured(run))
            cells = [f"{min(times[name]):.1f}" if name in times else "-" for name in _SYSTEMS]
            print(f"| {w.name} | {mode} | {' | '.join(cells)} |", flush=True)


def _forward(system: System) -> Callable[[], Tensor]:
    def run() -> Tensor:
        with torch.no_grad():
            return system()

    return run


def _both(system: System, inputs: Sequence[Tensor]) -> Callable[[], Tensor]:
    def run() -> Tensor:
        o = system()
        torch.autograd.grad(o.sum(), inputs)
        return o.detach()

    return run


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    report(arguments.rounds, not arguments.no_backward)
