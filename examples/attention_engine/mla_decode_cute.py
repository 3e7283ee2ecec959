"""Decoding with latent attention from a cache in pages of 64 positions, with the logarithm of each row's sum."""

from collections.abc import Sequence

import torch
from comparison import compare, dense, normal, options
from mha import OnlineSoftmax
from mla_decode import LATENT, D, score_mod, softmax_scale

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, meta_tensor

PAGE = 64


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=2, heads=16, queries=1, pages=8)
    B, H, S = found.batch, found.heads, found.pages * PAGE
    qkv_meta = (
        meta_tensor(B, H, found.queries, D, dtype=found.dtype),
        meta_tensor(B, 1, S, D, dtype=found.dtype),
        meta_tensor(B, 1, S, LATENT, dtype=found.dtype),
    )
    mod = AttentionEngine(
        qkv_meta, CustomIO(), score_mod=score_mod, mask_mod=None, online_func=OnlineSoftmax(), backend="cute", kv_shared=True
    )
    kv_cache = normal(found, B * found.pages, PAGE, 1, D)

    def formula(q: torch.Tensor) -> torch.Tensor:
        k = kv_cache.double().view(B, S, 1, D)
        return dense(q, k, k[..., :LATENT], lambda s: (s * softmax_scale).softmax(-1))

    def formula_lse(q: torch.Tensor) -> torch.Tensor:
        k = kv_cache.double().view(B, S, D)
        return torch.einsum("bqhd,bkd->bhqk", q * softmax_scale, k).logsumexp(-1)

    inputs = {"q": normal(found, B, found.queries, H, D)}
    wrong = compare(lambda q: mod(q, kv_cache)[0], formula, inputs, backward=False)
    return wrong | compare(lambda q: mod(q, kv_cache)[1], formula_lse, inputs, backward=False)


if __name__ == "__main__":
    raise SystemExit(main())
