"""Causal softmax attention, forward and backward."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import causal, compare, dense, normal, options

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine, OnlineFunc
from core import CustomIO, SymbolScalar, Var, meta_tensor

D = 128
softmax_scale = D**-0.5


def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * softmax_scale


def causal_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


class OnlineSoftmax(OnlineFunc):
    """exp(s - m) / r with a running maximum m and a running sum r."""

    def __init__(self) -> None:
        online_rowscales = {"m": SymbolScalar("m", Var("-inf")), "r": SymbolScalar("r", Var("0.0"))}
        final_rowscales = {"lse": SymbolScalar("lse", Var("0.0"))}
        super().__init__(online_rowscales, final_rowscales, CustomIO())

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m_new = online_rowscales["m"].max(scores.get_reduce("max"))
        o_scale = (online_rowscales["m"] - m_new).exp()
        scores = (scores - m_new).exp()
        r = online_rowscales["r"] * o_scale + scores.get_reduce("sum")
        return scores, {"m": m_new, "r": r}, o_scale

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return o / online_rowscales["r"], {"lse": online_rowscales["r"].log() + online_rowscales["m"]}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (scores - final_rowscales["lse"]).exp()

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (dp - doosum_rowscales) * scores


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=8, length=512)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, D, dtype=found.dtype) for _ in "qkv")
    mod = AttentionEngine(qkv_meta, CustomIO(), score_mod=score_mod, mask_mod=causal_mask, online_func=OnlineSoftmax())

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return dense(q, k, v, lambda s: (s * softmax_scale).softmax(-1), causal(S, q.device))

    return compare(mod, formula, {name: normal(found, B, S, H, D) for name in "qkv"})


if __name__ == "__main__":
    raise SystemExit(main())
