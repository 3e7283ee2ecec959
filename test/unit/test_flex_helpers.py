"""FlexAttention's own helpers and block masks, taken as they are."""

from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, and_masks, create_block_mask, create_mask, noop_mask, or_masks

import attn_mlir
from api_helpers import assert_near, inputs, reference
from attn_mlir import ArgumentError, Attention, AttentionEngine, OnlineSoftmax, TraceError, attention, meta_tensor

LENGTH = 150


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx - kv_idx).abs() < 20 + h


MASKS = {
    "noop": noop_mask,
    "and": and_masks(causal, window),
    "or": or_masks(causal, window),
    "empty": and_masks(),
    "nested": and_masks(or_masks(causal, and_masks(window, noop_mask)), noop_mask, window),
}


def square() -> list[torch.Tensor]:
    return inputs(b=2, h=2, hkv=2, sq=LENGTH, skv=LENGTH, d=8, dv=8)


def expected(mask: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """The attention with the mask as FlexAttention makes it."""
    kept = create_mask(mask, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device="cpu")
    return torch.nn.functional.scaled_dot_product_attention(q.double(), k.double(), v.double(), attn_mask=kept)


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks(mask: Any) -> None:
    q, k, v = square()
    wanted = expected(mask, q, k, v)
    assert_near(attention(q, k, v, mask_mod=mask), wanted)
    block_mask = create_block_mask(mask, 2, 2, LENGTH, LENGTH, device="cpu")
    assert_near(attention(q, k, v, mask_mod=block_mask), wanted)
    ours = attn_mlir.create_block_mask(mask, None, 2, LENGTH, LENGTH)
    assert_near(attention(q, k, v, mask_mod=ours), wanted)


def test_compile() -> None:
    q, k, v = square()
    mask = MASKS["nested"]
    block_mask = create_block_mask(mask, 2, 2, LENGTH, LENGTH, device="cpu")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Any) -> torch.Tensor:
        return attention(q, k, v, mask_mod=mask) + 2 * attention(q, k, v, mask_mod=block_mask) + 3 * attention(q, k, v, mask_mod=given)

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert_near(compiled(q, k, v, block_mask), 6 * expected(mask, q, k, v))


def test_compile_refuses_what_attention_refuses() -> None:
    q, k, v = square()
    block_mask = create_block_mask(causal, 2, 2, LENGTH, LENGTH, device="cpu")
    compiled = torch.compile(lambda q, mask: attention(q, k[:, :, : q.shape[2]], v[:, :, : q.shape[2]], mask_mod=mask), fullgraph=True)
    with pytest.raises(Exception, match="is a slice of another"):
        compiled(q, block_mask[0])
    with pytest.raises(Exception, match="block_mask was made for a length of 150, but it is 100 in this call"):
        compiled(q[:, :, :100], block_mask)
    with pytest.raises(Exception, match=r"made inside of torch\.compile"):
        torch.compile(lambda q: attention(q, k, v, mask_mod=create_block_mask(causal, 2, 2, LENGTH, LENGTH, device="cpu")))(q)


def test_a_mask_and_scores_of_new_tensors() -> None:
    """From PyTorch's tests, where an index is made by `new_zeros`; and the other ways to make a number of a traced value."""
    q, k, v = square()
    table = torch.randn(2, 1, LENGTH, LENGTH)

    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        first = h.new_zeros(h.shape)
        one = score.new_ones(()) * score.new_full((), 0.5) + q_idx.new_tensor(0.5) + h.new_ones(size=(), dtype=torch.float32)
        return score * one + torch.ops.aten.index(table, [b, first, q_idx, kv_idx]) + q_idx.new_full((1,), 7.9) + score.new_tensor([2.0])

    def plain(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 1.5 + table[b, 0, q_idx, kv_idx] + 9.0  # an integer's new_tensor(0.5) is 0, and its new_full(..., 7.9) 7

    wanted, lse = reference(q, k, v, score_mod=plain)
    o, got = attention(q, k, v, score_mod=score_mod, return_lse=True)
    assert_near(o, wanted)
    assert_near(got, lse)
    with pytest.raises(TraceError, match=r"new_zeros\(3, 2\) makes a tensor of several numbers"):
        attention(q, k, v, score_mod=lambda s, b, h, i, j: s + s.new_zeros(3, 2))


def test_objects_hold_to_the_sizes_of_a_block_mask() -> None:
    q, k, v = square()
    document = torch.arange(LENGTH) // 40
    mask = and_masks(causal, lambda b, h, i, j: document[i] == document[j])
    block_mask = create_block_mask(mask, None, None, LENGTH, LENGTH, device="cpu")
    wanted = expected(mask, q, k, v)
    made = Attention(mask_mod=block_mask)
    assert_near(made(q, k, v), wanted)
    with pytest.raises(ArgumentError, match="made for a length of 150, but it is 100 in this call"):
        made(q[:, :, :100], k, v)
    metas = tuple(meta_tensor("B", "H", "S", 8, dtype=torch.float32) for _ in range(3))
    turned = [tensor.transpose(1, 2) for tensor in (q, k, v)]

    def scaled(s: Any, c: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * 8**-0.5

    def engine_of(**given: Any) -> AttentionEngine:
        return AttentionEngine(metas, score_mod=scaled, online_func=OnlineSoftmax(), **given)

    for engine in (engine_of(block_mask=block_mask), engine_of(mask_mod=block_mask)):
        assert_near(engine(*turned).transpose(1, 2), wanted)
        assert_near(engine(*turned, block_mask=block_mask).transpose(1, 2), wanted)
        with pytest.raises(ArgumentError, match="made for a length of 150, but it is 100 in this call"):
            engine(*[tensor[:, :100] for tensor in turned])
    with torch.no_grad():
        compiled = torch.compile(engine_of(block_mask=block_mask), fullgraph=True, backend="aot_eager")
        assert_near(compiled(*turned).transpose(1, 2), wanted)
        document.copy_(torch.arange(LENGTH) // 30)
        assert torch.equal(compiled(*turned), engine_of(mask_mod=mask)(*turned))
        document.copy_(torch.arange(LENGTH) // 40)
    with pytest.raises(ArgumentError, match="is a slice of another"):
        AttentionEngine(metas, online_func=OnlineSoftmax(), block_mask=block_mask[0])
    other = create_block_mask(mask, 3, None, LENGTH, LENGTH, device="cpu")
    with pytest.raises(ArgumentError, match="made for a batch size of 3, but it is 2 in this call"):
        attention(q, k, v, mask_mod=other)


def test_blocks_that_are_not_those_of_the_mask_are_refused() -> None:
    q, k, v = square()

    def by_batch(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (q_idx >= kv_idx) & (kv_idx >= b * 128)

    whole = create_block_mask(by_batch, 2, 2, LENGTH, LENGTH, device="cpu")
    with pytest.raises(ArgumentError, match="is a slice of another"):
        attention(q, k, v, mask_mod=whole[:, 0])
    of_second = whole[1:2]
    of_second.mask_mod = whole.mask_mod
    half = [tensor[:1] for tensor in (q, k, v)]
    tables = (whole.kv_num_blocks, whole.kv_indices, whole.full_kv_num_blocks, whole.full_kv_indices)
    without = BlockMask.from_kv_blocks(*tables, seq_lengths=(LENGTH, LENGTH))
    narrower = BlockMask.from_kv_blocks(*tables, mask_mod=noop_mask, seq_lengths=(LENGTH, LENGTH))
    for (first, second, third), mask in ((half, of_second), ((q, k, v), without), ((q, k, v), narrower)):
        with pytest.raises(ArgumentError, match="not those that its mask_mod keeps"):
            attention(first, second, third, mask_mod=mask)
    assert_near(attention(q, k, v, mask_mod=whole), expected(by_batch, q, k, v).nan_to_num(0.0))
    whole.mask_mod = noop_mask  # after it was found to be good
    with pytest.raises(ArgumentError, match="not those that its mask_mod keeps"):
        attention(q, k, v, mask_mod=whole)
