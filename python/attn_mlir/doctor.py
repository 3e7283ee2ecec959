"""`python -m attn_mlir.doctor`: what works on this machine, and why not. Exits with 1 where attention on the CPU does not.

python -m attn_mlir.doctor              all findings, and a small attention with its gradients on each device
python -m attn_mlir.doctor --emulated   also on the emulated AMD GPU, which compiles for some seconds
python -m attn_mlir.doctor --json       the same for programs
"""

import argparse
import dataclasses
import importlib
import importlib.util
import json
import math
import platform
import sys
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from attn_mlir.findings import Finding, tried

OPTIONAL = {
    "transformers": "attn_mlir.integrations.transformers",
    "matplotlib": "figures of benchmarks",
    "lit": "tests of the IR",
}
"""Packages that nothing else needs, and what does."""
_MARKS = {"ok": "ok  ", "note": "note", "missing": "  - ", "wrong": "FAIL"}
_LIMITS = {"float32": 2e-5, "float16": 5e-3}
_CPU = "attention on cpu"


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the report; 0 where attention on the CPU is right, else 1."""
    parser = argparse.ArgumentParser(prog="python -m attn_mlir.doctor", description="What works on this machine, and why not.")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--emulated", action="store_true", help='compute on device="hip-emulated", too')
    options = parser.parse_args(arguments)
    report = examine(options.emulated)
    if options.json:
        print(json.dumps({title: [dataclasses.asdict(finding) for finding in found] for title, found in report.items()}, indent=1))
    else:
        print("\n".join(_lines(report)))
    works = any(finding.name == _CPU and finding.state == "ok" for finding in report["what computes"])
    return 0 if works else 1


def examine(emulated: bool = False) -> dict[str, list[Finding]]:
    """The findings by what they are about, in the order of the report; `emulated` also computes on the emulated AMD GPU."""
    report = {"installation": _installation(), "optional packages": [_package(name) for name in OPTIONAL], "kernel cache": [_cache()]}
    report |= _backends()
    report["what computes"] = [
        tried(f"attention on {device}", lambda device=device: _compute(device), "wrong") for device in _devices(emulated)
    ]
    return report


def _installation() -> list[Finding]:
    return [
        Finding("Python", "ok", f"{platform.python_version()} on {platform.system()} {platform.machine()}, {sys.executable}"),
        tried("attn-mlir", _own, "wrong"),
        tried("torch", _torch, "wrong"),
        tried("numpy", lambda: version("numpy"), "wrong"),
        tried("MLIR bindings", _bindings, "wrong"),
    ]


def _own() -> str:
    import attn_mlir

    root = Path(attn_mlir.__file__).parent
    lacking = [name for name in ("dialects", "passes", "backends") if not (root / name / "__init__.py").is_file()]
    if lacking:
        links = "a checkout needs symbolic links (git config core.symlinks true), a wheel holds these folders"
        raise FileNotFoundError(f"{root} lacks {', '.join(lacking)}: {links}")
    return f"{attn_mlir.__version__}, {root}"


def _torch() -> str:
    import torch

    built = f"CUDA {torch.version.cuda}" if torch.version.cuda else f"ROCm {torch.version.hip}" if torch.version.hip else "CPU alone"
    return f"{torch.__version__}, built for {built}"


def _bindings() -> str:
    try:
        bindings = importlib.import_module("attn_mlir.mlir")
    except ImportError as error:
        raise ImportError(f"{error}: pip install torch-mlir==20261001, whose wheels hold them") from error
    package = bindings.ir.__name__.partition(".")[0]
    number = next((version(name) for name in ("torch-mlir", "mlir-python-bindings") if _is_installed(name)), "of your own build")
    context = bindings.ir.Context()
    with context, bindings.ir.Location.unknown():
        bindings.ir.Module.parse("func.func @f() { return }")
    return f"{package} {number}"


def _is_installed(distribution: str) -> bool:
    try:
        version(distribution)
    except PackageNotFoundError:
        return False
    return True


def _package(name: str) -> Finding:
    """Whether a package is there, without importing it."""
    if importlib.util.find_spec(name) is None:
        return Finding(name, "missing", f"only needed by {OPTIONAL[name]}")
    return Finding(name, "ok", version(name) if _is_installed(name) else "there")


def _cache() -> Finding:
    try:
        cache = importlib.import_module("attn_mlir.backends.disk_cache")
        own_files = importlib.import_module("attn_mlir.backends.own_files")
        folder = cache.directory()
    except Exception as error:
        return Finding("folder", "wrong", str(error))
    if folder is None:
        return Finding("folder", "note", "off: every process compiles again (ATTN_MLIR_CACHE)")
    if not folder.exists():
        return Finding("folder", "ok", f"{folder} is made when there is something to keep")
    with own_files.opened(folder) as handle:
        if handle is None:
            return Finding("folder", "wrong", f"{folder} is not used: it must be a folder that this user alone may write to")
    sizes = [path.stat().st_size for path in folder.iterdir() if path.is_file()]
    return Finding("folder", "ok", f"{folder}: {len(sizes)} files, {sum(sizes) / 2**20:.1f} MiB")


def _backends() -> dict[str, list[Finding]]:
    try:
        backends = importlib.import_module("attn_mlir.backends").load_backends().values()
    except Exception as error:
        return {"backends": [Finding("backends", "wrong", str(error))]}
    report = {}
    for backend in backends:
        if backend.doctor is not None:
            try:
                report[f"backend {backend.name}"] = backend.load(backend.doctor)()
            except Exception as error:  # a report of what is broken goes on
                report[f"backend {backend.name}"] = [Finding(backend.name, "wrong", f"{type(error).__name__}: {error}")]
    return report


def _devices(emulated: bool) -> list[str]:
    devices = ["cpu", "hip-emulated"] if emulated else ["cpu"]
    try:
        torch = importlib.import_module("torch")
        return [*devices, "cuda"] if torch.cuda.is_available() else devices
    except ImportError:
        return devices


def _compute(device: str) -> str:
    """Causal softmax attention with grouped heads and an odd length, forward and backward, beside the formula in float64."""
    import torch

    import attn_mlir

    half = device != "cpu"
    dtype, place = torch.float16 if half else torch.float32, "cuda" if device == "cuda" else "cpu"
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, 4, 17, 32), (1, 2, 17, 32), (1, 2, 17, 32))
    exact = [torch.randn(*shape, generator=generator).to(dtype).double().requires_grad_() for shape in shapes]
    given: list[Any] = [x.detach().to(place, dtype).requires_grad_() for x in exact]
    begin = time.perf_counter()
    target = None if device == place else device
    o = attn_mlir.attention(*given, mask_mod=attn_mlir.masks.causal(), device=target)
    do = torch.randn(o.shape, generator=generator).to(dtype)
    made = [o, *torch.autograd.grad(o, given, do.to(place))]
    if place == "cuda":
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begin
    wanted = _dense(exact)
    pairs = zip(made, [wanted, *torch.autograd.grad(wanted, exact, do.double())], strict=True)
    error = max(((x.detach().cpu().double() - y.detach()).abs().max() / y.detach().abs().max()).item() for x, y in pairs)
    name = str(dtype).removeprefix("torch.")
    if not error <= _LIMITS[name]:
        raise ArithmeticError(
            f"forward and backward in {name} are off by {error:.1e}, relative to float64: please report it with this output"
        )
    return f"forward and backward in {name} agree with float64 to {error:.1e}; {seconds:.1f} s with compiling"


def _dense(qkv: Sequence[Any]) -> Any:
    q, k, v = qkv
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    present = scores.new_ones(scores.shape[-2:]).tril().bool()
    return scores.masked_fill(~present, -math.inf).softmax(-1) @ v


def _lines(report: dict[str, list[Finding]]) -> list[str]:
    lines = []
    for title, found in report.items():
        width = max(len(finding.name) for finding in found)
        lines += [title, *(f"  {_MARKS[finding.state]} {finding.name:{width}}  {finding.text}" for finding in found)]
    return lines


if __name__ == "__main__":
    sys.exit(main())
