"""Mamba-2 with one head of C (q) and B (k) for all heads of x (v): the log decay is A dt, and values are x dt."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, normal, options
from linear import all_pairs, meta

import attn_mlir.compat  # noqa: F401
from attn_engine import LinearAttentionEngine
from core import CustomIO

D, DV = 128, 64


def decay_mod(decay: Any, custom_io: Any) -> Any:
    return decay * custom_io.input_tensors["A"]


def v_mod(v: Any, custom_io: Any) -> Any:
    return v * custom_io.input_tensors["dt"]


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=2, heads=4, length=300)
    B, H, T = found.batch, found.heads, found.length
    custom_io = CustomIO({"A": (1, "heads"), "dt": ("batch", "heads", "seq_len")})
    mod = LinearAttentionEngine(meta(found, 1, D, DV), decay_mod=decay_mod, v_mod=v_mod, custom_io=custom_io)

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor, A: torch.Tensor, dt: torch.Tensor) -> torch.Tensor:
        return all_pairs(q, k, v * dt[..., None], decay * A[..., None])

    C, B_, x = normal(found, B, 1, T, D), normal(found, B, 1, T, D), normal(found, B, H, T, DV)
    dt, A = torch.rand(B, H, T, device=found.device) * 0.2, -torch.rand(1, H, device=found.device) - 0.5
    return compare(mod, formula, {"C": C, "B": B_, "x": x, "decay": dt, "A": A, "dt": dt})


if __name__ == "__main__":
    raise SystemExit(main())
