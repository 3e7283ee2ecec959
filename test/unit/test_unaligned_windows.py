"""Dense biases that the copy engine cannot read have programs of their own on Hopper."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.backends.nvidia import driver, unaligned_windows
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan
from attn_mlir.frontend.emit import Inputs

BIAS = torch.zeros(4, 64, 64)


def _text() -> str:
    """A forward pass with a dense bias of f32, causal, which the `warp` dialect's kernel makes."""
    call = attn_mlir.Attention(score_mod=lambda s, b, h, i, j: s + BIAS[h, i, j], mask_mod=attn_mlir.masks.causal())
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    return call.ir()


def _program() -> NvidiaLaunchPlan:
    return driver.compile_program(_text(), "attention")


def _emitters(program: NvidiaLaunchPlan) -> set[Any]:
    return {unit.schedule["emitter"] for unit in program.units.values()}


def test_programs() -> None:
    program = _program()
    assert program.compile_unaligned is not None
    other = program.compile_unaligned()
    assert _emitters(program) == {"warp"} and _emitters(other) == {"hopper"}
    assert (program._windowed, other._windowed) == (True, False)


@pytest.mark.parametrize(
    ("bias", "aligned"),
    [
        (torch.zeros(4, 64, 64), True),
        (torch.zeros(4, 64, 68), True),
        (torch.zeros(1, 64, 64).expand(4, 64, 64), True),
        (torch.zeros(4, 63, 63), False),
        (torch.zeros(4, 64, 66)[..., :64], False),
        (torch.zeros(4 * 64 * 64 + 1)[1:].view(4, 64, 64), False),
        (torch.zeros(4, 64, 64).mT, False),
        (torch.zeros(4, 64, 68, dtype=torch.float16), False),
        (torch.zeros(4, 64, 72, dtype=torch.bfloat16), True),
    ],
)
def test_calls(bias: torch.Tensor, aligned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of the two runs is asked at every call: a bias may lie elsewhere."""
    q = torch.zeros(1, 4, 64, 64, dtype=torch.float16)
    inputs = [q, q, q, bias]
    assert unaligned_windows.are_aligned(inputs) == aligned
    program, ran = _program(), []
    monkeypatch.setattr(NvidiaLaunchPlan, "_by", lambda self, other, given, layout: ran.append(other) or [])
    monkeypatch.setattr("attn_mlir.backends.nvidia.cuda.index_of", lambda tensor: -1)
    for _ in range(2):
        if aligned:
            with pytest.raises(attn_mlir.ArgumentError, match="compiled for NVIDIA GPUs"):
                program.run(inputs)
        else:
            program.run(inputs)
    assert program.compile_unaligned is not None
    assert ran == ([] if aligned else [program.compile_unaligned()] * 2)
