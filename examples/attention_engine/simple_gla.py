"""Gated retention: the log decay of each head and step is an input."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, normal, options
from linear import all_pairs, meta

import attn_mlir.compat  # noqa: F401
from attn_engine import LinearAttentionEngine

D, DV = 64, 128
scale = D**-0.5


def q_mod(q: Any, custom_io: Any) -> Any:
    return q * scale


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=2, heads=4, length=300)
    B, H, T = found.batch, found.heads, found.length
    mod = LinearAttentionEngine(meta(found, H, D, DV), q_mod=q_mod)

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        return all_pairs(q * scale, k, v, g)

    g = torch.nn.functional.logsigmoid(torch.randn(B, H, T, device=found.device)).clamp(min=-5)
    return compare(mod, formula, {"q": normal(found, B, H, T, D), "k": normal(found, B, H, T, D), "v": normal(found, B, H, T, DV), "g": g})


if __name__ == "__main__":
    raise SystemExit(main())
