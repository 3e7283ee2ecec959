"""Delta rules on `device="cuda-emulated"`: their scheduled kernels, evaluated tile by tile, beside the recurrence in float64."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.errors import UnsupportedError
from delta_cases import compare, inputs, narrow, run, wanted
from linear_reference import error

BAR = 5e-3
_DIMS = (96, 64)
"""Rows and columns of states that no other test compiles for this device: programs are kept."""


@pytest.mark.parametrize(
    ("length", "channels", "low", "segment"),
    [(1, False, 1.0, 0), (17, True, 10.0, 0), (127, False, 0.0, 0), (127, True, 0.02, 0), (1000, False, 10.0, 512)],
)
def test_outputs_and_final_states(length: int, channels: bool, low: float, segment: int) -> None:
    """Heads that share a key, an initial state, decays of 0 to -10."""
    x = narrow(inputs(length, heads=2, of_k=1, dims=_DIMS, channels=channels, low=low), torch.bfloat16)
    with torch.no_grad():
        found = run(x, device="cuda-emulated", segment_size=segment)
    _, expected = wanted(x)
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) < BAR


@pytest.mark.parametrize("beta", [1.0, 1.9])
def test_keys_that_are_alike(beta: float) -> None:
    """What is written then erases what was written before: o is a small sum of large numbers, whose rounding would show."""
    x = narrow(inputs(255, heads=2, of_k=1, dims=_DIMS, low=0.02), torch.bfloat16)
    keys = torch.nn.functional.normalize(torch.randn(1, 1, 255, 96) + 3 * torch.randn(96), dim=-1)
    x |= {"k": keys.bfloat16(), "beta": torch.full((1, 2, 255), beta)}
    with torch.no_grad():
        found = run(x, device="cuda-emulated")
    _, expected = wanted(x)
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) < BAR


@pytest.mark.parametrize(("length", "channels"), [(70, False), (33, True)])
def test_gradients(length: int, channels: bool) -> None:
    """All of them, that of beta too, which is added up element by element."""
    x = narrow(inputs(length, heads=2, of_k=1, dims=_DIMS, channels=channels), torch.bfloat16)
    double, expected = wanted(x)
    errors = compare(x, run(x, device="cuda-emulated"), expected, double)
    assert "dbeta" in errors and all(value < BAR for value in errors.values()), errors


def test_gradients_of_captured_tensors_of_any_rank() -> None:
    """A number for each head, one for each position, one for each channel: all of which several programs add to."""
    x = narrow(inputs(33, heads=4, of_k=2, dims=(64, 64)), torch.bfloat16)
    captured = [torch.rand(4), torch.rand(1, 4, 33), torch.rand(64), torch.rand(4, 64), torch.rand(1, 4, 33, 2, 1)]

    def results(dtype: torch.dtype, device: str | None) -> list[torch.Tensor]:
        a, at, w, rows, deep = (each.to(dtype).requires_grad_() for each in captured)
        q, k, v, g, beta = (x[n].detach() if device else x[n].detach().double() for n in ("q", "k", "v", "g", "beta"))
        o = attn_mlir.linear_attention(
            q, k, v, g, None,
            q_mod=lambda e, b, h, t, d: e * w[d],
            k_mod=lambda e, b, h, t, d: e * rows[h, d],
            v_mod=lambda e, b, h, t: e * at[b, h, t],
            erase=beta, erase_mod=lambda e, b, h, t: torch.sigmoid(e + a[h]) * deep[b, h, t, 1, 0], device=device,
        )  # fmt: skip
        do = torch.linspace(-1, 1, o.numel()).view(o.shape).to(o.dtype)
        return [o, *torch.autograd.grad(o, (a, at, w, rows, deep), do)]

    found, wanted_ = results(torch.float32, "cuda-emulated"), results(torch.float64, None)
    assert max(error(a, b) for a, b in zip(found, wanted_, strict=True)) < 2 * BAR


def test_packed_sequences() -> None:
    """With one that is empty."""
    q, k, v = (torch.randn(1, 70, 2, columns).bfloat16() for columns in (64, 64, 128))
    options: dict[str, Any] = {"g": -torch.rand(1, 70, 2), "beta": torch.rand(1, 70, 2), "output_final_state": True}
    options |= {"cu_seqlens": torch.tensor([0, 20, 20, 70]), "use_qk_l2norm_in_kernel": True}
    found = attn_mlir.gated_delta_rule(q, k, v, device="cuda-emulated", **options)
    want = attn_mlir.gated_delta_rule(q.double(), k.double(), v.double(), **options)
    assert max(error(a, b) for a, b in zip(found, want, strict=True)) < BAR


def test_what_has_no_such_kernel_is_refused() -> None:
    """A chunk of 48 columns is TileLang's."""
    q = torch.randn(1, 2, 40, 48).bfloat16()
    with pytest.raises(UnsupportedError, match="cuda-emulated"):
        attn_mlir.linear_attention(q, q, q, erase=torch.ones(2), device="cuda-emulated")


@pytest.mark.parametrize("heads", [(2, 1, 4), (1, 2, 4), (1, 1, 0)], ids=str)
def test_lengths_of_heads_that_are_shared(heads: tuple[int, int, int]) -> None:
    """q and k have heads of their own, and rows of very different lengths; the function of q that KDA shares sees heads of q, too."""
    q, k = (torch.randn(2, 33, n, 64) * 10.0 ** torch.linspace(-2, 2, n * 33).view(33, n, 1) for n in heads[:2])
    v, g, beta = torch.randn(2, 33, heads[2], 64), -torch.rand(2, 33, heads[2]), 2 * torch.rand(2, 33, heads[2])
    options: dict[str, Any] = {"output_final_state": True, "use_qk_l2norm_in_kernel": True}
    q, k, v = (x.bfloat16() for x in (q, k, v))
    if heads[2]:
        attn_mlir.kda(v, v, v, g.unsqueeze(3).expand(-1, -1, -1, 64), beta, device="cuda-emulated", **options)
    rule: Any = attn_mlir.gated_delta_rule
    found = rule(q, k, v, g, beta, device="cuda-emulated", **options)
    expected = rule(*(x.double() for x in (q, k, v, g, beta)), **options)
    assert [x.shape for x in found] == [x.shape for x in expected]
    assert not heads[2] or max(error(a, b) for a, b in zip(found, expected, strict=True)) < BAR
