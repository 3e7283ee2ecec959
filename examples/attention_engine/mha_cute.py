"""Causal softmax attention with the scale inside of the online function, which works with powers of two."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from comparison import causal, compare, dense, normal, options
from mha import causal_mask

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine, OnlineFunc
from core import CustomIO, SymbolScalar, Var, meta_tensor

D = 64
softmax_scale = D**-0.5
log2_scale = softmax_scale * math.log2(math.e)


class OnlineSoftmax(OnlineFunc):
    """2^(c s - c m) / r with c = scale / log(2), and m the maximum of scores without scale."""

    def __init__(self) -> None:
        online_rowscales = {"m": SymbolScalar("m", Var("-inf")), "r": SymbolScalar("r", Var("0.0"))}
        super().__init__(online_rowscales, {"lse": SymbolScalar("lse", Var("0.0"))}, CustomIO())

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m_new = online_rowscales["m"].max(scores.get_reduce("max"))
        o_scale = ((online_rowscales["m"] - m_new) * log2_scale).exp2()
        scores = ((scores - m_new) * log2_scale).exp2()
        return scores, {"m": m_new, "r": online_rowscales["r"] * o_scale + scores.get_reduce("sum")}, o_scale

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        lse = online_rowscales["r"].log() + online_rowscales["m"] * softmax_scale
        return o / online_rowscales["r"], {"lse": lse}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (scores * softmax_scale - final_rowscales["lse"]).exp()

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (dp - doosum_rowscales) * scores * softmax_scale


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=12, length=512)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=found.dtype) for _ in "qkv")
    mod = AttentionEngine(qkv_meta, CustomIO(), score_mod=None, mask_mod=causal_mask, online_func=OnlineSoftmax(), backend="cute")

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1), causal(S, q.device))

    return compare(mod, formula, {name: normal(found, B, S, H, D) for name in "qkv"})


if __name__ == "__main__":
    raise SystemExit(main())
