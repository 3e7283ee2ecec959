"""Runs small attentions under compute-sanitizer: python benchmarks/nvidia_sanitize.py [--tools memcheck,racecheck] [--only TEXT].

Each tool runs one process with every shape; kernels are compiled before, so that the tool sees cached ones. Exits with 1 when a tool
reports an error, or a result is wrong.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

TOOLS = {
    "memcheck": ["--leak-check", "no"],
    "racecheck": ["--racecheck-report", "all"],
    "synccheck": [],
    "initcheck": [],
}
_WORDS = ("Invalid", "Race reported", "Error:", "error:", "hazard", "Barrier error", "Uninitialized")


def shapes() -> list[dict[str, Any]]:
    """Small problems that take every way through the kernels: tails, masks, groups, odd columns, several blocks."""
    from attn_mlir import masks, mods, rows

    causal = masks.causal()
    return [
        {"name": "full 256 D64", "size": (1, 2, 2, 256, 256, 64, 64)},
        {"name": "causal 384 D128", "size": (1, 2, 2, 384, 384, 128, 128), "mask_mod": causal},
        {"name": "causal tail 333 D128", "size": (2, 1, 1, 333, 333, 128, 128), "mask_mod": causal},
        {"name": "short 5 D64", "size": (1, 1, 1, 5, 5, 64, 64), "mask_mod": causal},
        {"name": "one query 300 D64", "size": (1, 4, 2, 1, 300, 64, 64)},
        {"name": "groups 200x264 D80", "size": (1, 4, 2, 200, 264, 80, 96), "mask_mod": causal},
        {"name": "wide 192:128 D192", "size": (1, 1, 1, 256, 256, 192, 128), "mask_mod": causal},
        {"name": "window 400 D64", "size": (1, 2, 2, 400, 400, 64, 64), "mask_mod": masks.sliding_window(100)},
        {"name": "alibi 300 D64", "size": (1, 2, 2, 300, 300, 64, 64), "mask_mod": causal, "score_mod": _alibi(mods)},
        {"name": "sigmoid 300 D64", "size": (1, 2, 2, 300, 300, 64, 64), "mask_mod": causal, "row": rows.sigmoid},
        {"name": "retention 300 D128", "size": (1, 2, 2, 300, 300, 128, 128), "mask_mod": causal, "row": rows.retention},
    ]


def _alibi(mods: Any) -> Callable[..., Any]:
    return mods.alibi(mods.alibi_slopes(2, "cuda"))


def run_all(only: str) -> int:
    """Runs forward and backward of each shape, and compares them with a dense computation in PyTorch where it is softmax."""
    import torch

    import attn_mlir

    wrong = 0
    for shape in shapes():
        if only not in shape["name"]:
            continue
        batch, heads, kv_heads, queries, keys, columns, value = shape["size"]
        generator = torch.Generator("cuda").manual_seed(0)

        def normal(*size: int, generator: torch.Generator = generator) -> torch.Tensor:
            return torch.randn(*size, generator=generator, device="cuda", dtype=torch.float16).requires_grad_()

        q, k, v = normal(batch, heads, queries, columns), normal(batch, kv_heads, keys, columns), normal(batch, kv_heads, keys, value)
        options = {name: option for name, option in shape.items() if name not in ("name", "size")}
        o = attn_mlir.attention(q, k, v, **options)
        gradients = torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        torch.cuda.synchronize()
        told = "finite" if all(bool(torch.isfinite(t).all()) for t in (o, *gradients)) else "NOT FINITE"
        if not set(options) - {"mask_mod"}:
            error = _error(q, k, v, o, options.get("mask_mod"))
            told += f", error {error:.1e}"
            wrong += error > 5e-3
        wrong += "NOT" in told
        print(f"{shape['name']}: {told}", flush=True)
    return wrong


def _error(q: Any, k: Any, v: Any, o: Any, mask: Callable[..., Any] | None) -> float:
    import torch

    group = q.shape[1] // k.shape[1]
    k, v = (x.detach().float().repeat_interleave(group, 1) for x in (k, v))
    scores = q.detach().float() @ k.mT * q.shape[3] ** -0.5
    if mask is not None:
        index = [torch.arange(n, device="cuda") for n in (q.shape[2], k.shape[2])]
        scores = scores.masked_fill(~mask(0, 0, index[0][:, None], index[1][None, :]), -torch.inf)
    return (torch.softmax(scores, -1) @ v - o.detach().float()).abs().max().item()


def check(tool: str, only: str, timeout: int) -> bool:
    """Whether a tool finds nothing."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # Only kernels of ours are looked at: PyTorch's take long, and are not the question.
    filters = ["--kernel-name", "regex:attention.*", "--print-limit", "20", "--error-exitcode", "99"]
    inner = [sys.executable, str(Path(__file__).resolve()), "--inner", "--only", only]
    command = [sanitizer, "--tool", tool, *TOOLS[tool], *filters, *inner]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{tool}: {type(error).__name__}: {str(error)[:200]}")
        return False
    lines = (done.stdout + done.stderr).splitlines()
    found = [line for line in lines if any(word in line for word in _WORDS)]
    summary = [line for line in lines if "SUMMARY" in line]
    ran = sum(": finite" in line for line in lines)
    print(f"{tool}: exit code {done.returncode}, {ran} shapes ran; {' '.join(summary) or 'no summary'}")
    print("\n".join((found or (lines if done.returncode else []))[-15:]), flush=True)
    return done.returncode == 0 and bool(ran)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--timeout", type=int, default=300, help="seconds for each tool")
    parser.add_argument("--inner", action="store_true", help="just run the shapes")
    args = parser.parse_args(given)
    if args.inner:
        return run_all(args.only)
    if run_all(args.only):
        print("results are wrong without a tool")
        return 1
    return 0 if all([check(tool, args.only, args.timeout) for tool in args.tools.split(",")]) else 1


if __name__ == "__main__":
    raise SystemExit(main())
