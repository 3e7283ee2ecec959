"""Delta rules on the CPU beside the chunked formula in eager PyTorch that transformers has: python benchmarks/cpu_delta.py [--quick].

Both take turns, round by round, on one thread; CPU time is counted, which other processes disturb less, and the least of all rounds is
reported. Results are compared first.
"""

import argparse
import importlib
import time
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import gated_delta_rule, kda

CASES = {
    "gated delta rule, 1 x 2048, 4 heads of 64": (False, (1, 2048, 4, 64)),
    "gated delta rule, 1 x 1024, 4 heads of 128": (False, (1, 1024, 4, 128)),
    "KDA, 1 x 1024, 4 heads of 64": (True, (1, 1024, 4, 64)),
}


def inputs(channels: bool, sizes: tuple[int, ...]) -> list[torch.Tensor]:
    """q, k, v, g and beta."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, *sizes)
    return [q, k, v, -torch.rand(sizes if channels else sizes[:3]), torch.rand(sizes[:3])]


def eager(channels: bool) -> Callable[..., torch.Tensor]:
    """transformers' own function."""
    model, name = ("kimi_linear", "chunk_kimi_delta_attention") if channels else ("qwen3_next", "torch_chunk_gated_delta_rule")
    function = getattr(importlib.import_module(f"transformers.models.{model}.modeling_{model}"), name)
    return lambda q, k, v, g, beta: function(
        q, k, v, g=g, beta=beta, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=True
    )[0]


def measures(function: Callable[..., torch.Tensor], given: list[torch.Tensor], upstream: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    leaves = [x.detach().requires_grad_() for x in given]
    kept = function(*leaves)
    return {
        "forward": lambda: function(*given),
        "backward": lambda: torch.autograd.grad(kept, leaves, upstream, retain_graph=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    rounds = 3 if parser.parse_args().quick else 9
    torch.set_num_threads(1)
    for name, (channels, sizes) in CASES.items():
        given, upstream = inputs(channels, sizes), torch.randn(sizes)
        function = kda if channels else gated_delta_rule
        ways = {
            "attn-mlir": lambda *x, f=function: f(*x, use_qk_l2norm_in_kernel=True)[0],
            "eager": eager(channels),
        }
        worst = (ways["attn-mlir"](*given) - ways["eager"](*given)).abs().max().item()
        assert worst < 1e-4, worst
        calls = {way: measures(f, given, upstream) for way, f in ways.items()}
        for measure in ("forward", "backward"):
            least = dict.fromkeys(ways, float("inf"))
            for way in ways:
                calls[way][measure]()
            for _ in range(rounds):
                for way in ways:
                    start = time.process_time()
                    calls[way][measure]()
                    least[way] = min(least[way], time.process_time() - start)
            ours, theirs = (1e3 * least[way] for way in ways)
            print(f"{name}, {measure}: {ours:.1f} ms of CPU, eager {theirs:.1f} ms, {theirs / ours:.1f} x", flush=True)


if __name__ == "__main__":
    main()
