"""Writes what the C++ program here reads: a library made ahead of time, inputs, and what Python computes of them.

python examples/cpp/make_files.py build/files
cmake -S examples/cpp -B build/cpp -DATTN_FILES=build/files && cmake --build build/cpp && build/cpp/attention build/files
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import attn_mlir

SLOPES = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))


def relu_normalised(s: Any) -> Any:
    """An invented row: a rule that divides by the sum."""
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Nearer keys score higher."""
    return score + SLOPES[h] * (kv_idx - q_idx)


def main(argv: Sequence[str]) -> int:
    """Fills the folder."""
    folder = Path(argv[0] if argv else "files")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    attention = attn_mlir.Attention(row=relu_normalised, score_mod=alibi, mask_mod=attn_mlir.masks.causal())
    q = torch.randn(2, 4, 301, 64, requires_grad=True)
    k, v = (torch.randn(2, 2, 301, 64, requires_grad=True) for _ in range(2))
    made = attn_mlir.compile_ahead(attention, (q, k, v), out=folder / "libinvented.so")

    with torch.no_grad():
        inference = attention(q, k, v)
    o = attention(q, k, v)
    d_o = torch.randn_like(o)
    d_q, d_k, d_v, d_slopes = torch.autograd.grad(o, [q, k, v, SLOPES], d_o)
    tensors = {
        "q": q, "k": k, "v": v, "slopes": SLOPES, "inference": inference, "o": o, "d_o": d_o,
        "d_q": d_q, "d_k": d_k, "d_v": d_v, "d_slopes": d_slopes,
    }  # fmt: skip
    for name, tensor in tensors.items():
        np.save(folder / f"{name}.npy", tensor.detach().contiguous().numpy())
    print(f"wrote {made.library}, {made.header.name} and {len(tensors)} arrays")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
