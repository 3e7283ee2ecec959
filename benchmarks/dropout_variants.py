"""Kernels of dropout on Hopper beside each other, compiled ahead: checks the bits, results and gradients of each, then times them in turn.

python benchmarks/dropout_variants.py build FOLDER    compiles here, without a GPU (ATTN_MLIR_CUDA_COMPILER=nvcc)
python benchmarks/dropout_variants.py run FOLDER      on the GPU: needs torch and the driver, neither a compiler nor MLIR's bindings

Each variant is checked in a process of its own, so that one that fails or hangs does not end the others. One table at the end of each part,
written as it grows; FOLDER holds a .zip of machine code and a .json for each program.
"""

import argparse
import importlib.abc
import importlib.machinery
import json
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import torch

ROOT = Path(__file__).resolve().parent.parent
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "own": {"dropout": "own"},
    "lanes": {"dropout": "lanes"},
}
"""Choices of schedules: without dropout; bits by the consumers' lanes, of each map or once weights are packed."""
PAIRS = {name: VARIANTS[name] for name in ("plain", "own", "lanes")}
"""Those of the backward pass."""
FORWARD = {"lanes": VARIANTS["lanes"]}
"""The forward pass of training, which saves row values: the backward pass of every variant takes those."""
FUNCTIONS: dict[str, dict[str, dict[str, Any]]] = {"inference": VARIANTS, "backward": PAIRS, "forward": FORWARD}
STANDS = "lanes"
"""The variant that stands for one that a function has not."""
DIMS, MASKS, P, SEED = (64, 128), ("full", "causal"), 0.1, (123456789012345, 77)
SIZES = ((4, 16, 4096), (2, 16, 8192))
CHECK_SECONDS, TIME_SECONDS = 60, 85


def names(function: str, dtype: str) -> Iterator[tuple[str, str, int, str]]:
    """Name, variant, head dimension and mask of every program of a function."""
    for variant in FUNCTIONS[function]:
        for dim in DIMS:
            for mask in MASKS:
                yield f"{function}-{variant}-{dim}-{mask}-{dtype}", variant, dim, mask


# ---- without a GPU


def build(folder: Path, only: str) -> None:
    """Compiles every program whose name begins with `only`."""
    folder.mkdir(parents=True, exist_ok=True)
    for function in FUNCTIONS:
        for dtype in ("f16", "bf16"):
            for name, variant, dim, mask in names(function, dtype):
                few = dtype == "bf16" and (variant != STANDS or mask != "full")
                if name.startswith(only) and not few and not (folder / f"{name}.zip").exists():
                    print(name, _build(folder / name, function, variant, (dim, mask, dtype)), flush=True)


def _build(to: Path, function: str, variant: str, form: tuple[int, str, str]) -> str:
    import attn_mlir
    from attn_mlir.backends.nvidia import pipeline
    from attn_mlir.backends.program import OUTLINE, prepare_derivative
    from attn_mlir.frontend.emit import Inputs

    dim, mask, dtype = form
    call = attn_mlir.Attention(mask_mod=attn_mlir.masks.causal() if mask == "causal" else None)
    call.__dict__.update(_last=Inputs(dtype, dim, dim), _form=None if variant == "plain" else ("tensor", "tensor"))
    kind = {"forward": "fwd", "backward": "bwd"}.get(function)
    derivative = ("attention", OUTLINE)
    if kind is not None:
        derivative = prepare_derivative(kind, ("q", "k", "v"), pipeline.outline("sm_90a"))
    return compile_to(to, call.ir(), derivative, FUNCTIONS[function][variant])


def compile_to(to: Path, source: str, derivative: tuple[str, str], choices: Mapping[str, int | str]) -> str:
    """Compiles what `prepare_derivative` names for sm_90a and saves it; says what the compiler tells of each kernel."""
    from attn_mlir.backends.nvidia import driver
    from attn_mlir.backends.nvidia.compile import compile_all

    host, units = driver._lower(source, *derivative, {"arch": "sm_90a", **choices})  # pyright: ignore[reportPrivateUsage]
    binaries = dict(zip(units, compile_all([unit.code for unit in units.values()]), strict=True))
    save(to, host, units, binaries)
    told = [f"{name}: {units[name].code.language} {b.registers} registers {b.spills} spills" for name, b in binaries.items()]
    return "; ".join(told)


def save(to: Path, host: Any, units: Any, binaries: Any) -> None:
    """Writes a compiled program, which `program` reads."""
    from attn_mlir.backends.nvidia.compiled_kernels import pack

    data, fields = pack(host, units, binaries)
    to.with_suffix(".json").write_text(json.dumps(fields))
    to.with_suffix(".zip").write_bytes(data)


# ---- on the GPU


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for the parts of the package that make programs: what runs them imports these, and uses but the table of element types."""

    NAMES = ("attn_mlir.mlir", "attn_mlir.dialects", "attn_mlir.passes", "attn_mlir.registry", "attn_mlir.frontend", "attn_mlir.seeing",
             "attn_mlir.backends.gpu.passes", "attn_mlir.backends.nvidia.passes")  # fmt: skip

    USED = "attn_mlir.dialects.elements"

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        absent = fullname != self.USED and any(fullname == name or fullname.startswith(f"{name}.") for name in self.NAMES)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True) if absent else None

    def create_module(self, spec: Any) -> Any:
        module = MagicMock(name=spec.name)
        folder = str(ROOT / "python" / spec.name.replace(".", "/"))
        module.__path__, module.__spec__, module.__name__ = [folder] if self.USED.startswith(f"{spec.name}.") else [], spec, spec.name
        return module

    def exec_module(self, module: Any) -> None:
        """There is nothing to do."""


def _prepare() -> None:
    """Makes `attn_mlir.backends.nvidia` importable without MLIR's bindings."""
    if "attn_mlir" in sys.modules:
        return
    sys.path.insert(0, str(ROOT / "python"))
    package = types.ModuleType("attn_mlir")
    package.__path__ = [str(ROOT / "python" / "attn_mlir")]
    sys.modules["attn_mlir"] = package
    for name in ("attn_mlir.backends.nvidia", "attn_mlir.backends.nvidia.hopper", "attn_mlir.backends.nvidia.pipeline"):
        made = types.ModuleType(name)
        made.__path__ = [str(ROOT / "python" / name.replace(".", "/"))]
        sys.modules[name] = made
    sys.modules["attn_mlir.backends.nvidia.pipeline"].__dict__["KERNEL"] = ""
    sys.meta_path.insert(0, _Absent())


def program(folder: Path, name: str) -> Callable[[Sequence[Any]], list[torch.Tensor]]:
    """A compiled program, as a function of its inputs."""
    _prepare()
    from attn_mlir.backends.nvidia.compiled_kernels import unpack
    from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan

    path = folder / name
    found = unpack(path.with_suffix(".zip").read_bytes(), json.loads(path.with_suffix(".json").read_text()))
    return NvidiaLaunchPlan("", "", {}, *found).run


def saved_by(function: str, variant: str) -> str:
    """The variant of a function that stands for this one."""
    return variant if variant in FUNCTIONS[function] else STANDS


def dropout_values(variant: str, p: float) -> list[Any]:
    """What programs with dropout take behind q, k and v."""
    if variant == "plain":
        return []
    seed, offset = (torch.tensor(value, dtype=torch.int64, device="cuda") for value in SEED)
    return [seed, offset, min(round(p * 2**32), 2**32 - 1), 1 / (1 - p)]


def kept(batch: int, heads: int, length: int, p: float, variant: str) -> torch.Tensor:
    """What the definition of dropout keeps."""
    _prepare()
    from attn_mlir import philox

    if variant == "plain":
        return torch.ones(batch, heads, length, length, dtype=torch.bool, device="cuda")
    sizes = enumerate((batch, heads, length, length))
    b, h, q, k = (torch.arange(n, device="cuda").view([-1 if i == j else 1 for j in range(4)]) for i, n in sizes)
    one = lambda value: torch.tensor(value, dtype=torch.int64, device="cuda")  # noqa: E731
    return philox.kept((one(SEED[0]), one(SEED[1])), one(philox.threshold(p)), heads, b, h, q, k)


def seen(length: int, mask: str) -> torch.Tensor:
    """The pairs that a mask lets through."""
    ones = torch.ones(length, length, dtype=torch.bool, device="cuda")
    return ones.tril() if mask == "causal" else ones


def dense(inputs: Sequence[torch.Tensor], keep: torch.Tensor, mask: str, p: float) -> torch.Tensor:
    """The formula, in float64."""
    q, k, v = inputs
    scores = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen(q.shape[2], mask), -torch.inf)
    return (scores.softmax(-1) * keep / (1 - p)) @ v


def check_bits(run: Callable[..., Any], variant: str, length: int, form: tuple[int, str, torch.dtype]) -> int:
    """How many bits differ from the definition: weights are equal, and values have a 1 for one key of each column at a time."""
    dim, mask, dtype = form
    p = 0.3
    q = torch.zeros(2, 2, length, dim, dtype=dtype, device="cuda")
    wanted, wrong = kept(2, 2, length, p, variant) & seen(length, mask), 0
    for first in range(0, length, dim):
        v, end = torch.zeros_like(q), min(length, first + dim)
        v[:, :, first:end, : end - first] = 1024 * torch.eye(end - first, dtype=dtype, device="cuda")
        o = run([q, q, v, *dropout_values(variant, p)])[0]
        wrong += int(((o[..., : end - first] > 0) != wanted[..., first:end]).sum())
    return wrong


def check(folder: Path, variant: str) -> None:
    """Prints what is wrong with a variant; nothing else that begins with "wrong"."""
    torch.manual_seed(0)
    worst, seen_forms = 0.0, 0
    for dtype, kind in (("f16", torch.float16), ("bf16", torch.bfloat16)):
        for dim in DIMS:
            for mask in MASKS:
                paths = {name: f"{name}-{saved_by(name, variant)}-{dim}-{mask}-{dtype}" for name in FUNCTIONS}
                runs = {name: program(folder, path) for name, path in paths.items() if (folder / f"{path}.zip").exists()}
                mine = [name for name in runs if variant in FUNCTIONS[name]]
                if variant == "plain" or not mine:
                    continue
                seen_forms += 1
                for length in (300, 1000):
                    for name in mine if mine != ["backward"] else ():
                        wrong = check_bits(runs[name], variant, length, (dim, mask, kind)) if name != "backward" else 0
                        if wrong:
                            print(f"wrong {name} {dim} {mask} {dtype} {length}: {wrong} bits", flush=True)
                    for factor in (1, 12):  # large scores make warps do a step again
                        errors = compare(runs, variant, length, (dim, mask, kind), factor)
                        worst = max([worst, *errors.values()]) if factor == 1 else worst
                        limit = 2e-2 if dtype == "bf16" else 4e-3
                        # Gradients of large scores are small differences.
                        limits = {name: limit if factor == 1 or name[0] == "o" else 8 * limit for name in errors}
                        bad = {name: error for name, error in errors.items() if not error < limits[name]}
                        if bad:
                            print(f"wrong {dim} {mask} {dtype} {length} x{factor}: {bad}", flush=True)
    print(f"checked {variant}: {seen_forms} forms, largest relative error {worst:.1e}", flush=True)


def compare(runs: dict[str, Any], variant: str, length: int, form: tuple[int, str, torch.dtype], factor: float) -> dict[str, float]:
    """Relative errors of results and gradients of the functions that there are."""
    dim, mask, dtype = form
    p = 0.0 if variant == "plain" else 0.3
    q, k, v, do = (torch.randn(1, 2, length, dim, device="cuda").to(dtype) for _ in range(4))
    q = q * factor
    extra = dropout_values(variant, p)
    doubles = [x.double().requires_grad_() for x in (q, k, v)]
    wanted = dense(doubles, kept(1, 2, length, p, variant), mask, p)
    found = {}
    if "inference" in runs:
        found["o"] = (runs["inference"]([q, k, v, *extra])[0], wanted)
    if "forward" in runs and "backward" in runs:
        o, *rows = runs["forward"]([q, k, v, *extra])
        grads = torch.autograd.grad(wanted, doubles, do.double())
        made = runs["backward"]([q, k, v, *extra, o, *rows, do])
        found["o of forward"] = (o, wanted)
        found |= dict(zip(("dq", "dk", "dv"), zip(made, grads, strict=True), strict=True))
    return {name: float((a.double() - b.detach()).norm() / b.detach().norm()) for name, (a, b) in found.items()}


def timed(run: Callable[[], Any], launches: int) -> float:
    """Milliseconds a call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(launches):
        run()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / launches


def measure(folder: Path, variants: Sequence[str], rounds: int) -> None:
    """Times the variants of each function in turn, f16; prints a row for each."""
    for function in ("inference", "backward"):
        for batch, heads, length in SIZES:
            for dim in DIMS:
                for mask in MASKS:
                    named = [name for name in variants if name in FUNCTIONS[function]]
                    calls = _calls(folder, (function, dim, mask), named, (batch, heads, length))
                    best: dict[str, float] = {}
                    for number in range(rounds + 1):
                        for name in list(calls)[:: 1 if number % 2 else -1]:
                            taken = timed(calls[name], 5)
                            best[name] = min(best.get(name, taken), taken) if number else taken
                    plain = best.get("plain", 0.0)
                    if not best:
                        continue
                    row = "  ".join(f"{name} {taken:.3f} ({plain / taken:.2f})" for name, taken in best.items())
                    print(f"{function:9} D {dim:3} S {length} {mask:6} ms  {row}", flush=True)


def _calls(folder: Path, form: tuple[str, int, str], variants: Sequence[str], size: tuple[int, int, int]) -> dict[str, Callable[[], Any]]:
    """What is timed of a function: a call of each variant that was built."""
    function, dim, mask = form
    q, k, v, do = (torch.randn(*size, dim, device="cuda").half() for _ in range(4))
    calls: dict[str, Callable[[], Any]] = {}
    rows: list[torch.Tensor] = []
    if function == "backward":
        if not (folder / f"forward-{STANDS}-{dim}-{mask}-f16.zip").exists():
            return {}
        rows = program(folder, f"forward-{STANDS}-{dim}-{mask}-f16")([q, k, v, *dropout_values(STANDS, P)])
    for variant in variants:
        name = f"{function}-{variant}-{dim}-{mask}-f16"
        if (folder / f"{name}.zip").exists():
            run, inputs = program(folder, name), [q, k, v, *dropout_values(variant, P)]
            inputs += [*rows, do] if rows else []
            calls[variant] = lambda run=run, inputs=inputs: run(inputs)
    return calls


def run_all(folder: Path, rounds: int) -> None:
    """Checks all variants at the same time, each in its own process, then times those that ended; a wrong one is named."""
    here, start = [sys.executable, str(Path(__file__).resolve())], time.time()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    every = list(dict.fromkeys([*VARIANTS, *PAIRS]))
    checks = {name: subprocess.Popen([*here, "check", str(folder), "--variant", name], **pipes) for name in every}
    ended = []
    for name, process, text in outcomes(checks, start, CHECK_SECONDS):
        if process.returncode == 0:
            ended.append(name)
        print(f"{name}: {'right' if name in ended and 'wrong' not in text else 'WRONG'}\n{text.strip()[-1500:]}", flush=True)
    print(f"-- {torch.cuda.get_device_name()}, f16, (B, heads, S) {SIZES}; {time.time() - start:.0f} s so far", flush=True)
    time_apart([*here, "time", str(folder), "--variants", ",".join(ended), "--rounds", str(rounds)], TIME_SECONDS)


def outcomes(checks: Mapping[str, Any], start: float, seconds: int) -> Iterator[tuple[str, Any, str]]:
    """Each process with its name and what it printed; those that take longer than so many seconds from `start` on are killed."""
    for name, process in checks.items():
        try:
            text, _ = process.communicate(timeout=max(1.0, start + seconds - time.time()))
        except subprocess.TimeoutExpired:
            process.kill()
            text = f"{process.communicate()[0]}\n{name}: WRONG: it took longer than {seconds} s"
        yield name, process, text


def time_apart(command: Sequence[str], seconds: int) -> None:
    """Runs what times, for so many seconds at most."""
    try:
        subprocess.run(command, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        print(f"timing took longer than {seconds} s", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run", "check", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--variant", default=STANDS, choices=[*VARIANTS, *PAIRS])
    parser.add_argument("--variants", default=",".join({**VARIANTS, **PAIRS}))
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    if options.what == "build":
        build(options.folder, options.only)
    elif options.what == "run":
        run_all(options.folder, options.rounds)
    elif options.what == "check":
        check(options.folder, options.variant)
    else:
        measure(options.folder, options.variants.split(","), options.rounds)


if __name__ == "__main__":
    main()
