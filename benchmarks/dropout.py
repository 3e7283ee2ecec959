"""What dropout costs: forward and backward beside those without it, in turn: python benchmarks/dropout.py --device cuda.

--device cpu|cuda    --dims 64,128    --length 4096    --heads 16    --batch 4    --dtype bf16    --causal    --p 0.1    --rounds 20
--threads 1          of the CPU       --json FILE      milliseconds and ratios
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import attn_mlir

_DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
BARS = {"cuda": (0.7, 0.75), "cpu": (0.7, 0.7)}
"""The least speed of forward and backward, relative to those without dropout."""


def timed(run: Callable[[], Any], device: str, launches: int) -> float:
    """Milliseconds a call."""
    if device == "cpu":
        start = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - start)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / launches


def calls(options: argparse.Namespace, dim: int) -> dict[str, Callable[[], Any]]:
    """Forward and backward, without ("plain") and with dropout."""
    shape = (options.batch, options.heads, options.length, dim)
    q, k, v = (torch.randn(shape, device=options.device, dtype=_DTYPES[options.dtype]).requires_grad_() for _ in range(3))
    mask = attn_mlir.masks.causal() if options.causal else None
    do = torch.randn_like(q)
    made: dict[str, Callable[[], Any]] = {}
    for name, p in (("plain", 0.0), ("dropout", options.p)):

        def forward(p: float = p) -> torch.Tensor:
            return attn_mlir.attention(q, k, v, mask_mod=mask, dropout_p=p, dropout_seed=(1, 2))

        def without_graph(forward: Callable[[], torch.Tensor] = forward) -> torch.Tensor:
            with torch.no_grad():
                return forward()

        o = forward()
        made[f"{name} forward"] = without_graph
        made[f"{name} backward"] = lambda o=o: torch.autograd.grad(o, (q, k, v), do, retain_graph=True)
    return made


def measure(options: argparse.Namespace, dim: int) -> dict[str, float]:
    """The least time of each, and the relative speeds."""
    made, best = calls(options, dim), {}
    for number in range(options.rounds + 2):
        names = list(made) if number % 2 else list(made)[::-1]
        for name in names:
            taken = timed(made[name], options.device, 10)
            if number > 1:
                best[name] = min(best.get(name, taken), taken)
    for part in ("forward", "backward"):
        best[part] = best[f"plain {part}"] / best[f"dropout {part}"]
    return best


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=list(BARS))
    made.add_argument("--dims", default="64,128")
    for name, value in (("length", 4096), ("heads", 16), ("batch", 4), ("rounds", 20), ("threads", 0)):
        made.add_argument(f"--{name}", type=int, default=value)
    made.add_argument("--dtype", default="bf16", choices=list(_DTYPES))
    made.add_argument("--p", type=float, default=0.1)
    made.add_argument("--causal", action="store_true")
    made.add_argument("--json", default="")
    return made


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    """Measures and prints; returns what was measured, by head dimension."""
    options = parser().parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    found = {}
    for dim in map(int, options.dims.split(",")):
        found[str(dim)] = measured = measure(options, dim)
        for part, bar in zip(("forward", "backward"), BARS[options.device], strict=True):
            times = f"{measured[f'plain {part}']:.3f} ms, with dropout {measured[f'dropout {part}']:.3f} ms"
            print(f"D {dim:4} {part:9} {times}: {measured[part]:.2f} of the speed (bar {bar})")
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
