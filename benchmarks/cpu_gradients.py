"""Gradients in the CPU benchmark: forward and backward together, and the backward alone, against autograd through PyTorch's SDPA."""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from cpu_cases import Case, Problem

Call = Callable[[], Any]
InTurn = Callable[[dict[str, Call], int, float], dict[str, list[float]]]
_FORWARD, _BACKWARD = 2, 5
"""Products of two matrices: q k and p v; in the backward q k and do v again, and dq, dk, dv."""
MEASURES = {"both": "forward + backward", "backward": "backward"}
COLUMNS = ("case", "measure", "attn-mlir, ms", "SDPA, ms", "x SDPA", "GFLOP/s", "floor, ms", "x floor", "first call, s")


def cases(quick: bool) -> list[Case]:
    """Causal and full attention, and what SDPA takes a mask for; with `quick` a small one of each kind."""
    kinds = ("causal", "full", "window", "documents", "alibi")
    if quick:
        small = [Case("gradients", kind, 1, 4, 4, 48, 48, 16, torch.float32) for kind in kinds]
        return [*small, Case("gradients", "causal", 1, 4, 4, 48, 48, 16, torch.bfloat16)]
    both = (torch.float32, torch.bfloat16)
    return [
        *(Case("gradients", kind, 1, 8, 8, 2048, 2048, dim, dtype) for dtype in both for dim in (64, 128) for kind in kinds[:2]),
        *(Case("gradients", kind, 1, 8, 8, 2048, 2048, 64, dtype) for dtype in both for kind in kinds[2:]),
    ]


class Gradients:
    """The gradients of one case, in all the ways that are compared."""

    def __init__(self, case: Case) -> None:
        self.problem = Problem(case)
        self.inputs = [x.requires_grad_() for x in (self.problem.q, self.problem.k, self.problem.v)]
        generator = torch.Generator().manual_seed(1)
        self.upstream = torch.randn(self.problem.q.shape, generator=generator).to(case.dtype)

    def formula(self, dtype: torch.dtype) -> list[torch.Tensor]:
        """Autograd through the formula in plain PyTorch, head by head."""
        p = self.problem
        parts = []
        for head in range(p.case.heads):
            x = [t.detach()[:, head].to(dtype).requires_grad_() for t in self.inputs]
            o = p._eager_head(x[0], x[1], x[2], head)
            parts.append(torch.autograd.grad(o, x, self.upstream[:, head].to(dtype)))
        return [torch.stack(heads, dim=1) for heads in zip(*parts, strict=True)]

    def systems(self) -> dict[str, Call | str]:
        """Their forward passes; or why there is none."""
        sdpa = self.problem.sdpa()
        return {"attn_mlir": self.problem.ours(), "sdpa": sdpa if isinstance(sdpa, str) else sdpa[1]}

    def of(self, o: torch.Tensor, keep: bool = False) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(o, self.inputs, self.upstream, retain_graph=keep)

    def flops(self, measure: str) -> float:
        """`Problem.flops` is of two products."""
        products = _BACKWARD + (_FORWARD if measure == "both" else 0)
        return self.problem.flops / 2 * products


def flex_reason() -> str:
    """Why FlexAttention has no gradients here: what it says itself, compiled and not."""
    from torch.nn.attention.flex_attention import flex_attention

    q, k, v = (torch.randn(1, 2, 32, 16, requires_grad=True) for _ in range(3))
    reasons = []
    compiled: Any = torch.compile(flex_attention, dynamic=False)
    for how, call in (("compiled", compiled), ("not compiled", flex_attention)):
        try:
            torch.autograd.grad(call(q, k, v).sum(), [q, k, v])
        except Exception as error:
            lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()]
            told = next((line for line in lines if "support" in line.lower()), lines[0] if lines else "")
            reasons.append(f"{how}: {type(error).__name__}: {told[:160]}")
    return "; ".join(reasons) if reasons else "works, but is not compared"


def allowed(case: Case, wanted: Sequence[torch.Tensor], eager: Sequence[torch.Tensor]) -> list[float]:
    """The largest error of each gradient: 2e-5 of its size in f32; in bf16 twice what PyTorch's formula has, and rounding."""
    sizes = [w.abs().max().item() for w in wanted]
    if case.dtype == torch.float32:
        return [2e-5 * size for size in sizes]
    rounding = torch.finfo(case.dtype).eps / 2
    return [2 * _error(e, w) + rounding * size for e, w, size in zip(eager, wanted, sizes, strict=True)]


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    largest = (got.double() - wanted).abs().max().item()
    return largest if largest == largest else float("inf")


def run_case(case: Case, args: argparse.Namespace, in_turn: InTurn) -> list[dict[str, Any]]:
    """Checks and times one case: a result for each measure."""
    gradients = Gradients(case)
    wanted, eager = gradients.formula(torch.float64), gradients.formula(case.dtype)
    bounds = allowed(case, wanted, eager)
    found: dict[str, dict[str, Any]] = {}
    forward: dict[str, Call] = {}
    kept: dict[str, torch.Tensor] = {}
    for name, system in gradients.systems().items():
        if isinstance(system, str):
            found[name] = {"reason": system}
            continue
        start = time.perf_counter()
        try:
            kept[name] = system()
            got = gradients.of(kept[name], keep=True)
        except Exception as failure:
            found[name] = {
                "reason": f"fails: {type(failure).__name__}: {str(failure).strip().splitlines()[0][:100] if str(failure) else ''}"
            }
            continue
        errors = [_error(g, w) for g, w in zip(got, wanted, strict=True)]
        found[name] = {"first_s": time.perf_counter() - start, "errors": errors}
        if all(error <= bound for error, bound in zip(errors, bounds, strict=True)):
            forward[name] = system
        else:
            found[name]["reason"] = (
                f"wrong: errors {', '.join(f'{e:.1e}' for e in errors)}, allowed {', '.join(f'{b:.1e}' for b in bounds)}"
            )
    calls: dict[str, dict[str, Call]] = {
        "both": {name: lambda system=system: gradients.of(system()) for name, system in forward.items()},
        "backward": {name: lambda o=kept[name]: gradients.of(o, keep=True) for name in forward},
    }
    results = []
    for measure, systems in calls.items():
        timed = {name: dict(values) for name, values in found.items()}
        for name, samples in in_turn(systems, args.rounds, args.seconds).items():
            timed[name] |= {"ms": 1e3 * statistics.median(samples), "samples_ms": [1e3 * s for s in samples]}
        results.append({
            "case": case.name, "element": case.element, "measure": measure, "bounds": bounds,
            "flops": gradients.flops(measure), "systems": timed,
        })  # fmt: skip
    return results


def measure(args: argparse.Namespace, in_turn: InTurn) -> list[dict[str, Any]]:
    """All cases that are asked for."""
    results = []
    for case in cases(args.quick):
        if args.only in case.name:
            for result in run_case(case, args, in_turn):
                results.append(result)
                told = [f"{n} {s['ms']:.3f} ms" if "ms" in s else f"{n} {s['reason']}" for n, s in result["systems"].items()]
                print(f"{case.name}, {MEASURES[result['measure']]}: {'; '.join(told)}", file=sys.stderr, flush=True)
    return results


def compare(result: dict[str, Any], limits: dict[str, Any]) -> None:
    """Adds the floor, which is the products at the machine's peak, and the ratio to SDPA."""
    result["floor_ms"] = 1e-6 * result["flops"] / limits[result["element"]]["measured_gflops"]
    ours, peer = (result["systems"][name].get("ms") for name in ("attn_mlir", "sdpa"))
    if ours is not None:
        result |= {"gflops": 1e-6 * result["flops"] / ours, "gap": ours / result["floor_ms"], "ratio": peer / ours if peer else None}


def row(result: dict[str, Any]) -> list[str]:
    """The cells of one line."""
    ours, peer = result["systems"]["attn_mlir"], result["systems"]["sdpa"]
    numbers = (ours.get("ms"), peer.get("ms"), result.get("ratio"), result.get("gflops"), result["floor_ms"], result.get("gap"))
    forms = (".2f", ".2f", ".2f", ".0f", ".2f", ".2f")
    cells = ["-" if n is None else format(n, form) for n, form in zip(numbers, forms, strict=True)]
    first = f"{ours['first_s']:.2f}" if "first_s" in ours else "-"
    return [result["case"], MEASURES[result["measure"]], *cells, first]


def notes(report: dict[str, Any]) -> list[str]:
    """Why a system has no time."""
    reasons = {
        f"{name}: {s['reason']} ({r['case']})": None for r in report["gradients"] for name, s in r["systems"].items() if "reason" in s
    }
    return [*reasons, f"FlexAttention has no gradients on the CPU; {report['flex_reason']}"]
