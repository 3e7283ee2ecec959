"""RetNet as a recurrence: head h forgets by gamma = 1 - 2^(-5-h) each step, of which the program takes the logarithm."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, normal, options
from linear import all_pairs, meta
from simple_gla import DV, D, q_mod, scale

import attn_mlir.compat  # noqa: F401
from attn_engine import LinearAttentionEngine


def decay_mod(decay: Any, custom_io: Any) -> Any:
    return decay.log()


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=4, length=300)
    B, H, T = found.batch, found.heads, found.length
    mod = LinearAttentionEngine(meta(found, H, D, DV), q_mod=q_mod, decay_mod=decay_mod)

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return all_pairs(q * scale, k, v, gamma.log())

    gamma = (1 - torch.exp2(-5.0 - torch.arange(H, device=found.device))).view(1, H, 1).expand(B, H, T)
    inputs = {"q": normal(found, B, H, T, D), "k": normal(found, B, H, T, D), "v": normal(found, B, H, T, DV)}
    return compare(mod, formula, inputs | {"gamma": gamma})


if __name__ == "__main__":
    raise SystemExit(main())
