"""Random masks and score functions of integers: their kernels through clang's front end, and their values against PyTorch.

`python benchmarks/fuzz_masks.py --count 300 --seed 0 --run 10`: every `run`-th one is also run, forward, on emulated AMD units, which
share the printer of scalars with CUDA. Needs clang, and no GPU; with nvcc, `--nvcc` compiles the CUDA as well.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "test" / "unit"))

from attn_mlir import attention
from attn_mlir.backends.nvidia.compile import compile_all
from attn_mlir.errors import ArgumentError, AttnError, CompileError
from generated_code import complaints, kernels, traced
from test_random_masks import drawn

LENGTHS = ((70, 70), (33, 150), (129, 65))


def main() -> int:
    """The command; returns how many faults it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--run", type=int, default=10, help="run every so many-th mask; 0: none")
    parser.add_argument("--nvcc", action="store_true", help="compile the CUDA")
    options = parser.parse_args()
    told: Counter[str] = Counter()
    for seed in range(options.seed, options.seed + options.count):
        for fault in faults(seed, told, options.nvcc):
            told["faults"] += 1
            print(f"seed {seed}: {fault}", flush=True)
        if options.run and seed % options.run == 0:
            fault = difference(seed, told)
            told["faults"] += bool(fault)
            print(f"seed {seed}: {fault}", flush=True) if fault else None
    print(", ".join(f"{name}: {count}" for name, count in told.items()))
    return told["faults"]


def faults(seed: int, told: Counter[str], nvcc: bool) -> list[str]:
    """What is wrong with the kernels of one mask."""
    mask, score, _ = drawn(seed)
    try:
        program = traced(mask, score)
    except AttnError:
        told["not traced"] += 1
        return []
    found = []
    for vendor in ("nvidia", "amd"):
        try:
            made = kernels(program, vendors=(vendor,))
        except AttnError as error:
            refused = any(words in str(error) for words in ("shared memory", "no code generator"))
            told[f"refused for {vendor}"] += refused
            found += [] if refused else [f"{vendor}: {error}"]
            continue
        told.update(code.language for code in made)
        found += [f"{code.name}: {text}" for code in made if (text := complaints(code))]
        if nvcc and vendor == "nvidia":
            try:
                compile_all([code for code in made if code.language == "cuda"])
            except CompileError as error:
                found.append(str(error))
    return found


def difference(seed: int, told: Counter[str]) -> str:
    """How a forward pass on emulated units differs from the dense formula; empty where it does not."""
    mask, score, captured = drawn(seed)
    for sq, skv in LENGTHS[: 1 + seed % 3]:
        generator = torch.Generator().manual_seed(seed)
        q, k, v = (torch.randn(1, 2, s, 64, generator=generator).half() for s in (sq, skv, skv))
        try:
            got = attention(q, k, v, score_mod=score, mask_mod=mask, device="hip-emulated")
        except (ArgumentError, CompileError):
            told["not run"] += 1
            return ""
        captured.lengths = (sq, skv)
        want = dense(q.double(), k.double(), v.double(), mask, score)
        captured.lengths = (0, 0)
        told["run"] += 1
        error = (got.double() - want).abs().max().item()
        if not error < 2e-2:
            return f"{sq} queries and {skv} keys: o differs by {error}"
    return ""


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: Any, score: Any) -> torch.Tensor:
    """Softmax attention in float64 over all pairs; fully masked rows are 0."""
    b, h, i, j = (torch.arange(size) for size in (*q.shape[:3], k.shape[2]))
    places = (b[:, None, None, None], h[None, :, None, None], i[None, None, :, None], j[None, None, None, :])
    s = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    s = s if score is None else score(s, *places)
    kept = torch.broadcast_to(mask(*places), s.shape)
    return torch.softmax(s.masked_fill(~kept, float("-inf")), -1).nan_to_num(0.0) @ v


if __name__ == "__main__":
    sys.exit(min(1, main()))
