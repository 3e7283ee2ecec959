# pyright: reportMissingImports=false
"""AttentionEngine's quick start with its own module names, for a CPU; run with the name of the mask argument."""

import sys

import torch

from attn_engine import AttentionEngine, OnlineFunc
from core import SymbolScalar, Var
from core.core import CustomIO, create_block_mask
from core.utils import meta_tensor

D = 128
softmax_scale = 1 / D**0.5


def score_mod(score, custom_fwd_inputs, b, h, q_idx, kv_idx):
    return score * softmax_scale


custom_fwd_inputs = CustomIO({})


class OnlineSoftmax(OnlineFunc):
    def __init__(self):
        online_rowscales = {
            "m": SymbolScalar("m", Var("-inf")),
            "r": SymbolScalar("r", Var("0.0")),
        }
        final_rowscales = {
            "lse": SymbolScalar("lse", Var("0.0")),
        }
        external_fwd_inputs = custom_fwd_inputs
        super().__init__(online_rowscales, final_rowscales, external_fwd_inputs)

    @staticmethod
    def online_fwd(scores, online_rowscales, b, h, q_idx):
        m, r = online_rowscales["m"], online_rowscales["r"]
        m_new = m.max(scores.get_reduce("max"))
        scale_tmp = (m - m_new).exp()
        r = r * scale_tmp

        scores = (scores - m_new).exp()
        r = r + scores.get_reduce("sum")

        new_online_rowscales = {
            "m": m_new,
            "r": r,
        }
        o_scale = scale_tmp
        return scores, new_online_rowscales, o_scale

    @staticmethod
    def online_fwd_epilogue(o, online_rowscales, b, h, q_idx):
        o_new = o / online_rowscales["r"]
        lse = (online_rowscales["r"]).log() + online_rowscales["m"]
        final_rowscales = {
            "lse": lse,
        }
        return o_new, final_rowscales

    @staticmethod
    def forward(scores, final_rowscales, b, h, q_idx, kv_idx):
        lse = final_rowscales["lse"]
        scores_new = (scores - lse).exp()
        return scores_new

    @staticmethod
    def backward(dp, scores, final_rowscales, doosum_rowscales, b, h, q_idx, kv_idx):
        dppsum = doosum_rowscales
        dscores = (dp - dppsum) * scores
        return dscores


def causal_mask(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def main(argument):
    B, H, S, D, DV = 1, 2, 193, 128, 128
    dtype = torch.float16
    qkv_meta = (
        meta_tensor(B, H, S, D, dtype=dtype),
        meta_tensor(B, H, S, D, dtype=dtype),
        meta_tensor(B, H, S, DV, dtype=dtype),
    )
    masks = {
        "block_mask": {"block_mask": causal_mask},
        "mask_mod": {"mask_mod": causal_mask},
        "create_block_mask": {"block_mask": create_block_mask(causal_mask, 1, 1, S, S, device="cpu")},
    }
    mod = AttentionEngine(
        qkv_meta,
        custom_fwd_inputs,
        score_mod=score_mod,
        **masks[argument],
        online_func=OnlineSoftmax(),
        tune=False,
        tune_file="mha_tune.json",
    )

    q = torch.randn(B, S, H, D, dtype=dtype, device="cpu", requires_grad=True)
    k = torch.randn(B, S, H, D, dtype=dtype, device="cpu", requires_grad=True)
    v = torch.randn(B, S, H, DV, dtype=dtype, device="cpu", requires_grad=True)
    out = mod(q, k, v)
    out.backward(torch.ones_like(out))
    return q, k, v, out


if __name__ == "__main__":
    q, k, v, out = main(sys.argv[1])
    query, key, value = (x.float().transpose(1, 2) for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)
    print("error", (out.float() - expected).abs().max().item())
