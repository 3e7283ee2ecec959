"""Softmax attention of a few queries to many keys. `combine` says how results over different keys are added."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, dense, normal, options
from mha import D, score_mod, softmax_scale
from mha import OnlineSoftmax as TrainedSoftmax

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine
from core import CustomIO, meta_tensor


class OnlineSoftmax(TrainedSoftmax):
    """The same with weights for results over different keys: lse is a natural logarithm, so these are powers of e."""

    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        lse = final_rowscales["lse"]
        weights = (lse - lse.get_reduce("max")).exp()
        return weights / weights.get_reduce("sum")


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=8, queries=128, length=1024)
    B, H, S = found.batch, found.heads, found.length
    q_meta, k_meta = (meta_tensor(B, H, length, D, dtype=found.dtype) for length in (found.queries, S))
    mod = AttentionEngine((q_meta, k_meta, k_meta), CustomIO(), score_mod=score_mod, mask_mod=None, online_func=OnlineSoftmax())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1))

    inputs = {"q": normal(found, B, found.queries, H, D), "k": normal(found, B, S, H, D), "v": normal(found, B, S, H, D)}
    return compare(mod, formula, inputs, backward=False)


if __name__ == "__main__":
    raise SystemExit(main())
