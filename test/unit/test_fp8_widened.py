"""8-bit k and v beside 16-bit q on Hopper: rows are widened on their way to shared memory."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, masks
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.program import OUTLINE
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from fp8_cases import dense, outliers, scaled
from generated_code import complaints
from gpu_cases import GPU
from machine_code import compiled

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def lowered(head: int, q: str = "f16", kv: str = "f8E4M3FN", arch: str = "sm_90a", **more: Any) -> Any:
    call = Attention(mask_mod=masks.causal())
    call.__dict__.update(_last=Inputs(q, head, head, kv_element=kv, output=q, **more), _form=None)
    _, units = driver._lower(call.ir(), "attention", OUTLINE, {"arch": arch})  # pyright: ignore[reportPrivateUsage]
    return next(iter(units.values()))


@needs_host_clang
@pytest.mark.parametrize(("q", "kv"), [("f16", "f8E4M3FN"), ("bf16", "f8E5M2")])
@pytest.mark.parametrize("head", [64, 128, 256])
def test_kernels(head: int, q: str, kv: str) -> None:
    """One warp tells where rows are, four copy and widen them."""
    unit = lowered(head, q, kv)
    half, byte = {"f16": "__half", "bf16": "__nv_bfloat16"}[q], {"f8E4M3FN": "E4M3", "f8E5M2": "E5M2"}[kv]
    assert unit.schedule["emitter"] == "hopper" and unit.schedule["gather"] == 1
    for who in ("0, lane", f"attn::warp_index() - {unit.code.threads // 32 - 4}, lane"):
        assert unit.code.source.count(f"{who});") == 2
    assert unit.code.source.count(f", {head}, {half}, attn::{byte}>(") == 4
    assert not complaints(unit.code)
    binary = compiled(unit.code)
    assert binary.spills <= 8 and not binary.warnings


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"head": 72}, "multiple of 16 columns, not 72"),
        ({"head": 64, "arch": "sm_80"}, "sm_80 has no 8-bit"),
        ({"head": 64, "q": "f32"}, "beside q of f32"),
    ],
)
def test_what_is_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises((DiagnosticError, UnsupportedError), match=f"{reason}.*or compute on the CPU"):
        lowered(**options)


class TestOnGpu:
    pytestmark = GPU

    @pytest.mark.parametrize(("q_type", "kv_type"), [(torch.float16, E4), (torch.bfloat16, E4), (torch.bfloat16, E5)])
    @pytest.mark.parametrize("head", [64, 128, 256])
    @pytest.mark.parametrize("causal", [False, True])
    def test_numbers(self, head: int, q_type: torch.dtype, kv_type: torch.dtype, causal: bool) -> None:
        """Odd lengths, grouped heads, scales, decoding in parts; two launches give the same bits."""
        for sq, skv in ((1, 1), (17, 127), (127, 17), (300, 1000), (1, 5000), (4, 3000)):
            q = outliers(2, 4, sq, head, seed=1).to(q_type)
            k, v = (outliers(2, 2, skv, head, seed=seed).to(kv_type) for seed in (2, 3))
            scales = {"k_descale": torch.rand(2) + 0.5, "v_descale": torch.rand(2) + 0.5}
            mask = masks.causal() if causal else None
            wide = q.double(), scaled(k, scales["k_descale"]), scaled(v, scales["v_descale"])
            seen = torch.ones(sq, skv, dtype=torch.bool).tril() if causal else None
            right = dense(*wide, mask=seen)
            q, k, v = q.cuda(), k.cuda(), v.cuda()
            on: dict[str, Any] = {"mask_mod": mask, **{name: x.float().cuda() for name, x in scales.items()}}
            o = attention(q, k, v, **on)
            assert o.dtype == q_type and torch.equal(o, attention(q, k, v, **on))
            error = (o.double().cpu() - right).norm() / (right.norm() + 1e-2)
            assert error < (2e-3 if q_type == torch.float16 else 1e-2), (sq, skv, float(error))

    def test_packed_sequences_and_pages(self) -> None:
        lengths, used = [1, 40, 7], [300, 129, 16]
        q = outliers(sum(lengths), 4, 64).half()
        pages = [outliers(24, 2, 16, 64, seed=seed).to(E4) for seed in (2, 3)]
        table = torch.randperm(24)[: 3 * 8].view(3, 8).int()
        table = torch.cat([table, table.flip(0), table.flip(1)], 1)
        ends = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()]).int()
        more: dict[str, Any] = {"seqused_k": torch.tensor(used).int().cuda(), "block_table": table.cuda(), "max_q": 40, "max_k": 300}
        o = attention_varlen(q.cuda(), pages[0].cuda(), pages[1].cuda(), ends.cuda(), **more)
        for n, (first, last) in enumerate(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)):
            k, v = (x[table[n].long()].transpose(0, 1).flatten(1, 2)[None, :, : used[n]].double() for x in pages)
            right = dense(q[None, first:last].transpose(1, 2).double(), k, v)
            error = (o[None, first:last].transpose(1, 2).double().cpu() - right).norm() / right.norm()
            assert error < 2e-3, (n, float(error))
