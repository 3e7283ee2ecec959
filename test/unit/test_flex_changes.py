"""What changes between two calls of `flex_attention` where torch keeps no account of it, and scores that are NaN."""

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import attn_mlir
from attn_mlir import flex
from flex_dense import compare, dense, qkv

flex_attention: Any = flex.flex_attention
MAKERS: dict[str, Any] = {"ours": flex.create_block_mask, "torchs": torch_flex.create_block_mask}


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


@pytest.mark.parametrize("how", ["numpy", "data", "inference"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_table_that_changes_without_a_new_version(how: str, maker: str) -> None:
    q, k, v = qkv(sq=40)
    with torch.inference_mode(how == "inference"):
        mask = MAKERS[maker](causal, None, None, 40, 40, device="cpu", BLOCK_SIZE=8)
        table = mask.full_kv_num_blocks
        compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=causal)[0])
        if how == "numpy":
            table.numpy()[:] = 0
        else:
            (table.data if how == "data" else table).fill_(0)
        wanted = dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (m // 8 == n // 8))[0]
        compare(flex_attention(q, k, v, block_mask=mask), wanted)


def test_a_table_given_to_attention_that_changes_in_inference_mode() -> None:
    q, k, v = qkv(sq=40)
    with torch.inference_mode():
        mask: Any = MAKERS["torchs"](causal, None, None, 40, 40, device="cpu", BLOCK_SIZE=8)
        compare(attn_mlir.attention(q, k, v, mask_mod=mask), dense(q, k, v, mask_mod=causal)[0])
        mask.full_kv_num_blocks.fill_(0)
        with pytest.raises(attn_mlir.ArgumentError, match="not those that its mask_mod keeps"):
            attn_mlir.attention(q, k, v, mask_mod=mask)


def test_the_lse_of_a_row_with_a_nan_is_nan() -> None:
    q, k, v = qkv()
    q[0, 1, 3, 2] = torch.nan
    for score_mod in (None, lambda score, b, h, m, n: score * 2.0):
        for request in (flex.AuxRequest(lse=True), flex.AuxRequest(lse=True, max_scores=True)):
            o, aux = flex_attention(q, k, v, score_mod, return_aux=request)
            assert o.isnan().sum() == 16 and aux.lse.isnan().sum() == 1 and aux.lse[0, 1, 3].isnan()
