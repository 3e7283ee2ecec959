"""Derivatives of attentions through the kernels for AMD GPUs, which the CPU emulates: head dimensions, fixed orders, second derivatives."""

import pytest
import torch
from torch import Tensor
from torch.func import jvp

from amd_tools import needs_host_clang
from attn_mlir import attention
from attn_mlir.backends.amd.emulation import EmulatedHipKernel
from gpu_cases import CASES, Sizes, failures, formula, inputs, ours, results

EMULATED = "hip-emulated"
SMALL = Sizes(1, 2, 1, 40, 70, 32, 32)


def _check(name: str, sizes: Sizes, dtype: torch.dtype) -> None:
    case = CASES[name]
    leaves = inputs(case, sizes, dtype)
    got = results(ours(case, sizes, device=EMULATED), leaves)
    eager, exact = (results(formula(case, sizes), [x.to(other) for x in leaves]) for other in (dtype, torch.float64))
    wrong = failures(got, eager, exact, case.factor, ["o", "dq", "dk", "dv"])
    assert not wrong, wrong


@needs_host_clang
@pytest.mark.parametrize(
    ("sizes", "dtype"),
    [
        (Sizes(1, 1, 1, 70, 150, 64, 64), torch.bfloat16),
        (Sizes(1, 1, 1, 33, 40, 128, 40), torch.float16),
        (Sizes(1, 1, 1, 40, 33, 256, 256), torch.float16),
        (Sizes(2, 3, 1, 1, 130, 7, 33), torch.float16),
    ],
)
def test_backward_of_heads(sizes: Sizes, dtype: torch.dtype) -> None:
    _check("softmax", sizes, dtype)


@needs_host_clang
@pytest.mark.parametrize("name", ["causal softmax", "learned slopes", "relative positions"])
def test_sums_in_a_fixed_order(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients, also those of captured tensors, are right, and the same whichever wave runs first."""
    case, sizes = CASES[name], Sizes(1, 1, 1, 40, 150, 32, 32) if name == "causal softmax" else SMALL
    leaves = inputs(case, sizes, torch.float16)
    run, found = EmulatedHipKernel.run, []
    for seed in (0, 3):
        monkeypatch.setattr(EmulatedHipKernel, "run", lambda *given, seed=seed, **options: run(*given, seed=seed, **options))
        found.append(results(ours(case, sizes, device=EMULATED, deterministic=True), leaves))
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))
    eager, exact = (results(formula(case, sizes), [x.to(other) for x in leaves]) for other in (torch.float16, torch.float64))
    wrong = failures(found[0], eager, exact, case.factor, ["o", "dq", "dk", "dv", *(f"d{name}" for name in case.tensors(sizes))])
    assert not wrong, wrong


def _relative(got: Tensor, want: Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())


@needs_host_clang
def test_tangents() -> None:
    case = CASES["softcap"]
    leaves = tuple(inputs(case, SMALL, torch.float16))
    tangents = tuple(inputs(case, SMALL, torch.float16, seed=1))
    got = jvp(ours(case, SMALL, device=EMULATED), leaves, tangents)
    want = jvp(formula(case, SMALL), tuple(x.double() for x in leaves), tuple(x.double() for x in tangents))
    assert all(_relative(x, y) < 1e-3 for x, y in zip(got, want, strict=True))


@needs_host_clang
def test_second_backward() -> None:
    case = CASES["softmax"]
    found = []
    for run, dtype in ((ours(case, SMALL, device=EMULATED), torch.float16), (formula(case, SMALL), torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs(case, SMALL, torch.float16)]
        upstream = torch.randn(1, 2, 40, 32, generator=torch.Generator().manual_seed(2)).half().to(dtype).requires_grad_()
        first = torch.autograd.grad(run(*leaves), leaves, upstream, create_graph=True)
        directions = [x.to(dtype) for x in inputs(case, SMALL, torch.float16, seed=3)]
        found.append(torch.autograd.grad(first, [*leaves, upstream], directions))
    assert all(_relative(x, y) < 2e-3 for x, y in zip(*found, strict=True))


@needs_host_clang
@pytest.mark.parametrize("together", [1, 128])
def test_numbers_that_rows_share(together: int) -> None:
    """Rows add to a number of their own, or all lanes of a wave to one, for which they add their sum once."""
    q, k, v = (torch.randn(1, 2, 150, 32).half().requires_grad_() for _ in range(3))
    number = (torch.rand(2, 150) + 0.5).requires_grad_()

    def row(s: Tensor, b: int, h: int, q_idx: int) -> Tensor:
        place = q_idx // 128 if together > 1 else q_idx
        e = ((s - s.max()) * number[h, place]).exp()
        return e / (e.sum() + number[h, place])

    o = attention(q, k, v, row=row, device=EMULATED)
    do = torch.randn_like(o)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v, number)]
    s, of_row = wide[0] @ wide[1].mT / 32**0.5, wide[3][:, torch.arange(150) // together][None, :, :, None]
    e = ((s - s.amax(-1, keepdim=True)) * of_row).exp()
    right = torch.autograd.grad((e / (e.sum(-1, keepdim=True) + of_row)) @ wide[2], wide, do.double())
    for got, want in zip(torch.autograd.grad(o, (q, k, v, number), do), right, strict=True):
        assert float((got.double() - want).norm() / want.norm()) < 2e-3
