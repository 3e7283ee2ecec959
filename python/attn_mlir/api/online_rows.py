"""Predefined online functions. They are written as users write theirs; nothing here is known to the compiler by name."""

from typing import Any

from attn_mlir.api.online_func import OnlineFunc
from attn_mlir.api.symbols import SymbolScalar, Var

__all__ = ["Identity", "OnlineRetention", "OnlineSoftmax", "online_retention"]


class OnlineSoftmax(OnlineFunc):
    """exp(s) / sum exp(s), with the row output "lse", the natural logarithm of the sum."""

    def __init__(self) -> None:
        states = {"m": SymbolScalar("m", Var("-inf")), "r": SymbolScalar("r", Var("0.0"))}
        super().__init__(states, {"lse": SymbolScalar("lse", Var("0.0"))})

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m, r = online_rowscales["m"], online_rowscales["r"]
        m_new = m.max(scores.get_reduce("max"))
        rescale = (m - m_new).exp()
        weights = (scores - m_new).exp()
        r_new = r * rescale + weights.get_reduce("sum")
        return weights, {"m": m_new, "r": r_new}, rescale

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m, r = online_rowscales["m"], online_rowscales["r"]
        return o / r, {"lse": r.log() + m}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (scores - final_rowscales["lse"]).exp()

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (dp - doosum_rowscales) * scores

    @staticmethod
    def combine(final_rowscales: Any) -> Any:
        lse = final_rowscales["lse"]
        weights = (lse - lse.get_reduce("max")).exp()
        return weights / weights.get_reduce("sum")


class OnlineRetention(OnlineFunc):
    """s / max(sum |s|, 1), with the divisor as row output "r"."""

    def __init__(self) -> None:
        super().__init__({"abssum": SymbolScalar("abssum", Var("0.0"))}, {"r": SymbolScalar("r", Var("1.0"))})

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        abssum = online_rowscales["abssum"] + scores.get_reduce("abssum")
        return scores, {"abssum": abssum}, SymbolScalar("o_scale", Var("1"))

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        r = online_rowscales["abssum"].max(1.0)
        return o / r, {"r": r}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return scores / final_rowscales["r"]

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return dp / final_rowscales["r"]


online_retention = OnlineRetention


class Identity(OnlineFunc):
    """The scores themselves are the weights, as in sigmoid and relu attention, where score_mod does it all."""

    def __init__(self) -> None:
        super().__init__({}, {})

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return scores, online_rowscales, SymbolScalar("o_scale", Var("1"))

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return scores

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return dp
