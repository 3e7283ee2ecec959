"""Small attentions and linear attentions under compute-sanitizer: nvidia_sanitize.py [--tools memcheck,racecheck] [--only TEXT].

Kernels are compiled and results checked before, without a tool. Then every tool runs the shapes in a few processes at once, which find
the kernels in the cache. Exits with 1 when a tool reports an error, a process does not end in time, or a result is wrong.

The kernels are built so that every lane of a warp arrives where the shipped code lets one arrive for all (`attn::warp_arrive`): racecheck
knows no order between what a lane has read and the arrival of another. All else is the same.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import nvidia_sanitize_linear

TOOLS = {
    "memcheck": ["--leak-check", "no"],
    "racecheck": ["--racecheck-report", "all"],
    "synccheck": [],
    "initcheck": [],
}
_PROCESSES = 4
"""For each tool; PyTorch takes longer to start under a tool than small kernels to run."""
_DEFINE = "-DATTN_EVERY_LANE_ARRIVES"
_MARK = b"attn: every lane arrives"
"""What code that was built with it holds."""
_WORDS = ("Invalid", "Race reported", "Read Thread", "Write Thread", "Error:", "error:", "hazard", "Barrier error", "Uninitialized")


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
    return mods.alibi(mods.alibi_slopes(2, _device()))


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def problems() -> dict[str, Callable[[str], tuple[list[Any], float]]]:
    """What runs each shape on a device, by name: results and gradients, and how wrong the first is (0 where there is no formula)."""
    found: dict[str, Callable[[str], tuple[list[Any], float]]] = {shape["name"]: partial(_attention, shape) for shape in shapes()}
    return found | {scans.name: scans.run for scans in nvidia_sanitize_linear.shapes()}


def run_all(names: Sequence[str]) -> int:
    """Runs forward and backward of the named shapes, compared with a formula where there is one; how many are wrong."""
    import torch

    from attn_mlir.backends.nvidia import compile as nvcc
    from attn_mlir.errors import UnsupportedError

    nvcc._LANGUAGE += (_DEFINE,)
    nvcc._NVRTC_LANGUAGE += (_DEFINE,)
    wrong, built = 0, watch_builds()
    for name, run in problems().items():
        if name not in names:
            continue
        try:
            results, error = run(_device())
        except UnsupportedError as refused:  # without TileLang
            print(f"{name}: skipped, {refused}", flush=True)
            continue
        told = "finite" if all(bool(torch.isfinite(t).all()) for t in results) else "NOT FINITE"
        told += f", error {error:.1e}" if error else ""
        wrong += "NOT" in told or error > 5e-3
        if not built or not all(built):  # kernels that several shapes share are loaded once
            wrong, told = wrong + 1, told + f", NOT BUILT with {_DEFINE}"
        print(f"{name}: {told}", flush=True)
    return wrong


def _attention(shape: dict[str, Any], device: str) -> tuple[list[Any], float]:
    import torch

    import attn_mlir

    batch, heads, kv_heads, queries, keys, columns, value = shape["size"]
    generator = torch.Generator(device).manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, device=device, dtype=torch.float16).requires_grad_()

    q, k, v = normal(batch, heads, queries, columns), normal(batch, kv_heads, keys, columns), normal(batch, kv_heads, keys, value)
    options = {name: option for name, option in shape.items() if name not in ("name", "size")}
    o = attn_mlir.attention(q, k, v, **options)
    error = 0.0 if set(options) - {"mask_mod"} else _error(q, k, v, o, options.get("mask_mod"))
    return [o, *torch.autograd.grad(o, (q, k, v), torch.ones_like(o))], error


def watch_builds() -> list[bool]:
    """A list that tells of each kernel with warps that arrive, when it is loaded, whether every lane of them does."""
    from attn_mlir.backends.nvidia import program

    found: list[bool] = []
    load = program.CudaLauncher

    def loaded(kernel: Any, code: Any, binary: Any, *place: Any) -> Any:
        if "attn::warp_arrive" in code.source.rpartition("} // namespace attn")[2]:
            found.append(_MARK in binary.code)
        return load(kernel, code, binary, *place)

    setattr(program, "CudaLauncher", loaded)
    return found


def _error(q: Any, k: Any, v: Any, o: Any, mask: Callable[..., Any] | None) -> float:
    import torch

    group = q.shape[1] // k.shape[1]
    k, v = (x.detach().float().repeat_interleave(group, 1) for x in (k, v))
    scores = q.detach().float() @ k.mT * q.shape[3] ** -0.5
    if mask is not None:
        index = [torch.arange(n, device=o.device) for n in (q.shape[2], k.shape[2])]
        scores = scores.masked_fill(~mask(0, 0, index[0][:, None], index[1][None, :]), -torch.inf)
    return (torch.softmax(scores, -1) @ v - o.detach().float()).abs().max().item()


def check(tool: str, names: Sequence[str], timeout: int) -> bool:
    """Whether a tool finds nothing in shapes of these names."""
    sanitizer = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    # Only kernels of ours are looked at: PyTorch's take long, and are not the question.
    filters = ["--kernel-name", "kns=attention", "--print-limit", "20", "--error-exitcode", "99"]
    start = time.perf_counter()
    try:
        done = _run([sanitizer, "--tool", tool, *TOOLS[tool], *filters], names, timeout)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{tool}, {', '.join(names)}: {type(error).__name__}: {str(error)[:200]}", flush=True)
        return False
    lines = (done.stdout + done.stderr).splitlines()
    found = [line for line in lines if any(word in line for word in _WORDS)]
    summary = [line for line in lines if "SUMMARY" in line]
    ran = sum(": finite" in line for line in lines)
    told = f"{tool}, {', '.join(names)}: exit code {done.returncode}, {ran} shapes in {time.perf_counter() - start:.0f} s; "
    print("\n".join([told + (" ".join(summary) or "no summary"), *(found or (lines[-15:] if done.returncode else []))[:15]]), flush=True)
    return done.returncode == 0 and ran == len(names)


def prepare(name: str, timeout: int) -> str:
    """Compiles what a shape needs: "right", "wrong", or "skipped" where a part is not installed."""
    try:
        done = _run([], [name], timeout)
    except subprocess.TimeoutExpired:
        print(f"{name}: does not end within {timeout} s, without a tool", flush=True)
        return "wrong"
    print((done.stdout if done.returncode == 0 else done.stdout + done.stderr[-2000:]).rstrip(), flush=True)
    return "wrong" if done.returncode else "skipped" if ": skipped" in done.stdout else "right"


def _run(tool: Sequence[str], names: Sequence[str], timeout: int) -> subprocess.CompletedProcess[str]:
    """A process that runs shapes."""
    command = [*tool, sys.executable, str(Path(__file__).resolve()), "--inner", *names]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tools", default="memcheck,racecheck")
    parser.add_argument("--only", default="", metavar="TEXT", help="shapes whose name holds this")
    parser.add_argument("--timeout", type=int, default=100, help="seconds for each process")
    parser.add_argument("--inner", nargs="+", metavar="NAME", help="just run these shapes")
    args = parser.parse_args(given)
    if args.inner:
        return 1 if run_all(args.inner) else 0
    names = [name for name in problems() if args.only in name]
    if not names:
        parser.error(f"no shape's name holds {args.only!r}")
    with tempfile.TemporaryDirectory() as cache, ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        os.environ["ATTN_MLIR_CACHE"] = cache  # these programs are compiled in another way
        prepared = dict(zip(names, pool.map(lambda name: prepare(name, args.timeout), names), strict=True))
        if "wrong" in prepared.values():
            print("results are wrong without a tool")
            return 1
        names = [name for name, how in prepared.items() if how == "right"]
        parts = [(tool, names[i::_PROCESSES]) for tool in args.tools.split(",") for i in range(min(_PROCESSES, len(names)))]
        return 0 if all(list(pool.map(lambda part: check(part[0], part[1], args.timeout), parts))) else 1


if __name__ == "__main__":
    raise SystemExit(main())
