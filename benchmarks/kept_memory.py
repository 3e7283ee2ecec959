"""What a process keeps of each program that it has compiled: `kept_memory.py --count 30`.

Compiles so many different programs of each kind in one process, after five that load what all share, and prints by how much its memory
grew for each: that in use on the C library's heap, that of executable mappings without a file, and resident memory, which also counts
what the heap keeps for later. One program is what a user's function compiles to: a gradient has two compiled modules with four kernels.
"""

import argparse
import ctypes
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import attn_mlir

WARM = 5
"""Programs before it is measured."""


class _Heap(ctypes.Structure):
    """mallinfo2 of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]


def heap() -> float:
    """MB in use on the heap. Raises AttributeError without glibc 2.33."""
    call = ctypes.CDLL(None).mallinfo2
    call.restype = _Heap
    found = call()
    return (found.uordblks + found.hblkhd) / 2**20


def code() -> float:
    """MB of executable memory that no file holds."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [line[0].split("-") for line in lines if "x" in line[1] and len(line) == 5]
    return sum(int(end, 16) - int(start, 16) for start, end in spans) / 2**20


def resident() -> float:
    """MB of resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def score_mod(number: int, kind: str) -> Callable[..., Any]:
    """A function that no other number of its kind gives, and no other kind."""
    made: dict[str, Any] = {}
    factor = 1 + list(KINDS).index(kind) + number / 1024
    exec(f"def mod(score, b, h, q_idx, kv_idx):\n    return score * {factor} + {number}.0 * (q_idx - kv_idx)", made)
    return made["mod"]


def forward(mod: Callable[..., Any]) -> None:
    """One program for the CPU."""
    q, k, v = torch.randn(3, 1, 2, 33, 32)
    attn_mlir.attention(q, k, v, score_mod=mod)


def gradient(mod: Callable[..., Any]) -> None:
    """A forward pass and its backward."""
    q, k, v = torch.randn(3, 1, 2, 33, 32, requires_grad=True)
    attn_mlir.attention(q, k, v, score_mod=mod).sum().backward()


def second_gradient(mod: Callable[..., Any]) -> None:
    """The gradient of a function of the gradient."""
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 1, 2, 33, 32))
    found = torch.autograd.grad(attn_mlir.attention(q, k, v, score_mod=mod).sin().sum(), (q, k, v), create_graph=True)
    torch.stack([(x * x).sum() for x in found]).sum().backward()


def emulated(mod: Callable[..., Any]) -> None:
    """One on the emulation of AMD GPUs, which is a library of its own."""
    q, k, v = torch.randn(3, 1, 2, 33, 32).half()
    attn_mlir.attention(q, k, v, score_mod=mod, device="hip-emulated")


KINDS: dict[str, Callable[[Callable[..., Any]], None]] = {
    "forward": forward,
    "gradient": gradient,
    "second": second_gradient,
    "hip-emulated": emulated,
}


def grown(kind: str, count: int, warm: int = WARM) -> tuple[float, float, float]:
    """By how many MB a program of this kind makes `heap`, `code` and `resident` grow, of `count` after `warm`."""
    for number in range(warm):
        KINDS[kind](score_mod(number, kind))
    gc.collect()
    before = heap(), code(), resident()
    for number in range(warm, warm + count):
        KINDS[kind](score_mod(number, kind))
    gc.collect()
    after = heap(), code(), resident()
    return tuple((y - x) / count for x, y in zip(before, after, strict=True))  # type: ignore[return-value]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=30, help="programs of each kind (default: %(default)s)")
    parser.add_argument("--kinds", nargs="+", choices=sorted(KINDS), default=list(KINDS))
    given = parser.parse_args()
    print("MB for each program   heap    code  resident")
    for kind in given.kinds:
        print(f"{kind:18}" + "".join(f"{size:9.3f}" for size in grown(kind, given.count)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
