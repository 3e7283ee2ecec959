"""Gradients of linear attention are believed only where they agree with differences: wrong scans are caught."""

from dataclasses import replace
from pathlib import Path

import pytest

from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.linear_check import certified, check_gradients
from attn_mlir.passes.differentiation.linear_model import GRADIENTS, LinearScanPlan
from attn_mlir.tools.attn_run import main
from programs import text_of

WRONG = {
    "q in the other direction": ("q", replace(GRADIENTS["q"], same_direction=False)),
    "k in the same direction": ("k", replace(GRADIENTS["k"], same_direction=True)),
    "v in the same direction": ("v", replace(GRADIENTS["v"], same_direction=True)),
    "k and v exchanged in dq": ("q", replace(GRADIENTS["q"], operands=("v", "do", "k"))),
    "do and v exchanged in dk": ("k", replace(GRADIENTS["k"], operands=("do", "v", "q"))),
    "k and q exchanged in dv": ("v", replace(GRADIENTS["v"], operands=("q", "k", "do"))),
    "dq from the last state's gradient": ("q", replace(GRADIENTS["q"], initial="d_final_state")),
    "dk from the initial state": ("k", replace(GRADIENTS["k"], initial="initial_state")),
    "factors of q's rows with those of k": ("k", replace(GRADIENTS["k"], rows=("k", "v", "q"))),
    "dv from the initial state": ("v", replace(GRADIENTS["v"], initial="initial_state")),
}


@pytest.mark.parametrize("forward", [True, False])
@pytest.mark.parametrize("channels", ["none", "key"])
def test_the_gradients_are_confirmed(forward: bool, channels: str) -> None:
    report = certified(forward, channels)
    assert report.points > 50
    assert report.error < 1e-9


@pytest.mark.parametrize(("role", "wrong"), WRONG.values(), ids=WRONG)
def test_a_wrong_scan_is_caught(role: str, wrong: LinearScanPlan) -> None:
    with pytest.raises(DifferentiationError, match="differs from differences"):
        check_gradients(True, "none", {**GRADIENTS, role: wrong})


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("state", ["kv", "vk"])
def test_both_directions_and_forms_of_the_state(tmp_path: Path, direction: str, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of("linear/simple-gla").replace('"forward"', f'"{direction}"').replace('state = "kv"', f'state = "{state}"')
    path = tmp_path / "program.mlir"
    path.write_text(text if state == "kv" else text.replace("tensor<?x?x16x8xf32>", "tensor<?x?x8x16xf32>"))
    assert main([str(path), "--q-len", "6", "-p", "attn-differentiate,attn-chunk-rewrite{chunk=4}"]) == 0
    assert "by differences" in capsys.readouterr().out
