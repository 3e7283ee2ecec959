"""Row functions on the CPU against dense float64, and row states."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from api_helpers import assert_near, inputs, reference, softmax
from attn_mlir import Attention, UnsupportedError, attention, masks, rows

SINK = torch.tensor([0.5, -1.0, 2.0, 0.0])
Weights = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _with_sink(s: torch.Tensor, keep: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    extra = sink.double().view(1, -1, 1, 1).expand(*s.shape[:3], 1)
    return torch.cat([s.masked_fill(~keep, -torch.inf), extra], -1).softmax(-1)[..., :-1]


def _total(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return x.masked_fill(~keep, 0.0).sum(-1, keepdim=True)


def _mean_centred(s: Any) -> Any:
    e = (s - s.mean()).exp()
    return e / e.sum()


def _expected_mean_centred(s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    e = (s - _total(s, keep) / _total(torch.ones_like(s), keep)).exp()
    return e / _total(e, keep)


def _range(s: Any) -> Any:
    return (s - s.min()) / (s.max() - s.min() + 1.0)


def _expected_range(s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    low, high = s.masked_fill(~keep, torch.inf).amin(-1, keepdim=True), s.masked_fill(~keep, -torch.inf).amax(-1, keepdim=True)
    return (s - low) / (high - low + 1.0)


def _seed_style(s: Any) -> Any:
    e = (s - s.get_reduce("max")).exp()
    return e / e.get_reduce("sum") + e * 0.0 * s.get_reduce("mean") + 0.0 * s.get_reduce("min")


ROWS: dict[str, tuple[Any, Weights]] = {
    "softmax": (rows.softmax, softmax),
    "torch softmax": (lambda s: torch.softmax(s, dim=-1), softmax),
    "from lse": (lambda s: (s - s.logsumexp(-1)).exp(), softmax),
    "amax": (lambda s: (s - torch.amax(s, dim=-1)).exp() / torch.sum((s - s.amax()).exp(), dim=-1), softmax),
    "get_reduce": (_seed_style, softmax),
    "softmax1": (rows.softmax1, lambda s, keep: _with_sink(s, keep, torch.zeros(4))),
    "sink by head": (rows.softmax_sink(SINK), lambda s, keep: _with_sink(s, keep, SINK)),
    "sink for all": (rows.softmax_sink(0.7), lambda s, keep: _with_sink(s, keep, torch.full((4,), 0.7))),
    "sink in a tensor": (rows.softmax_sink(torch.tensor(0.7)), lambda s, keep: _with_sink(s, keep, torch.full((4,), 0.7))),
    "sigmoid": (rows.sigmoid, lambda s, keep: s.sigmoid()),
    "approximate sigmoid": (rows.approximate_sigmoid, lambda s, keep: s.sigmoid()),
    "biased sigmoid": (rows.biased_sigmoid(-1.5), lambda s, keep: (s - 1.5).sigmoid()),
    "sigmoid biased by head": (rows.biased_sigmoid(SINK), lambda s, keep: (s + SINK.view(1, -1, 1, 1)).sigmoid()),
    "relu": (rows.relu, lambda s, keep: s.relu()),
    "relu squared": (rows.relu_squared, lambda s, keep: s.relu() ** 2),
    "relu normalized": (rows.relu_normalized, lambda s, keep: s.relu() / _total(s.relu(), keep).clamp(min=1e-30)),
    "identity": (rows.identity, lambda s, keep: s),
    "retention": (rows.retention, lambda s, keep: s / _total(s.abs(), keep).clamp(min=1.0)),
    "abssum": (lambda s: s / s.get_reduce("abssum"), lambda s, keep: s / _total(s.abs(), keep)),
    "mean-centred": (_mean_centred, _expected_mean_centred),
    "range": (_range, _expected_range),
    "with position": (
        lambda s, b, h, q_idx: s * (h + 1) / (q_idx + 1),
        lambda s, keep: s * torch.arange(1, 5).view(1, -1, 1, 1) / torch.arange(1, 38).view(1, 1, -1, 1),
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    row, weights = ROWS[name]
    q, k, v = inputs()
    for mask_mod in (masks.causal(), None):
        expected = (lambda b, h, i, j: i >= j) if mask_mod else None
        try:
            o = attention(q, k, v, row=row, mask_mod=mask_mod)
        except UnsupportedError:
            pytest.skip("no kernel for this row on the CPU")
        assert_near(o, reference(q, k, v, weights, mask_mod=expected)[0])


@pytest.mark.parametrize("shift", [300.0, -300.0])
def test_large_scores_do_not_overflow(shift: float) -> None:
    q, k, v = inputs()
    score_mod = lambda score, b, h, q_idx, kv_idx: score * 10.0 + shift  # noqa: E731
    for row, weights in (
        (rows.softmax, softmax),
        (rows.softmax1, lambda s, keep: _with_sink(s, keep, torch.zeros(4))),
        (rows.sigmoid, lambda s, keep: s.sigmoid()),
    ):
        o = attention(q, k, v, row=row, score_mod=score_mod)
        assert_near(o, reference(q, k, v, weights, score_mod=score_mod)[0], 1e-4)


def test_row_states() -> None:
    q, k, v = inputs()

    def row(s: Any) -> Any:
        m = s.max()
        e = (s - m).exp()
        return e / e.sum(), {"largest": m, "count": (s * 0 + 1).sum(), "unused": m * 2}

    o, states = attention(q, k, v, row=row, mask_mod=masks.causal(), return_states=True)
    assert list(states) == ["largest", "count", "unused"]
    causal = lambda b, h, i, j: i >= j  # noqa: E731
    assert_near(o, reference(q, k, v, mask_mod=causal)[0])
    assert torch.equal(states["count"][0, 0], torch.arange(1.0, 38.0))
    s = (q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2)) / 4
    keep = torch.arange(37)[:, None] >= torch.arange(53)[None]
    assert_near(states["largest"], s.masked_fill(~keep, -torch.inf).amax(-1))


def test_states_that_are_not_asked_for_are_not_computed() -> None:
    row = lambda s: (s, {"total": s.sum(), "lse": s.max()})  # noqa: E731
    assert "outputs = []" in Attention(row=row).ir()
    assert 'outputs = ["lse"]' in Attention(row=row, return_lse=True).ir()
    assert 'outputs = ["total", "lse"]' in Attention(row=row, return_states=True).ir()


def test_lse_is_natural_and_of_the_scores_unless_the_row_says_otherwise() -> None:
    q, k, v = inputs()
    o, lse = attention(q, k, v, row=rows.sigmoid, return_lse=True)
    assert_near(o, reference(q, k, v, lambda s, keep: s.sigmoid())[0])
    assert_near(lse, reference(q, k, v)[1])
    _, lse = attention(q, k, v, row=lambda s: (s, {"lse": s.sum()}), return_lse=True)
    s = (q.double() @ k.double().repeat_interleave(2, 1).transpose(-1, -2)) / 4
    assert_near(lse, s.sum(-1))


def test_predefined_rows_are_not_known_by_name() -> None:
    def mine(s: Any) -> Any:
        e = torch.exp(s - s.max())
        return e / e.sum()

    assert Attention(row=mine).ir() == Attention(row=rows.softmax).ir()


def test_weights_may_be_constant() -> None:
    q, k, v = inputs()
    assert_near(
        attention(q, k, v, row=lambda s: 1.0 / s.exp().exp().sum() * 0 + 1.0), reference(q, k, v, lambda s, keep: torch.ones_like(s))[0]
    )
    assert math.isfinite(float(attention(q, k, v, row=lambda s: 0.5).sum()))
