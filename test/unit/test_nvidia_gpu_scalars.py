"""Scalar functions as kernels compute them, for whole blocks of pairs on a GPU: values are identity matrices, so outputs are weights."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import rows
from attn_mlir.frontend.elementary import approximate_tanh, exp, tanh
from gpu_cases import GPU

pytestmark = GPU
_KEYS = 128
_SMALL = 2.0**-25


def _weights(row: Callable[..., Any], queries: torch.Tensor, keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The weights of the scores queries[i] * keys[j], and the scores in float64."""
    q, k = (torch.zeros(1, 1, len(x), _KEYS, device="cuda", dtype=x.dtype) for x in (queries, keys))
    q[..., 0], k[..., 0] = queries, keys
    v = torch.eye(_KEYS, device="cuda", dtype=queries.dtype)[None, None]
    o = attn_mlir.attention(q, k, v, row=row, scale=1.0)
    return o[0, 0].double(), queries.double()[:, None] * keys.double()


def _scores(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys whose products go from -60 to 60, in all sizes from 2^-24 on."""
    keys = torch.cat([torch.linspace(-60, 60, 96), 2.0 ** torch.linspace(-12, 5, 16), -(2.0 ** torch.linspace(-12, 5, 16))])
    queries = torch.cat([torch.linspace(0.5, 1.0, 96), 2.0 ** torch.linspace(-12, 0, 32)])
    return queries.to("cuda", dtype), keys.to("cuda", dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        (rows.sigmoid, torch.sigmoid),
        (lambda s: tanh(s), torch.tanh),
        (lambda s: exp(30.0 * tanh(s / 30.0) - 30.0), lambda s: torch.exp(30.0 * torch.tanh(s / 30.0) - 30.0)),
        (lambda s: 1.0 / (2.0 + exp(s)), lambda s: 1.0 / (2.0 + torch.exp(s))),
    ],
    ids=["sigmoid", "tanh", "softcap", "other divisor"],
)
def test_values(row: Callable[..., Any], wanted: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    found, scores = _weights(row, *_scores(dtype))
    exact = wanted(scores)
    # Half an ulp of the output, what 30 tanh(s) is off by in an exponential, and the smallest halves.
    allowed = exact.abs() * (torch.finfo(dtype).eps / 2 + 1e-4) + 1.5e-6 + (_SMALL if dtype == torch.float16 else 0.0)
    assert not (found - exact).abs().gt(allowed).any(), ((found - exact).abs() / allowed).max()


def test_small_weights_keep_their_relative_accuracy() -> None:
    found, scores = _weights(rows.sigmoid, *_scores(torch.bfloat16))
    exact = torch.sigmoid(scores)
    assert exact.min() < 1e-15
    kept = exact > 2.0**-63
    assert ((found - exact).abs() <= exact * (2.0**-8 + 1e-4))[kept].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_approximate_functions(dtype: torch.dtype) -> None:
    found, scores = _weights(rows.approximate_sigmoid, *_scores(dtype))
    exact = torch.sigmoid(scores)
    off = (found - exact).abs()
    assert (off <= 2.0**-12 + exact * torch.finfo(dtype).eps / 2 + _SMALL).all(), off.max()
    # By the instruction: weights that are exact would keep their digits here.
    assert (off > exact * 0.01)[exact < 2.0**-13].any()
    found, scores = _weights(lambda s: approximate_tanh(s), *_scores(dtype))
    assert ((found - scores.tanh()).abs() <= 2.0**-11 + torch.finfo(dtype).eps / 2).all()


@pytest.mark.parametrize("row", [rows.sigmoid, lambda s: tanh(s)], ids=["sigmoid", "tanh"])
def test_extremes(row: Callable[..., Any]) -> None:
    queries = torch.full((_KEYS,), 1.0, device="cuda", dtype=torch.float16)
    keys = torch.tensor([0.0, 65504.0, -65504.0, 1000.0] * (_KEYS // 4), device="cuda", dtype=torch.float16)
    queries[1], queries[2], queries[3] = 65504.0, -65504.0, 2.0**-24
    wanted = torch.sigmoid if row is rows.sigmoid else torch.tanh
    found, scores = _weights(row, queries, keys)
    assert (found - wanted(scores)).abs().max() <= 2.0**-11


def test_nan_of_one_query_reaches_no_other() -> None:
    queries, keys = _scores(torch.float16)
    found, _ = _weights(rows.sigmoid, queries, keys)
    poisoned = queries.clone()
    poisoned[9] = torch.nan
    again, _ = _weights(rows.sigmoid, poisoned, keys)
    assert again[9].isnan().all()
    others = torch.arange(_KEYS, device="cuda") != 9
    assert again[others].equal(found[others])
