"""RetNet's parallel retention: scores times a decay mask, divided by max(sum |s|, 1)."""

from collections.abc import Sequence
from typing import Any

import torch
from comparison import compare, dense, normal, options
from mha import causal_mask

import attn_mlir.compat  # noqa: F401
from attn_engine import AttentionEngine, OnlineFunc
from core import CustomIO, SymbolScalar, Var, meta_tensor

D, DV = 64, 128


def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * custom_fwd_inputs.input_tensors["mask"]


class OnlineRetention(OnlineFunc):
    """The sum of magnitudes so far is the divisor; the output is scaled from the old one to the new."""

    def __init__(self) -> None:
        online_rowscales = {"r_wo_clamp": SymbolScalar("r_wo_clamp", Var("0.0")), "r": SymbolScalar("r", Var("0.0"))}
        super().__init__(online_rowscales, {"r": SymbolScalar("r", Var("0.0"))}, CustomIO())

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        r_wo_clamp = online_rowscales["r_wo_clamp"] + scores.get_reduce("abssum")
        r = r_wo_clamp.max(1.0)
        return scores / r, {"r_wo_clamp": r_wo_clamp, "r": r}, online_rowscales["r"] / r

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return o, {"r": online_rowscales["r"]}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return scores / final_rowscales["r"]

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return dp / final_rowscales["r"]


def main(argv: Sequence[str] | None = None) -> int:
    found = options(argv, __doc__, batch=1, heads=8, length=512)
    B, H, S = found.batch, found.heads, found.length
    qkv_meta = tuple(meta_tensor(B, H, S, dim, dtype=found.dtype) for dim in (D, D, DV))
    mod = AttentionEngine(
        qkv_meta, CustomIO({"mask": (1, "heads", "seq_len", "seq_len_kv")}),
        score_mod=score_mod, mask_mod=causal_mask, mask_value="0", online_func=OnlineRetention(),
    )  # fmt: skip
    gamma = 1 - torch.exp2(-5 - torch.arange(H, device=found.device, dtype=torch.float64))
    distance = torch.arange(S, device=found.device)[:, None] - torch.arange(S, device=found.device)
    mask = torch.where(distance >= 0, gamma[:, None, None] ** distance.clamp(min=0), 0)[None].to(found.dtype)

    def formula(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        def weights(s: torch.Tensor) -> torch.Tensor:
            s = s * mask
            return s / s.abs().sum(-1, keepdim=True).clamp(min=1).detach()  # training takes the divisor for a constant

        return dense(q, k, v, weights)

    inputs = {"q": normal(found, B, S, H, D) * D**-0.5, "k": normal(found, B, S, H, D), "v": normal(found, B, S, H, DV)}
    return compare(mod, formula, inputs, [mask])


if __name__ == "__main__":
    raise SystemExit(main())
