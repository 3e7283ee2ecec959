"""Warps that are late by two phases of a barrier, which its parity hides: none waits where nobody waits for it, as the evaluator sees."""

from typing import Any

import pytest
import torch

from attn_mlir import attention
from attn_mlir.backends.nvidia.emulation import kernel as emulated
from attn_mlir.dialects.warp.barriers import FIRST_WARP
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import Fault, read_kernel

DTYPE = torch.float8_e4m3fn


def few_keys() -> torch.Tensor:
    """Tiles of four heads in one thread block, the first ones without keys: a producer of four warps, which transposes values."""
    q, k, v = (torch.randn(1, heads, rows, 64).to(DTYPE) for heads, rows in ((4, 200), (1, 70), (1, 70)))
    return attention(q, k, v, mask_mod=lambda b, h, i, j: j <= i - 190, device="cuda-emulated")


@pytest.fixture(autouse=True)
def one_block(monkeypatch: pytest.MonkeyPatch) -> None:
    run = emulated.run_scheduled
    monkeypatch.setattr(emulated, "run_scheduled", lambda kernel, arguments, schedule, blocks: run(kernel, arguments, schedule, 1))


def test_one_warp_waits_for_the_stage_of_queries() -> None:
    assert torch.isfinite(few_keys().float()).all()


def test_a_wait_of_all_warps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    call = emulated.EvaluatedKernel.__call__

    def run(self: Any, arguments: Any, outputs: Any) -> None:
        with self._context:
            (producer,) = (role for role in find_all(self._kernel, "warp.role") if "producer" in str(role.attributes["sym_name"]))
            assert ir.IntegerAttr(producer.attributes["warps"]).value == 4
            clone = self._kernel.clone()
            marked = [op for op in find_all(clone, "warp.wait") if FIRST_WARP in op.attributes]
            assert marked
            for wait in marked:
                del wait.attributes[FIRST_WARP]
        self._read = read_kernel(clone)
        call(self, arguments, outputs)

    monkeypatch.setattr(emulated.EvaluatedKernel, "__call__", run)
    with pytest.raises(Fault) as found:
        few_keys()
    assert found.value.kind == "missed phase"
