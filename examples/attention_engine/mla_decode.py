"""Decoding with latent attention: one head of 512 columns is keys and values, 64 more columns hold positions."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, dense, normal, options
from mha import OnlineSoftmax

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, meta_tensor

LATENT, ROPE = 512, 64
D = LATENT + ROPE
softmax_scale = D**-0.5


def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * softmax_scale


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=2, heads=16, length=512)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = (
        meta_tensor(B, H, 1, D, dtype=found.dtype),
        meta_tensor(B, 1, S, D, dtype=found.dtype),
        meta_tensor(B, 1, S, LATENT, dtype=found.dtype),
    )
    mod = AttentionEngine(qkv_meta, CustomIO(), score_mod=score_mod, mask_mod=None, online_func=OnlineSoftmax(), kv_shared=True)

    # In one tensor KV and k_pe need not be copied.
    cache = normal(found, B, S, 1, D)

    def decode(q: torch.Tensor, q_pe: torch.Tensor) -> torch.Tensor:
        return mod(q, q_pe, cache[..., :LATENT], cache[..., LATENT:])

    def formula(q: torch.Tensor, q_pe: torch.Tensor) -> torch.Tensor:
        k = cache.double()
        return dense(torch.cat((q, q_pe), dim=-1), k, k[..., :LATENT], lambda s: (s * softmax_scale).softmax(-1))

    return compare(decode, formula, {"q": normal(found, B, 1, H, LATENT), "q_pe": normal(found, B, 1, H, ROPE)}, backward=False)


if __name__ == "__main__":
    raise SystemExit(main())
