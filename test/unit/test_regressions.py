"""Mistakes that were found by trying to break the compiler, each with the program that showed it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from api_helpers import assert_near, inputs, reference
from attn_mlir.errors import ArgumentError


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def _flipped(turn: float) -> Callable[[Any], Any]:
    """Weights that grow where the score falls, once `turn` is large: a score of -inf must not stand for an absent key."""

    def row(s: Any) -> Any:
        m = s.max()
        return torch.exp(torch.where(m * 0.0 + turn > 10.0, -1.0, 1.0) * s)

    return row


def test_a_condition_on_a_captured_number_does_not_hide_what_masked_keys_weigh() -> None:
    q, k, v = inputs()
    for turn, sign in ((0.0, 1.0), (20.0, -1.0)):
        expected, _ = reference(q, k, v, lambda s, keep, sign=sign: torch.exp(sign * s), mask_mod=causal)
        assert_near(attn_mlir.attention(q, k, v, row=_flipped(turn), mask_mod=causal), expected)


def test_a_condition_on_a_large_row_maximum_does_not_hide_what_masked_keys_weigh() -> None:
    def row(s: Any) -> Any:
        return torch.where(s.max() > 3000.0, 1.0 + s * 0.0, torch.exp(s - s.max()))

    def weights(s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        m = s.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
        return torch.where(m > 3000.0, torch.ones_like(s), torch.exp(s - m))

    q, k, v = inputs()
    q = q * 3000.0
    expected, _ = reference(q, k, v, weights, mask_mod=causal)
    assert_near(attn_mlir.attention(q, k, v, row=row, mask_mod=causal), expected, 1e-4)


@pytest.mark.parametrize("position", range(4))
def test_tensors_with_a_pending_negation_are_read_as_they_print(position: int) -> None:
    bias = torch.randn(53, generator=torch.Generator().manual_seed(1))
    tensors = [*inputs(), bias]
    negated = [-t if i == position else t for i, t in enumerate(tensors)]
    expected, _ = reference(negated[0], negated[1], negated[2], score_mod=_add(negated[3]))
    tensors[position] = torch.ops.aten._neg_view(tensors[position])  # as conj() and .imag give it
    q, k, v, bias = tensors
    assert_near(attn_mlir.attention(q, k, v, score_mod=_add(bias)), expected)


def _add(bias: torch.Tensor) -> Callable[..., Any]:
    return lambda score, b, h, q_idx, kv_idx: score + bias[kv_idx]


def test_the_default_device_of_torch_does_not_matter() -> None:
    q, k, v = inputs()
    expected = attn_mlir.attention(q, k, v, return_lse=True)
    torch.set_default_device("meta")
    try:
        actual = attn_mlir.attention(q, k, v, return_lse=True)
    finally:
        torch.set_default_device(None)
    assert all(torch.equal(a, e) for a, e in zip(actual, expected, strict=True))


def test_tensors_without_memory_are_refused() -> None:
    q, k, v = inputs(sq=53)
    table = torch.eye(53).to_sparse()
    with pytest.raises(ArgumentError, match="must be dense"):
        attn_mlir.attention(q, k, v, score_mod=lambda score, b, h, q_idx, kv_idx: score + table[q_idx, kv_idx])
    # Under vmap tensors have no memory of their own either, but there is a rule for it.
    assert torch.equal(torch.vmap(lambda x: attn_mlir.attention(x, k, v))(q[None])[0], attn_mlir.attention(q, k, v))


def test_quotients_that_do_not_exist_do_not_stop_the_process() -> None:
    q, k, v = inputs()
    least, minus = torch.full((53,), -(2**63)), torch.full((53,), -1)
    table = torch.randn(9, generator=torch.Generator().manual_seed(1))
    for score_mod in (
        lambda score, b, h, q_idx, kv_idx: score + (least[kv_idx] // minus[kv_idx]),
        lambda score, b, h, q_idx, kv_idx: score + table[(least[kv_idx] % minus[kv_idx]) % 9],
        lambda score, b, h, q_idx, kv_idx: score + torch.fmod(least[kv_idx], minus[kv_idx]),
    ):
        assert attn_mlir.attention(q, k, v, score_mod=score_mod).isfinite().all()


def test_captured_numbers_out_of_range() -> None:
    q, k, v = inputs()

    def fill(number: float) -> Callable[..., Any]:
        return lambda score, b, h, q_idx, kv_idx: torch.where(kv_idx < 7, score, number)

    expected = attn_mlir.attention(q, k, v, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx < 7)
    assert_near(attn_mlir.attention(q, k, v, score_mod=fill(-1e300)), expected.double())
    with pytest.raises(ArgumentError, match="64 bits"):
        attn_mlir.attention(q, k, v, score_mod=fill(2**63))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_layer_norm_row_in_16_bits(dtype):
    """Rows with a single key must give 0: (s - mean) / std, where accumulators of rounded weights would leave the rounding."""

    def layer_norm(s):
        d = s - s.mean()
        return d / ((d * d).mean() + 1e-5).sqrt()

    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, 2, 40, 32).to(dtype)
    o = attn_mlir.attention(q, k, v, row=layer_norm, mask_mod=lambda b, h, i, j: (i - j < 3) & (j <= i))
    assert (o[:, :, 0] == 0).all()
    scores = q.double() @ k.double().transpose(-1, -2) / 32**0.5
    distance = torch.arange(40)[:, None] - torch.arange(40)
    present = (distance >= 0) & (distance < 3)
    count = present.sum(-1, keepdim=True)
    centred = (scores - (scores * present).sum(-1, keepdim=True) / count) * present
    weights = centred / ((centred * centred).sum(-1, keepdim=True) / count + 1e-5).sqrt()
    assert (o.double() - weights @ v.double()).abs().max() < (4e-3 if dtype == torch.float16 else 3e-2)
