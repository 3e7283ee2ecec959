"""Which emitter makes a kernel for Hopper where nobody asks for one: families that were measured, and what only looks like them."""

from typing import Any

import pytest

from attn_mlir import masks, mods, rows
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.program import OUTLINE, function_named
from attn_mlir.dialects import loaded
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace

CAUSAL, CAPPED = masks.causal(), mods.softcap(20.0)


def normalised(s: Any) -> Any:
    weights = s.max(0.0)
    return weights / (weights.sum() + 1e-6)


def near(b: Any, h: Any, i: Any, j: Any) -> Any:
    return (j >= i - 50) & (j <= i + 20)


@pytest.mark.parametrize(
    ("row", "mask", "score", "backward", "emitter"),
    [
        (rows.sigmoid, CAUSAL, None, False, "warp"),
        (normalised, CAUSAL, CAPPED, False, "hopper"),  # one exponential and no maximum, as a sigmoid has
        (rows.softmax, CAUSAL, None, True, "warp"),
        (rows.softmax, near, None, True, "hopper"),  # windows: 0.87 of the speed
        (normalised, CAUSAL, None, True, "warp"),
        (normalised, near, None, True, "hopper"),
        (normalised, CAUSAL, CAPPED, True, "hopper"),
    ],
)
def test_emitter(row: Any, mask: Any, score: Any, backward: bool, emitter: str) -> None:
    text = trace(Definition(row, score_mod=score, mask_mod=mask, scale=0.125), Inputs("f16", 64, 64)).text
    prepared = derivative("bwd", ["q", "k", "v"], "sm_90a") if backward else ("attention", OUTLINE)
    with loaded() as context:
        module, host = scheduled(context, text, *prepared, {"arch": "sm_90a"}, pipeline.KERNEL, "NVIDIA", wide=True)
        made = [attributes.read(function_named(module, step.kernel), attributes.SCHEDULE)["emitter"] for step in host.steps if step.kernel]
    assert made[-1] == emitter
