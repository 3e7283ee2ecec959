"""Emulated devices in every form of the API: engines, ready-made recurrences, decoding, torch.compile. The reference is the CPU."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_clang, needs_host_clang, needs_objdump
from attn_mlir import ArgumentError, AttentionEngine, LinearAttentionEngine, OnlineSoftmax, attention, masks, meta_tensor

pytestmark = needs_host_clang
EMULATED = "hip-emulated"
DEVICES = [EMULATED, pytest.param("hip-interpreted", marks=[needs_clang, needs_objdump])]


def tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape).mul(0.5).bfloat16() for shape in shapes]


def check(call: Callable[..., Any], given: list[torch.Tensor], device: str = EMULATED, gradients: bool = True) -> None:
    """Compares results and gradients of `call(device, *given)` on `device` with those on the CPU."""
    made = []
    for name in (device, "cpu"):
        leaves = [tensor.clone().requires_grad_(gradients) for tensor in given]
        results = call(name, *leaves)
        results = [result for result in (results if isinstance(results, tuple) else (results,)) if result is not None]
        derived = torch.autograd.grad(torch.stack([result.float().square().sum() for result in results]).sum(), leaves) if gradients else []
        made.append([*results, *derived])
    for got, wanted in zip(*made, strict=True):
        torch.testing.assert_close(got.float(), wanted.float(), rtol=0.03, atol=0.03 * float(wanted.detach().abs().max()))


@pytest.mark.parametrize("device", DEVICES)
def test_attention_engine(device: str) -> None:
    def call(device: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        metas = tuple(meta_tensor("B", 2, "S", 16, dtype=torch.bfloat16) for _ in range(3))
        scaled = AttentionEngine(
            metas, score_mod=lambda s, c, b, h, i, j: s * 0.25, mask_mod=masks.causal(), online_func=OnlineSoftmax(), device=device
        )
        return scaled(q, k, v)

    check(call, tensors(*[(1, 17, 2, 16)] * 3), device, gradients=device == EMULATED)


@pytest.mark.parametrize("device", DEVICES)
def test_linear_attention_engine(device: str) -> None:
    def call(device: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, decay: torch.Tensor) -> Any:
        metas = tuple(meta_tensor("B", 2, "T", 16, dtype=torch.bfloat16) for _ in range(3))
        return LinearAttentionEngine(metas, q_mod=lambda x: x * 0.25, device=device)(q, k, v, -decay.float().square())

    check(call, tensors(*[(1, 2, 17, 16)] * 3, (1, 2, 17)), device, gradients=device == EMULATED)


def mamba2(device: str, q: Any, k: Any, v: Any, g: Any, a: Any) -> Any:
    return attn_mlir.mamba2(v, g.float().square(), -a.float().exp(), q, k, D=a, dt_softplus=True, device=device)


def simple_gla(device: str, q: Any, k: Any, v: Any, g: Any, a: Any) -> Any:
    return attn_mlir.simple_gla(q, k, v, -g.float().square(), -a.float().square(), output_final_state=True, device=device)


def gla(device: str, q: Any, k: Any, v: Any, g: Any, a: Any) -> Any:
    return attn_mlir.gla(q, k, v, -(q.float() * g.float()[..., None] * a.float()[:, None]).square(), device=device)


def retention_linear(device: str, q: Any, k: Any, v: Any, *_: Any) -> Any:
    return attn_mlir.retention_linear(q, k, v, device=device)


def lightning(device: str, q: Any, k: Any, v: Any, g: Any, a: Any) -> Any:
    return attn_mlir.lightning(q, k, v, slopes=a.float().square(), device=device)


def step(device: str, q: Any, k: Any, v: Any, g: Any, a: Any) -> Any:
    return attn_mlir.linear_attention_step(q[:, 0], k[:, 0], v[:, 0], -g[:, 0].float().square() - a.float().square(), device=device)


@pytest.mark.parametrize("call", [mamba2, simple_gla, gla, retention_linear, lightning, step], ids=lambda call: call.__name__)
def test_recurrences(call: Callable[..., Any]) -> None:
    check(call, tensors(*[(1, 5, 2, 16)] * 3, (1, 5, 2), (2,)), gradients=call is mamba2)


def test_compile() -> None:
    """One graph with an attention, a recurrence and an engine on the device."""
    metas = tuple(meta_tensor("B", 2, "S", 16, dtype=torch.bfloat16) for _ in range(3))

    def call(device: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        engine = AttentionEngine(metas, mask_mod=masks.causal(), online_func=OnlineSoftmax(), device=device)

        def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
            first = attention(q, k, v, mask_mod=masks.causal(), layout="bshd", device=device)
            return first + engine(q, k, v) + attn_mlir.retention_linear(q, k, v, device=device)[0]

        if device == EMULATED:
            compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
            with torch.no_grad():
                assert torch.equal(compiled(q, k, v), function(q, k, v))
            return compiled(q, k, v)
        return function(q, k, v)

    check(call, tensors(*[(1, 5, 2, 16)] * 3))


def test_a_device_of_other_tensors_is_refused() -> None:
    metas = tuple(meta_tensor("B", 2, "S", 16, dtype=torch.bfloat16) for _ in range(3))
    engine = AttentionEngine(metas, online_func=OnlineSoftmax(), device=EMULATED)
    meta = [tensor.to("meta") for tensor in tensors(*[(1, 5, 2, 16)] * 3)]
    with pytest.raises(ArgumentError, match="q is on the meta device"):
        engine(*meta)
    with pytest.raises(Exception, match=r"q is on cpu, but device='cuda' was asked for|no backend"):
        torch.compile(lambda q: attention(q, q, q, device="cuda"), fullgraph=True, backend="aot_eager")(torch.randn(1, 1, 4, 8))
