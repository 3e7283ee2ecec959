"""Biases and tables on Hopper: kernels that read windows beside those that read element by element, and plain attention.

python benchmarks/bias_windows.py build FOLDER    compiles here, without a GPU (ATTN_MLIR_CUDA_COMPILER=nvcc)
python benchmarks/bias_windows.py run FOLDER      on the GPU: checks against float64 at odd lengths, then times in turn
"""

import argparse
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from dropout_variants import compile_to, program, timed

KINDS: dict[str, dict[str, int | str]] = {"windows": {}, "gathers": {"windows": 0}}
CASES = {
    "plain": None,
    "bias": torch.float32,
    "bias16": torch.float16,
    "table": torch.float32,
    "columns": torch.float32,
    "masked": torch.float16,
}
DIMS, LENGTHS, SHAPE, TABLE = (64, 128), (1, 17, 127, 1000), (2, 16, 4096), 64


def captured(name: str, heads: int, length: int, device: str = "cuda") -> list[torch.Tensor]:
    """What the score function reads: a bias of every pair [H, S, S], a table of distances, a number for each key."""
    kind = CASES[name]
    if kind is None:
        return []
    shape = {"table": (heads, TABLE), "columns": (heads, length)}.get(name, (heads, length, length))
    return [torch.randn(shape, device=device).to(kind)]


def score_mod(name: str, tensors: list[torch.Tensor]) -> Callable[..., Any] | None:
    """The score function over captured tensors."""
    if name == "plain":
        return None
    (t,) = tensors
    if name == "table":
        return lambda s, b, h, i, j: s + t[h, torch.clamp(i - j, 0, 63)]
    if name == "columns":
        return lambda s, b, h, i, j: s + t[h, j]
    return lambda s, b, h, i, j: s + t[h, i, j]


def build(folder: Path, only: str) -> None:
    """Compiles forward and backward passes of every case and kind; says what the compiler tells."""
    import attn_mlir
    from attn_mlir.backends.nvidia import pipeline
    from attn_mlir.backends.program import prepare_derivative
    from attn_mlir.frontend.emit import Inputs

    folder.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        tensors = captured(name, 2, 8, "cpu")
        mask = attn_mlir.masks.causal() if name == "masked" else None
        for dim in DIMS:
            for way in ("fwd", "bwd"):
                for kind, choices in KINDS.items():
                    file = f"{way}-{kind}-{name}-{dim}"
                    if (name in ("plain", "columns") and kind == "gathers") or not file.startswith(only):
                        continue
                    call = attn_mlir.Attention(score_mod=score_mod(name, tensors), mask_mod=mask)
                    call.__dict__.update(_last=Inputs("f16", dim, dim), _form=None)
                    form = prepare_derivative(
                        way, ("q", "k", "v", *(f"arg{3 + n}" for n in range(len(tensors)))), pipeline.outline("sm_90a")
                    )
                    print(f"{file}: {compile_to(folder / file, call.ir(), form, choices)}", flush=True)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The formula."""
    at = torch.arange(q.shape[2], device=q.device)
    s = q @ k.mT / math.sqrt(q.shape[3])
    if name == "table":
        s = s + tensors[0][:, (at[:, None] - at).clamp(0, TABLE - 1)]
    elif name == "columns":
        s = s + tensors[0][:, None]
    elif name != "plain":
        s = s + tensors[0]
    s = s.masked_fill(at[:, None] < at, -torch.inf) if name == "masked" else s
    return s.softmax(-1) @ v


def _error(got: torch.Tensor, right: torch.Tensor) -> float:
    return float((got.double() - right).norm() / (right.norm() + 1e-2))


def _check(folder: Path, name: str, dim: int, kind: str, way: str) -> None:
    """Prints relative errors at odd lengths; biases also with rows that are apart and turned ones."""
    forward = program(folder, f"fwd-{kind if way == 'fwd' else 'windows'}-{name}-{dim}")
    backward = program(folder, f"bwd-{kind}-{name}-{dim}") if way == "bwd" else None
    told = []
    for length in LENGTHS:
        for turned in (False, True) if name.startswith("bias") and length > 1 else (False,):
            q, k, v, do = (torch.randn(2, 2, length, dim, device="cuda").half() for _ in range(4))
            tensors = captured(name, 2, length)
            tensors = [t.mT.contiguous().mT for t in tensors] if turned else tensors
            wide = [x.double().requires_grad_() for x in (q, k, v, *tensors)]
            right = dense(wide[0], wide[1], wide[2], name, wide[3:])
            made = forward([q, k, v, *tensors])
            worst = _error(made[0], right.detach())
            if backward is not None:
                gradients = torch.autograd.grad(right, wide, do.double())
                worst = max(map(_error, backward([q, k, v, *tensors, *made, do]), gradients))
            told.append(f"{length}{' turned' if turned else ''} {worst:.0e}" + ("" if worst < 5e-3 else " WRONG"))
    print(f"{way} {kind:8} {name:8} D {dim:3} {'  '.join(told)}", flush=True)


def run(folder: Path, rounds: int, ways: list[str]) -> None:
    """Checks, then times each case in turn with plain attention."""
    import attn_mlir  # noqa: F401 - what runs programs is the package itself, not what `dropout_variants` puts in its place

    torch.manual_seed(0)
    there = {path.stem for path in folder.glob("*.zip")}
    for way in ways:
        for name in CASES:
            for dim in DIMS:
                for kind in KINDS:
                    if f"{way}-{kind}-{name}-{dim}" in there:
                        try:
                            _check(folder, name, dim, kind, way)
                        except Exception as error:  # the others are told of, too
                            print(way, kind, name, dim, repr(error)[:300], flush=True)
    batch, heads, length = SHAPE
    for way in ways:
        for dim in DIMS:
            q, k, v, do = (torch.randn(batch, heads, length, dim, device="cuda").half() for _ in range(4))
            launches: dict[str, Callable[[], Any]] = {}
            for name in CASES:
                tensors = captured(name, heads, length)
                for kind in KINDS:
                    file = f"{kind}-{name}-{dim}"
                    if f"{way}-{file}" in there:
                        inputs = [q, k, v, *tensors]
                        if way == "bwd":
                            inputs += [*program(folder, f"fwd-windows-{name}-{dim}")(inputs), do]
                        launches[f"{name} {kind}"] = partial(program(folder, f"{way}-{file}"), inputs)
            best: dict[str, float] = {}
            for number in range(rounds + 1):
                for case in list(launches)[:: 1 if number % 2 else -1]:
                    taken = timed(launches[case], 3)
                    best[case] = min(best.get(case, taken), taken) if number else taken
            work = (4 if way == "fwd" else 10) * 1e-9 * batch * heads * dim * length**2
            for case, taken in best.items():
                done = work / taken * (0.5 if case.startswith("masked") else 1)
                of_plain = done / (work / best["plain windows"])
                print(f"{way} D {dim:3} S {length} {case:16} {done:5.0f} TFLOP/s  {of_plain:.2f} of plain", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="programs whose names begin so")
    parser.add_argument("--ways", default="fwd,bwd")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.what == "build":
        build(options.folder, options.only)
    else:
        run(options.folder, options.rounds, options.ways.split(","))


if __name__ == "__main__":
    main()
