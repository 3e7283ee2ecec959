"""Gradients, tangents and second derivatives of every row function, under masks and score mods, against autograd in float64."""

import itertools
import os

import pytest
import torch

from gradient_cases import MASKS, MODS, ROWS, row_case, softmax
from gradient_checks import Case, check, random

EVERY = os.environ.get("ATTN_MLIR_SLOW_TESTS", "") not in ("", "0")
_MASKS, _MODS = list(MASKS), list(MODS)


def _combinations() -> list[tuple[str, str, str]]:
    """All of them if asked for; else two for each row, in which every mask meets every score mod."""
    if EVERY:
        return list(itertools.product(ROWS, _MASKS, _MODS))
    return [(row, _MASKS[(i + j) % 4], _MODS[(i // 4 + 3 * j) % 4]) for i, row in enumerate(ROWS) for j in (0, 1)]


@pytest.mark.parametrize(("row", "mask", "mod"), _combinations())
def test_row(row: str, mask: str, mod: str) -> None:
    check(row_case(row, mask, mod), second=True)


def test_combinations_cover_pairs() -> None:
    every = _combinations()
    assert {row for row, _, _ in every} == set(ROWS)
    assert {(mask, mod) for _, mask, mod in every} == set(itertools.product(MASKS, MODS))


@pytest.mark.parametrize("row", list(ROWS))
def test_rows_without_keys(row: str) -> None:
    """They give no gradient, and never NaN, whatever the formula is where there is nothing to divide by."""
    usual = row_case(row, "full", "bias")

    def make(t: object) -> dict[str, object]:
        return {**usual.make(t), "mask_mod": lambda b, h, q_idx, kv_idx: (q_idx % 3 != 1) & (b * 0 + kv_idx < 5)}

    check(Case(make, usual.tensors, usual.inputs, lse=False), second=True)


def test_no_row_has_keys() -> None:
    case = Case(
        lambda t: {"row": softmax, "mask_mod": lambda b, h, q, k: k + q < 0, "score_mod": lambda s, b, h, q, k: s + t.x[q, k]},
        {"x": random(6, 7)},
        lse=True,
    )
    check(case, second=True)


def test_the_check_can_fail() -> None:
    """A row that the dense formula takes another value of must be found out."""
    wrong = Case(lambda t: {"row": softmax, "dense_row": lambda s: softmax(s) * 1.000001})
    with pytest.raises(AssertionError, match="dq"):
        check(wrong)


def test_scale_and_all_outputs() -> None:
    """A row with several states, all of them in the loss."""

    def row(s: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        m = s.max()
        e = torch.exp(s - m)
        l = e.sum()
        p = e / l
        return p, {"lse": m + torch.log(l), "top": p.max(), "energy": (p * s).sum(), "spread": (p * s * s).sum() - (p * s).sum() ** 2}

    check(Case(lambda t: {"row": row, "mask_mod": MASKS["causal"]}, lse=True, scale=0.8), second=True)
