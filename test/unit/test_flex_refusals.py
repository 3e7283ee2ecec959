"""Errors of `flex_attention` that say more than torch's: of what is no block mask, and of the user's functions."""

from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import attn_mlir
from attn_mlir import flex

flex_attention: Any = flex.flex_attention


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


@pytest.mark.parametrize("given", [causal, torch.ones(9, 9, dtype=torch.bool), True], ids=["function", "tensor", "bool"])
def test_what_is_no_block_mask(given: Any) -> None:
    inputs = torch.randn(3, 2, 4, 9, 16)
    calls: list[Any] = [flex_attention, torch_flex.flex_attention]
    for call in calls:
        with pytest.raises(AttributeError) as told:
            call(*inputs, block_mask=given)
        if call is flex_attention:
            assert isinstance(told.value, attn_mlir.ArgumentError)
            assert "block_mask must be a BlockMask, got" in str(told.value) and "create_block_mask(mask_mod" in str(told.value)


def test_block_masks_of_engines_are_told_from_those_of_flex() -> None:
    """Both are called BlockMask, and attn_mlir has functions that make the one and take the other."""
    q, k, v = torch.randn(3, 1, 1, 9, 16)
    with pytest.raises(AttributeError, match=r"attn_mlir\.flex\.create_block_mask"):
        attn_mlir.flex_attention(q, k, v, block_mask=attn_mlir.create_block_mask(causal, None, None, 9, 9))


def test_errors_of_functions_are_told_as_they_are() -> None:
    inputs = torch.randn(3, 2, 4, 9, 16)

    def wrong(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        raise KeyError("mine")

    with pytest.raises(attn_mlir.TraceError, match="raised KeyError: 'mine'"):
        flex_attention(*inputs, wrong)
