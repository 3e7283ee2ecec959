"""Delta rules on an NVIDIA GPU beside flash-linear-attention, in turn: python benchmarks/nvidia_delta.py [--quick] [--device cpu].

Gated delta rule and KDA in bfloat16, K = V = 128, forward and backward. Outputs and gradients of a shorter length are compared with the
same rule in float32 on the CPU first, whichever systems are there. Without fla, attn-mlir is timed alone. `--device cpu` tests the script.
"""

import argparse
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import torch
from nvidia_attention import in_turn

from attn_mlir import gated_delta_rule, kda

Rule = Callable[..., torch.Tensor]
CASES = [(1, 8192, 16, 64), (1, 8192, 64, 64), (4, 8192, 8, 16), (8, 2048, 16, 16), (1, 32768, 16, 32)]
"""Batch, length, heads of q and k, heads of v."""
RULES = {"gated delta rule": (False, gated_delta_rule, "chunk_gated_delta_rule"), "KDA": (True, kda, "chunk_kda")}
BAR = 2e-2
"""Of rms(error) / rms against float32: o, gradients and the inputs of both are rounded to bfloat16."""


def inputs(case: tuple[int, ...], channels: bool, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """q, k, v, g and beta."""
    batch, length, heads, of_v = case
    torch.manual_seed(0)
    q, k = torch.randn(2, batch, length, heads, 128)
    v = torch.randn(batch, length, of_v, 128)
    g, beta = -torch.rand(v.shape if channels else v.shape[:3]), torch.rand(v.shape[:3])
    return [q.to(device, dtype), k.to(device, dtype), v.to(device, dtype), g.to(device), beta.to(device)]


def rule_of(function: Callable[..., Any]) -> Rule:
    """A rule of (q, k, v, g, beta) that divides out lengths of q and k."""
    return lambda q, k, v, g, beta: function(q, k, v, g=g, beta=beta, use_qk_l2norm_in_kernel=True)[0]


def results(rule: Rule, given: Sequence[torch.Tensor], upstream: torch.Tensor) -> list[torch.Tensor]:
    """o and all gradients."""
    leaves = [x.detach().requires_grad_() for x in given]
    o = rule(*leaves)
    return [o.detach(), *torch.autograd.grad(o, leaves, upstream)]


def check(rules: dict[str, Rule], channels: bool, device: str, dtype: torch.dtype) -> None:
    """Ends the script where a system computes something else."""
    given = inputs((1, 200, 1, 2), channels, device, dtype)
    upstream = torch.randn_like(given[2])
    exact = [x.cpu().float() for x in given]
    want = results(rule_of(kda if channels else gated_delta_rule), exact, upstream.cpu().float())
    for name, rule in rules.items():
        found = results(rule, given, upstream)
        errors = [((a.cpu().float() - b).norm() / b.norm()).item() for a, b in zip(found, want, strict=True)]
        if max(errors) > BAR:
            raise SystemExit(f"{name} computes something else: errors of o, dq, dk, dv, dg, dbeta are {errors}")


def measured(rules: dict[str, Rule], given: list[torch.Tensor], rounds: int, launches: int, device: str) -> None:
    """Times and prints both directions of all systems."""
    upstream = torch.randn_like(given[2])
    leaves = [x.detach().requires_grad_() for x in given]
    made = {name: rule(*leaves) for name, rule in rules.items()}
    parts: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {name: lambda r=rule: r(*given) for name, rule in rules.items()},
        "backward": {name: lambda o=o: torch.autograd.grad(o, leaves, upstream, retain_graph=True) for name, o in made.items()},
    }
    for part, calls in parts.items():
        times = {name: min(samples) for name, samples in in_turn(calls, rounds, launches, device).items()}
        print(f"  {part}: " + ", ".join(f"{name} {ms:.3f} ms" for name, ms in times.items()), flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one small shape, one round")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    cases, rounds, launches = ([(1, 70, 1, 2)], 1, 1) if options.quick else (CASES, 5, 10)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    for name, (channels, function, peer) in RULES.items():
        rules = {"attn-mlir": rule_of(function)}
        if options.device == "cuda" and importlib.util.find_spec("fla") is not None:
            rules["fla"] = rule_of(getattr(importlib.import_module("fla.ops"), peer))
        check(rules, channels, options.device, dtype)
        for case in cases:
            print(f"{name}, {case[0]} x {case[1]}, {case[2]}/{case[3]} heads", flush=True)
            measured(rules, inputs(case, channels, options.device, dtype), rounds, launches, options.device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
