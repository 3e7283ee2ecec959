"""Forward kernels on an NVIDIA GPU where the maximum of a row comes late, moves often, or is far from the first scores.

Blocks of keys are visited from the last to the first, so scores that grow towards the first key make every block find a new maximum.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import masks
from attn_mlir.backends.nvidia.tuning.choices import EVERY, with_choices
from attn_mlir.testing.rewriting import Rewriting
from gpu_cases import GPU

pytestmark = GPU

DTYPES = (torch.float16, torch.bfloat16)
MASKS: dict[str, Callable[..., Any] | None] = {"full": None, "causal": masks.causal(), "window": masks.sliding_window(300)}


def ramp(
    lengths: tuple[int, int], dtype: torch.dtype, start: float, slope: float, heads: tuple[int, int] = (4, 2), columns: int = 64
) -> list[torch.Tensor]:
    """Queries, keys, values [1, heads, length, columns] whose scores, after their scale, are about start + slope * j for key j."""
    sq, skv = lengths
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, h, s, columns, generator=generator) for h, s in zip((heads[0], heads[1], heads[1]), (sq, skv, skv), strict=True)
    )
    q[..., 0] = columns**0.5
    k[..., 0] = start + slope * torch.arange(skv)
    return [x.to("cuda", dtype) for x in (q, k, v)]


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: str, alibi: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The output and the log-sum-exp in float64; fully masked rows give 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    s = q.double() @ k.double().repeat_interleave(group, 1).mT * q.shape[3] ** -0.5
    i, j = torch.arange(q.shape[2], device="cuda")[:, None], torch.arange(k.shape[2], device="cuda")
    if alibi is not None:
        s = s + alibi.double()[:, None, None] * (j - i)
    if mask != "full":
        s = s.masked_fill(j > i if mask == "causal" else (j > i) | (j < i - 300), -torch.inf)
    lse = s.logsumexp(-1)
    weights = (s - lse.clamp_min(-1e300)[..., None]).exp()
    return weights @ v.double().repeat_interleave(group, 1), lse


def compare(tensors: list[torch.Tensor], mask: str, alibi: torch.Tensor | None = None, **choices: int | str) -> None:
    """o and lse against float64, twice, with the same bits; `choices` for the schedule."""

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + alibi[h] * (kv_idx - q_idx)  # pyright: ignore[reportOptionalSubscript]

    q, k, v = tensors
    run = attn_mlir.Attention(mask_mod=MASKS[mask], score_mod=None if alibi is None else mod, return_lse=True)
    if choices:
        run._tuning = Rewriting(lambda text: with_choices(text, {EVERY: choices}))
    with torch.no_grad():
        (o, lse), again = (run(q, k, v) for _ in range(2))
    assert torch.equal(o, again[0])
    assert torch.equal(lse, again[1])
    expected, expected_lse = dense(q, k, v, mask, alibi)
    error = (o.double() - expected).norm() / expected.norm()
    assert error < (2e-3 if o.dtype == torch.float16 else 1.2e-2)
    present = expected_lse > -torch.inf
    assert torch.equal(present, lse > -torch.inf)
    scale = 1e-3 if o.dtype == torch.float16 else 8e-3
    torch.testing.assert_close(lse[present].double(), expected_lse[present], rtol=1e-5, atol=scale)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("slope", [0.03, 0.2, -0.05, -0.12, -0.35, -1.0], ids=lambda slope: f"slope{slope}")
def test_scores_that_grow_along_the_keys(slope: float, mask: str, dtype: torch.dtype) -> None:
    compare(ramp((1000, 1000), dtype, 5.0, slope), mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", ["full", "causal"])
@pytest.mark.parametrize("where", [0, 77, 500])
def test_one_huge_score(where: int, mask: str, dtype: torch.dtype) -> None:
    q, k, v = ramp((700, 1024), dtype, 0.0, 0.0)
    k[..., where, 0] = 10000.0
    compare([q, k, v], mask)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("start", [-300.0, -20.0, 200.0])
def test_scores_far_from_zero(start: float, dtype: torch.dtype) -> None:
    compare(ramp((512, 640), dtype, start, 0.0), "full")
    compare(ramp((512, 640), dtype, start, -0.03), "causal")


@pytest.mark.parametrize("lengths", [(1, 1), (1, 700), (17, 1), (127, 129), (1000, 64), (193, 2000), (2000, 193)], ids=str)
@pytest.mark.parametrize("mask", MASKS)
def test_lengths_and_rows_without_keys(lengths: tuple[int, int], mask: str) -> None:
    compare(ramp(lengths, torch.float16, 1.0, -0.11, (6, 2)), mask)


@pytest.mark.parametrize("choices", [{"lazy_rescale": 1}, {"lazy_rescale": 1, "sums": "product"}, {"sums": "product"}], ids=str)
@pytest.mark.parametrize("mask", ["full", "causal"])
def test_with_a_score_mod(mask: str, choices: dict[str, Any]) -> None:
    slopes = torch.tensor([-0.3, -0.01, 0.05, 0.25], device="cuda")
    compare(ramp((600, 900), torch.float16, 2.0, 0.02), mask, slopes, flow="flat", **choices)


@pytest.mark.parametrize("choices", [{"lazy_rescale": 0}, {"sums": "own"}, {"block_q": 128}], ids=str)
@pytest.mark.parametrize("lengths", [(1, 300), (1000, 1000), (129, 700), (700, 129)], ids=str)
def test_each_saving_alone(lengths: tuple[int, int], choices: dict[str, Any]) -> None:
    compare(ramp(lengths, torch.float16, 1.0, -0.11), "causal", **choices)


LONG = {"flow": "each", "lazy_rescale": 1, "block_kv": 192, "consumer_registers": 240, "producer_registers": 24}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("choices", [{"lazy_rescale": 1}, LONG], ids=["flat", "each"])
def test_wide_heads_keep_old_maxima(choices: dict[str, Any], mask: str, dtype: torch.dtype) -> None:
    """128 columns: maxima that stay, move now and then, move in every block, and come last."""
    for slope in (0.0, -0.05, -0.12, -1.0):
        compare(ramp((1000, 1000), dtype, 2.0, slope, columns=128), mask, **choices)
    for lengths in ((1, 700), (129, 127), (193, 2000)):
        compare(ramp(lengths, dtype, 1.0, -0.11, (6, 2), 128), mask, **choices)
    q, k, v = ramp((700, 1024), dtype, 0.0, 0.0, columns=128)
    k[..., 77, 0] = 10000.0
    compare([q, k, v], mask, **choices)
