"""Backward passes with gradients of captured tensors, D 64, f16: the Hopper emitter's (blocks of 128 keys, 64 queries) beside TileLang's.

python benchmarks/captured_gradients.py build FOLDER    compiles here, without a GPU (ATTN_MLIR_CUDA_COMPILER=nvcc)
python benchmarks/captured_gradients.py run FOLDER      on the GPU: checks against float64 at odd lengths, then times in turn
"""

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from dropout_variants import compile_to, program, timed

DIM, TABLE = 64, 64
KINDS: dict[str, dict[str, int | str]] = {"hopper": {"block_q": 128, "block_kv": 64}, "tilelang": {"emitter": "tilelang"}}
CASES = ("table", "bias", "vectors")
LENGTHS, SHAPE = (17, 127, 300, 1000), (2, 16, 4096)


def captured(name: str, heads: int, length: int, device: str = "cuda") -> list[torch.Tensor]:
    """What the score function reads: a table of distances, a bias of every pair, or a factor of a key and what is added to its score."""
    shapes = {"table": [(heads, TABLE)], "bias": [(heads, length, length)], "vectors": [(heads, length)] * 3}[name]
    return [torch.randn(shape, device=device) for shape in shapes]


def score_mod(name: str, tensors: list[torch.Tensor]) -> Callable[..., Any]:
    """The score function over captured tensors."""
    if name == "table":
        (table,) = tensors
        return lambda s, b, h, i, j: s + table[h, torch.clamp(i - j, 0, 63)]  # a number here, not a captured one
    if name == "bias":
        (bias,) = tensors
        return lambda s, b, h, i, j: s + bias[h, i, j]
    u, w, x = tensors
    return lambda s, b, h, i, j: s * w[h, j] + u[h, i] + x[h, j]


def build(folder: Path, kinds: list[str]) -> None:
    """Compiles forward and backward passes of every case and kind; says what the compiler tells."""
    import attn_mlir
    from attn_mlir.backends.nvidia import pipeline
    from attn_mlir.backends.program import prepare_derivative
    from attn_mlir.frontend.emit import Inputs

    folder.mkdir(parents=True, exist_ok=True)
    for name in CASES:
        tensors = captured(name, 2, 8, "cpu")
        call = attn_mlir.Attention(score_mod=score_mod(name, tensors), mask_mod=None if name == "bias" else attn_mlir.masks.causal())
        call.__dict__.update(_last=Inputs("f16", DIM, DIM), _form=None)
        wrt = ("q", "k", "v", *(f"arg{3 + n}" for n in range(len(tensors))))
        for kind in ("forward", *kinds):
            form = prepare_derivative("fwd" if kind == "forward" else "bwd", wrt, pipeline.outline("sm_90a"))
            print(f"{kind}-{name}: {compile_to(folder / f'{kind}-{name}', call.ir(), form, KINDS.get(kind, {}))}", flush=True)


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, name: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """The formula."""
    at = torch.arange(q.shape[2], device=q.device)
    s = q @ k.mT / math.sqrt(DIM)
    if name == "bias":
        return (s + tensors[0]).softmax(-1) @ v
    if name == "table":
        s = s + tensors[0][:, (at[:, None] - at).clamp(0, TABLE - 1)]
    else:
        u, w, x = tensors
        s = s * w[:, None, :] + u[:, :, None] + x[:, None, :]
    return s.masked_fill(at[:, None] < at, -torch.inf).softmax(-1) @ v


def run(folder: Path, rounds: int) -> None:
    """Prints relative errors of all gradients, then times."""
    torch.manual_seed(0)
    for name in CASES:
        there = [kind for kind in KINDS if (folder / f"{kind}-{name}.zip").exists()]
        forward, launches = program(folder, f"forward-{name}"), {kind: program(folder, f"{kind}-{name}") for kind in there}
        for kind, launch in launches.items():
            errors = []
            for length in LENGTHS:
                q, k, v, do = (torch.randn(2, 2, length, DIM, device="cuda").half() for _ in range(4))
                tensors = captured(name, 2, length)
                wide = [x.double().requires_grad_() for x in (q, k, v, *tensors)]
                right = torch.autograd.grad(dense(wide[0], wide[1], wide[2], name, wide[3:]), wide, do.double())
                got = launch([q, k, v, *tensors, *forward([q, k, v, *tensors]), do])
                worst = max(float((a.double() - b).norm() / (b.norm() + 1e-2)) for a, b in zip(got, right, strict=True))
                errors.append(f"{worst:.0e}" + ("" if worst < 5e-3 else " WRONG"))
            print(f"{kind:9} {name:8} {'  '.join(errors)}", flush=True)
        batch, heads, length = SHAPE
        q, k, v, do = (torch.randn(batch, heads, length, DIM, device="cuda").half() for _ in range(4))
        tensors = captured(name, heads, length)
        inputs = [q, k, v, *tensors, *forward([q, k, v, *tensors]), do]
        best: dict[str, float] = {}
        for number in range(rounds + 1):
            for kind in there[:: 1 if number % 2 else -1]:
                taken = timed(lambda launch=launches[kind], inputs=inputs: launch(inputs), 3)
                best[kind] = min(best.get(kind, taken), taken) if number else taken
        work = 10e-9 * batch * heads * DIM * length**2 * (1 if name == "bias" else 0.5)
        print(f"{name:8} S {length}  " + "  ".join(f"{kind} {work / taken:.0f} TFLOP/s" for kind, taken in best.items()), flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["build", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.what == "build":
        build(options.folder, options.kinds.split(","))
    else:
        run(options.folder, options.rounds)


if __name__ == "__main__":
    main()
