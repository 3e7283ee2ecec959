"""Checks, times and documents the variants of the gallery.

    python examples/gallery/run.py [names] [--device cpu] [--check] [--time] [--docs]

Without options it checks. --docs keeps what was measured in measured.json and writes docs/gallery.md, docs/gallery/ and their figures.
"""

import argparse
import datetime
import functools
import json
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
from _common import HERE, Sizes, Variant, load, relative_errors
from _pages import FIGURES, MEASURED, NAMES, pages
from _pictures import picture

TIMED = Sizes(batch=1, heads=4, kv_heads=2, length=512, dim=64)
ROUNDS = 5
LIMITS = {torch.float32: 2e-5, torch.float64: 1e-12}


def check(variant: Variant, device: str) -> dict[str, float]:
    """The errors in float32, on a GPU those in float16. Raises SystemExit where one is too large."""
    dtypes = {torch.float16: 2e-2} if device != "cpu" else LIMITS
    found: dict[str, float] = {}
    for dtype, limit in dtypes.items():
        torch.manual_seed(0)
        errors = relative_errors(variant, Sizes(), dtype, device)
        worst = max((name for name in errors if name != "o"), key=lambda name: errors[name])
        print(f"{variant.name:16} {str(dtype)[6:]}: o {errors['o']:.1e}, gradients up to {errors[worst]:.1e} ({worst})", flush=True)
        if not max(errors.values()) <= limit:
            raise SystemExit(f"{variant.name}: more than {limit:.0e}")
        found = found or {"o": errors["o"], "gradient": errors[worst]}
    return found


@torch.no_grad()
def measure(variant: Variant, device: str) -> dict[str, float]:
    """Milliseconds of a forward call, and its ratio to that of the formula and of compiled FlexAttention, timed in turn."""
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.float16
    drawn = {name: x.to(device, dtype if x.is_floating_point() else x.dtype) for name, x in variant.inputs(TIMED).items()}
    calls: dict[str, Callable[[], Any]] = {"ms": lambda: variant.run(**drawn), "eager": lambda: variant.reference(**drawn)}
    if variant.flex is not None and _can_compile(device):
        calls["flex"] = _flex(variant.flex(**drawn), **{name: drawn[name] for name in "qkv"})
        torch.testing.assert_close(calls["flex"](), calls["ms"](), rtol=1e-3, atol=1e-4)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            _wait(device)
            start = time.perf_counter()
            call()
            _wait(device)
            if turn:
                times[name].append(1e3 * (time.perf_counter() - start))
    found = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: found["ms"] / value for name, value in found.items() if name != "ms"}
    told = ", ".join(f"{ratio:.2f} of {name}" for name, ratio in ratios.items())
    print(f"{variant.name:16} forward {found['ms']:.2f} ms, {told}", flush=True)
    return {"ms": round(found["ms"], 3), **{name: round(ratio, 3) for name, ratio in ratios.items()}}


def _flex(mods: dict[str, Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Callable[[], torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(mods["mask_mod"], len(q), q.shape[1], q.shape[2], k.shape[2], device=str(q.device))
    torch.compiler.reset()  # otherwise the recompile limit would turn to eager code after some variants
    compiled = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    return lambda: compiled(q, k, v, score_mod=mods.get("score_mod"), block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


@functools.cache
def _can_compile(device: str) -> bool:
    """Whether torch.compile has what it needs for the device; a CPU's code needs a C++ compiler."""
    found = device != "cpu" or any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++"))
    if not found:
        print("no C++ compiler (g++): FlexAttention is left out")
    return found


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def _about(device: str) -> str:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True, check=False).stdout.strip()
    machine = torch.cuda.get_device_name() if device != "cpu" else f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    dtype = "float32" if device == "cpu" else "float16"
    shape = f"batch {TIMED.batch}, {TIMED.heads} heads ({TIMED.kv_heads} of keys), length {TIMED.length}, D {TIMED.dim}, {dtype}"
    return (
        f"Taken on {datetime.datetime.now(datetime.UTC):%Y-%m-%d} at {commit or 'an unknown commit'}, torch {torch.__version__}, {device} "
        f"({machine}), {torch.get_num_threads()} thread(s):\n"
        f"{shape}; medians of {ROUNDS} calls in turn in one process.\n"
        "The machine was shared with other work: take ratios as an indication, and measure your own."
    )


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*NAMES, []], metavar="names", help="by default all: " + ", ".join(NAMES))
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--check", action="store_true", help="forward and backward against the formula")
    parser.add_argument("--time", action="store_true", help="forward, in turn with the formula and compiled FlexAttention")
    parser.add_argument("--docs", action="store_true", help="write the pages; with --check and --time what they say is measured first")
    options = parser.parse_args(argv)
    stored = json.loads(MEASURED.read_text(encoding="utf-8")) if MEASURED.exists() else {"about": "", "variants": {}}
    for name in options.names or NAMES:
        variant = load(name)
        known = stored["variants"].setdefault(name, {})
        if options.check or not (options.time or options.docs):
            known.update(check(variant, options.device))
        if options.time:
            known.pop("flex", None)
            known.update(measure(variant, options.device))
        if options.docs:
            FIGURES.mkdir(parents=True, exist_ok=True)
            (FIGURES / f"{name}.svg").write_text(picture(variant), encoding="utf-8")
    if options.docs:
        if options.time:
            stored["about"] = _about(options.device)
        MEASURED.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        for path, text in pages().items():
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
