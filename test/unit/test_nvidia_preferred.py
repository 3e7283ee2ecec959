"""Which emitter makes a kernel for Hopper where nobody asks for one: families that were measured, and what only looks like them."""

from typing import Any

import pytest
import torch

from attn_mlir import masks, mods, rows
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.program import OUTLINE, function_named
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects import loaded
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace

CAUSAL, CAPPED = masks.causal(), mods.softcap(20.0)


def made_by(text: str, function: str, prepare: str) -> str:
    """The emitter of the last kernel of a program."""
    return str(schedule_of(text, function, prepare)["emitter"])


def schedule_of(text: str, function: str, prepare: str, **choices: str | int) -> attributes.Fields:
    """The schedule of the last kernel of a program, for which somebody may have made `choices`."""
    with loaded() as context:
        module, host = scheduled(context, text, function, prepare, {"arch": "sm_90a", **choices}, pipeline.KERNEL, "NVIDIA", wide=True)
        kernels = [function_named(module, step.kernel) for step in host.steps if step.kernel]
        return attributes.read(kernels[-1], attributes.SCHEDULE)


def normalised(s: Any) -> Any:
    weights = s.max(0.0)
    return weights / (weights.sum() + 1e-6)


def near(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j >= i - 50) & (j <= i + 20)


def layer_norm(s: Any) -> Any:
    centred = s - s.mean()
    return centred / ((centred * centred).mean() + 1e-5).sqrt()


def two_passes(s: Any) -> Any:
    return (s - s.max() - (s * s).mean()).tanh()


SLOPES, DOCUMENTS, LENGTHS, TABLE = torch.ones(4), torch.zeros(64, dtype=torch.int32), torch.zeros(4, dtype=torch.int32), torch.zeros(256)
DENSE = torch.zeros(4, 64, 64)
ENTRIES = torch.zeros(4, 64, dtype=torch.int32)
SCORES: dict[str, Any] = {
    "alibi": lambda s, b, h, i, j: s + SLOPES[h] * (j - i),
    "table": lambda s, b, h, i, j: s + TABLE[i + j],
    "difference": lambda s, b, h, i, j: s + TABLE[i - j + 128],
    "product": lambda s, b, h, i, j: s + TABLE[(i * j) // 64],
    "capped": CAPPED,
    "bias": lambda s, b, h, i, j: s + DENSE[h, i, j],
    "halves": lambda s, b, h, i, j: s + DENSE.half()[h, i, j],
    "turned": lambda s, b, h, i, j: s + DENSE[h, j, i],
    "bias and table": lambda s, b, h, i, j: s + DENSE[h, i, j] + TABLE[i - j + 128],
}
MASKS: dict[str, Any] = {
    "documents": lambda b, h, i, j: (DOCUMENTS[i] == DOCUMENTS[j]) & (i >= j),
    "entries": lambda b, h, i, j: ENTRIES[b, i] == ENTRIES[b, j],
    "lengths": lambda b, h, i, j: j < LENGTHS[b],
    "two lengths": lambda b, h, i, j: (j < LENGTHS[b]) & (j >= LENGTHS[h]),
    "causal": CAUSAL,
}


@pytest.mark.parametrize(
    ("columns", "row", "mask", "score", "emitter"),
    [
        (256, rows.softmax, "causal", "", "warp"),
        (256, rows.softmax, "causal", "capped", "warp"),
        (256, rows.softmax, "causal", "alibi", "hopper"),
        (256, rows.sigmoid, "", "", "warp"),
        (256, normalised, "causal", "", "warp"),
        (128, normalised, "", "", "warp"),
        (128, two_passes, "causal", "", "warp"),
        (128, layer_norm, "", "", "warp"),
        (128, layer_norm, "causal", "", "hopper"),
        (128, rows.softmax, "documents", "", "warp"),
        (64, rows.softmax, "documents", "", "hopper"),  # 0.86 at 16384 keys
        (64, rows.softmax, "causal", "alibi", "warp"),
        (64, rows.retention, "causal", "", "warp"),
        (16, rows.softmax, "causal", "", "warp"),
        (128, rows.softmax, "entries", "", "warp"),
        (64, rows.softmax, "entries", "", "hopper"),
        (128, rows.softmax, "lengths", "", "warp"),
        (128, rows.softmax, "two lengths", "", "hopper"),
        (64, rows.softmax, "", "table", "warp"),
        (128, rows.softmax, "", "table", "hopper"),
        (128, normalised, "causal", "", "warp"),
        (128, rows.softmax, "", "difference", "hopper"),
        (128, rows.softmax, "", "product", "hopper"),
        (128, rows.softmax, "causal", "alibi", "hopper"),  # 0.97 at 4096 keys in one of two runs
        (96, rows.softmax, "causal", "alibi", "warp"),
        (64, rows.softmax, "", "bias", "warp"),
        (64, rows.softmax, "causal", "halves", "warp"),
        (128, rows.softmax, "causal", "bias", "warp"),
        (128, rows.softmax, "", "turned", "hopper"),
        (128, rows.softmax, "", "bias and table", "hopper"),
        (80, rows.softmax, "causal", "", "warp"),
        (72, rows.softmax, "causal", "", "warp"),
        (120, rows.softmax, "causal", "", "hopper"),
        (32, rows.softmax, "", "", "warp"),
    ],
)
def test_emitter_of_forward_passes(columns: int, row: Any, mask: str, score: str, emitter: str) -> None:
    definition = Definition(row, score_mod=SCORES.get(score), mask_mod=MASKS.get(mask), scale=0.125)
    text = trace(definition, Inputs("f16", columns, columns)).text
    assert made_by(text, "attention", OUTLINE) == emitter


@pytest.mark.parametrize(
    ("row", "mask", "score", "backward", "emitter"),
    [
        (rows.sigmoid, CAUSAL, None, False, "warp"),
        (normalised, CAUSAL, CAPPED, False, "hopper"),  # one exponential and no maximum, as a sigmoid has
        (rows.softmax, CAUSAL, None, True, "hopper"),  # of few keys: 1.07 times as fast
        (rows.softmax, near, None, True, "hopper"),  # windows: 0.87 of the speed
        (normalised, CAUSAL, None, True, "warp"),
        (normalised, near, None, True, "hopper"),
        (normalised, CAUSAL, CAPPED, True, "hopper"),
    ],
)
def test_emitter(row: Any, mask: Any, score: Any, backward: bool, emitter: str) -> None:
    text = trace(Definition(row, score_mod=score, mask_mod=mask, scale=0.125), Inputs("f16", 64, 64)).text
    prepared = derivative("bwd", ["q", "k", "v"], "sm_90a") if backward else ("attention", OUTLINE)
    assert made_by(text, *prepared) == emitter


def test_no_sums_are_late() -> None:
    """The Hopper emitter's plan for 128 columns has them late; as passes make them they were slower."""
    text = trace(Definition(rows.softmax, mask_mod=MASKS["documents"], scale=0.125), Inputs("f16", 128, 128)).text
    made = schedule_of(text, *derivative("bwd", ["q", "k", "v"], "sm_90a"))
    assert made["emitter"] == "warp" and "key_sums" not in made


@pytest.mark.parametrize(
    ("row", "mask", "score", "named"),
    [
        (rows.softmax, "causal", "", None),  # 0.96 in groups of heads
        (rows.softmax, "causal", "alibi", None),
        (rows.softmax, "lengths", "", 0),
        (rows.softmax, "causal", "capped", 1),
        (rows.retention, "causal", "", 1),
        (rows.sigmoid, "causal", "", 1),
        (rows.softmax, "two lengths", "", None),  # masks of two sides
        (rows.softmax, "causal", "product", None),
    ],
)
def test_warps_that_only_add(row: Any, mask: str, score: str, named: int | None) -> None:
    """How backward passes of 128 columns tell of weights where passes make them; the others are the Hopper emitter's."""
    text = trace(Definition(row, score_mod=SCORES.get(score), mask_mod=MASKS[mask], scale=0.125), Inputs("f16", 128, 128)).text
    made = schedule_of(text, *derivative("bwd", ["q", "k", "v"], "sm_90a"))
    if named is None:
        assert made["emitter"] == "hopper"
    else:
        assert (made["emitter"], made["reduction_warps"], made["key_sums"], made["elect"]) == ("warp", 1, "late", 0)
        assert made.get("named", 0) == named


def test_warps_that_add_to_narrow_rows() -> None:
    """ALiBi of 64 columns; without its terms a warpgroup makes dq, which was not faster so."""
    text = trace(Definition(rows.softmax, score_mod=SCORES["alibi"], mask_mod=CAUSAL, scale=0.125), Inputs("f16", 64, 64)).text
    made = schedule_of(text, *derivative("bwd", ["q", "k", "v"], "sm_90a"))
    assert (made["emitter"], made["reduction_warps"], made["claims"]) == ("warp", 1, 1) and "key_sums" not in made


def test_what_somebody_chose_stays() -> None:
    """How warps tell each other of weights, where warps that only add were measured with named barriers."""
    text = trace(Definition(rows.sigmoid, mask_mod=CAUSAL, scale=0.125), Inputs("f16", 128, 128)).text
    made = schedule_of(text, *derivative("bwd", ["q", "k", "v"], "sm_90a"), named=0, elect=1)
    assert (made["emitter"], made["reduction_warps"], made["claims"], made["named"], made["elect"]) == ("warp", 1, 1, 0, 1)


@pytest.mark.parametrize("choices", [{"align": "end", "tell": 1}, {"align": "start", "tell": 0}], ids=str)
def test_what_passes_alone_read_is_as_asked(choices: dict[str, str | int]) -> None:
    """The Hopper emitter's schedules have no such field."""
    text = trace(Definition(rows.softmax, mask_mod=CAUSAL, scale=0.125), Inputs("f16", 64, 64)).text
    made = schedule_of(text, "attention", OUTLINE, **choices)
    assert made["emitter"] == "warp" and {name: made.get(name) for name in choices} == choices


def test_blocks_of_rows_that_cannot_end_with_the_rows() -> None:
    text = trace(Definition(rows.softmax, mask_mod=CAUSAL, scale=0.125), Inputs("f16", 64, 64)).text
    with pytest.raises(DiagnosticError, match="align can be 'start' or 'end', not 'middle'"):
        schedule_of(text, "attention", OUTLINE, align="middle")
    text = trace(Definition(rows.softmax, mask_mod=MASKS["entries"], scale=0.125), Inputs("f16", 64, 64)).text
    with pytest.raises(DiagnosticError, match="align can be 'start', not 'end'"):
        schedule_of(text, "attention", OUTLINE, align="end")


def test_machines_without_tilelang_have_the_same_kernels() -> None:
    text = trace(Definition(rows.sigmoid, mask_mod=CAUSAL, scale=0.125), Inputs("f16", 64, 64)).text
    made, without = (schedule_of(text, *derivative("bwd", ["q", "k", "v"], "sm_90a"), **choices) for choices in ({}, {"tilelang": 0}))
    assert made == without and made["emitter"] == "warp"
