"""AttentionEngine's quick start at the size that it was written for, on an NVIDIA GPU: results, memory."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gpu_cases import GPU

pytestmark = GPU

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
B, H, S, D = 1, 128, 32768, 128
ROWS = 4 * B * H * S
"""Bytes of a number for each row of the scores."""
TENSOR = 2 * B * H * S * D
"""Bytes of q."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import seed_quick_start

    yield seed_quick_start.make_engine(B, H, S, torch.float16)
    sys.modules.pop("seed_quick_start")


def test_quick_start(engine: Any) -> None:
    torch.manual_seed(0)
    q, k, v, do = (torch.randn(B, S, H, D, dtype=torch.float16, device="cuda") for _ in range(4))
    qkv = [x.requires_grad_() for x in (q, k, v)]
    o = engine(*qkv)  # compiles
    torch.autograd.grad(o, qkv, do)
    with torch.no_grad():
        plain, memory = measured(lambda: engine(*qkv))
        # o and lse, and nothing besides; a byte for each pair would be 128 GiB.
        assert memory <= TENSOR + 2 * ROWS + (1 << 20)
        assert torch.equal(plain, o)
        del plain, o
    o, memory = measured(lambda: engine(*qkv))
    assert memory <= TENSOR + 4 * ROWS + (1 << 20)
    gradients, memory = measured(lambda: torch.autograd.grad(o, qkv, do))
    # dq, dk, dv, and dq once more in 32 bits while it is summed.
    assert memory <= 5 * TENSOR + 8 * ROWS + (2 << 20)
    for head in (0, 77):
        for got, (wanted, rows) in zip((o.detach(), *gradients), reference(q, k, v, do, head), strict=True):
            error = (got[0, rows, head].float() - wanted).abs().max().item()
            assert error <= 4e-3 * max(1.0, wanted.abs().max().item())


def measured(run: Any) -> tuple[Any, int]:
    """What it returns, and the bytes that it allocated at its peak."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = run()
    torch.cuda.synchronize()
    return result, torch.cuda.max_memory_allocated() - before


def reference(*tensors: Any) -> list[tuple[torch.Tensor, slice]]:
    """o, dq, dk and dv of one head in float32, each for the rows that it returns with them: for the last ones, all that is needed is short.

    The last keys are seen by the last queries only.
    """
    *given, head = tensors
    q, k, v, do = (x.detach()[0, :, head].float() for x in given)
    rows = slice(S - 512, S)
    q, do = q[rows], do[rows]
    present = torch.arange(S - 512, S, device="cuda")[:, None] >= torch.arange(S, device="cuda")
    p = torch.softmax((q @ k.mT * D**-0.5).masked_fill(~present, -torch.inf), -1)
    o = p @ v
    dp = do @ v.mT
    ds = p * (dp - (do * o).sum(-1, keepdim=True)) * D**-0.5
    return [(o, rows), (ds @ k, rows), ((ds.mT @ q)[rows], rows), ((p.mT @ do)[rows], rows)]
