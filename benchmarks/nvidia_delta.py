"""Delta rules on an NVIDIA GPU beside flash-linear-attention, in turn: python benchmarks/nvidia_delta.py [--cases gdn-0,kda-1].

Gated delta rule and KDA in bfloat16, K = V = 128, forward (as without gradients, and with what the backward needs) and backward; medians,
a line as soon as it is measured. Outputs and gradients of a shorter length are compared with the same rule in float32 on the CPU first, and
fla's of every case with those of attn-mlir. Without fla, attn-mlir is timed alone.

--cases NAMES     gdn-N and kda-N, N the number of a shape (see CASES); default: all
--limit SECONDS   no case begins later than that after the start: fla's first calls take up to 100 s, in which it tunes itself
--quick           one small shape, one round              --device cpu   tests the script
"""

import argparse
import importlib
import importlib.util
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from nvidia_attention import in_turn

from attn_mlir import gated_delta_rule, kda

Rule = Callable[..., torch.Tensor]
CASES = [(1, 8192, 16, 64), (1, 8192, 64, 64), (4, 8192, 8, 16), (8, 2048, 16, 16), (1, 32768, 16, 32), (1, 8192, 2, 8)]
"""Batch, length, heads of q and k, heads of v."""
RULES = {"gdn": (False, gated_delta_rule, "chunk_gated_delta_rule"), "kda": (True, kda, "chunk_kda")}
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


def rms(found: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> list[float]:
    """Errors relative to what is wanted, in its norm."""
    pairs = zip(found, want, strict=True)
    return [((a.to(b.device).float() - b.float()).norm() / b.float().norm()).item() for a, b in pairs]


def check(name: str, found: Sequence[torch.Tensor], want: Sequence[torch.Tensor]) -> None:
    """Ends the script where a system computes something else."""
    errors = rms(found, want)
    if max(errors) > BAR or any(error != error for error in errors):
        raise SystemExit(f"{name} computes something else: errors of o, dq, dk, dv, dg, dbeta are {errors}")


def check_own(channels: bool, device: str, dtype: torch.dtype) -> None:
    """Compares attn-mlir on the device with itself in float32 on the CPU."""
    given = inputs((1, 200, 1, 2), channels, device, dtype)
    upstream, rule = torch.randn_like(given[2]), rule_of(kda if channels else gated_delta_rule)
    want = results(rule, [x.cpu().float() for x in given], upstream.cpu().float())
    check("attn-mlir", results(rule, given, upstream), want)


def measured(rules: dict[str, Rule], given: list[torch.Tensor], rounds: int, launches: int, device: str) -> dict[str, dict[str, float]]:
    """Milliseconds of each part, by system, in turn."""
    upstream = torch.randn_like(given[2])
    leaves = [x.detach().requires_grad_() for x in given]
    made = {name: rule(*leaves) for name, rule in rules.items()}
    gradients = {name: torch.autograd.grad(o, leaves, upstream, retain_graph=True) for name, o in made.items()}
    first, *others = made
    for name in others:
        check(name, [made[name].detach(), *gradients[name]], [made[first].detach(), *gradients[first]])
    parts: dict[str, dict[str, Callable[[], Any]]] = {
        "forward": {name: lambda r=rule: r(*given) for name, rule in rules.items()},
        "forward for gradients": {name: lambda r=rule: r(*leaves) for name, rule in rules.items()},
        "backward": {name: lambda o=o: torch.autograd.grad(o, leaves, upstream, retain_graph=True) for name, o in made.items()},
    }
    return {
        part: {name: median(times) for name, times in in_turn(calls, rounds, launches, device).items()} for part, calls in parts.items()
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """A line: milliseconds, and how many times as long the other system takes."""
    texts: list[str] = []
    for part, times in found.items():
        own, others = times["attn-mlir"], [(name, ms) for name, ms in times.items() if name != "attn-mlir"]
        texts.append(f"{part}: attn-mlir {own:.3f}" + "".join(f", {name} {ms:.3f} ({ms / own:.2f}x)" for name, ms in others))
    return "; ".join(texts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="")
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(arguments)
    begin = time.perf_counter()
    cases, rounds, launches = ([(1, 70, 1, 2)], 1, 1) if options.quick else (CASES, 7, 4)
    dtype = torch.bfloat16 if options.device == "cuda" else torch.float32
    names = [f"{rule}-{number}" for rule in RULES for number in range(len(cases))]
    chosen = options.cases.split(",") if options.cases else names
    if unknown := sorted(set(chosen) - set(names)):
        parser.error(f"there is no case {', '.join(unknown)}: they are {', '.join(names)}")
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    print(f"{where}, {dtype}, K = V = 128, milliseconds, medians of {rounds} rounds in turn", flush=True)
    checked = set[str]()
    for name in chosen:
        if time.perf_counter() - begin > options.limit:
            print(f"{name}: not timed, the limit of {options.limit:.0f} s has passed", flush=True)
            continue
        kind, number = name.split("-")
        channels, function, peer = RULES[kind]
        if kind not in checked:
            check_own(channels, options.device, dtype)
            checked.add(kind)
        rules = {"attn-mlir": rule_of(function)}
        if options.device == "cuda" and importlib.util.find_spec("fla") is not None:
            rules["fla"] = rule_of(getattr(importlib.import_module("fla.ops"), peer))
        batch, length, heads, of_v = case = cases[int(number)]
        found = measured(rules, inputs(case, channels, options.device, dtype), rounds, launches, options.device)
        after = time.perf_counter() - begin
        print(f"{name} ({batch} x {length}, {heads}/{of_v} heads): {table(found)}; after {after:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
