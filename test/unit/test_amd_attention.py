"""Whole attentions through the AMD backend, emulated on the CPU: `device="hip-emulated"` against the dense formula in float64."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, rows
from attn_mlir.backends.amd import driver
from attn_mlir.backends.amd.emulation import EmulatedHipKernel
from attn_mlir.errors import ArgumentError, UnsupportedError
from gpu_cases import CASES, DTYPES, Sizes, beyond_rounding, causal, failures, formula, inputs, one_large_score, ours, plain, results

EMULATED = "hip-emulated"
SMALL = Sizes(1, 2, 1, 70, 130, 32, 32)


pytestmark = needs_host_clang


def check_forward(name: str, sizes: Sizes, dtype: torch.dtype, **options: Any) -> None:
    """Compares the output with the dense formula by the rule of `gpu_cases.failures`."""
    case = CASES[name]
    leaves = inputs(case, sizes, dtype)
    with torch.no_grad():
        got = ours(case, sizes, device=EMULATED, **options)(*leaves)
        eager, exact = (
            formula(case, sizes)(*[x.to(case.eager or dtype) for x in leaves]),
            formula(case, sizes)(*[x.double() for x in leaves]),
        )
    wrong = failures([got], [eager], [exact], case.factor, ["o"])
    assert not wrong, wrong


@pytest.mark.parametrize("name", CASES)
def test_forward(name: str) -> None:
    check_forward(name, SMALL, torch.float16)


@pytest.mark.parametrize("name", ["causal softmax", "window", "sigmoid", "relu squared", "softcap", "learned slopes", "relative positions"])
def test_gradients(name: str) -> None:
    case, sizes, dtype = CASES[name], Sizes(1, 4, 2, 70, 130, 32, 32), DTYPES[len(name) % 2]
    leaves = inputs(case, sizes, dtype)
    got = results(ours(case, sizes, device=EMULATED), leaves)
    eager = results(formula(case, sizes), [x.to(case.eager or dtype) for x in leaves])
    exact = results(formula(case, sizes), [x.double() for x in leaves])
    wrong = failures(got, eager, exact, case.factor, ["o", "dq", "dk", "dv", *(f"d{name}" for name in case.tensors(sizes))])
    assert not wrong, wrong


def test_deterministic_gradients() -> None:
    case, sizes = CASES["causal softmax"], Sizes(1, 2, 1, 70, 260, 32, 32)
    leaves = inputs(case, sizes, torch.float16)
    plain = results(ours(case, sizes, device=EMULATED), leaves)
    ordered = results(ours(case, sizes, device=EMULATED, deterministic=True), leaves)
    for a, b in zip(plain, ordered, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=2e-3)


LARGE = {"full": plain(rows.softmax), "causal": plain(rows.softmax, lambda b, h, q, k: q + 960 >= k)}


def large(d: int) -> Sizes:
    """The last rows of a thousand."""
    return Sizes(1, 1, 1, 64, 1024, d, d)


@pytest.mark.parametrize(("d", "mask", "seed"), [(64, "full", 1), (64, "causal", 2), (128, "full", 3), (128, "causal", 4)])
def test_one_large_score_among_small_ones(d: int, mask: str, seed: int) -> None:
    """Weights far below 2^-14, which the matrix instructions of gfx90a take as zero, still count: forward and backward.

    Where one weight is near 1, gradients of the scores are small differences of do v and do o, of an o that was not rounded to 16 bits.
    """
    case, sizes = LARGE[mask], large(d)
    leaves = one_large_score(sizes, seed)
    got, exact = results(ours(case, sizes, device=EMULATED), leaves), results(formula(case, sizes), [x.double() for x in leaves])
    assert float((got[0].double() - exact[0]).abs().max()) <= 5e-4
    for name, mine, want in zip(("dq", "dk", "dv"), got[1:], exact[1:], strict=True):
        assert beyond_rounding(mine, want) <= 5e-4, name


@pytest.mark.parametrize("row", [rows.softmax1, rows.relu_normalized])
def test_one_large_score_in_other_rows(row: Any) -> None:
    case, sizes = plain(row), large(64)
    leaves = one_large_score(sizes, 5)
    got, exact = results(ours(case, sizes, device=EMULATED), leaves), results(formula(case, sizes), [x.double() for x in leaves])
    assert max(map(beyond_rounding, got, exact)) <= 5e-4


def test_flushing_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    case, sizes = LARGE["full"], large(64)
    leaves = one_large_score(sizes, 1)
    got = results(ours(case, sizes, device=EMULATED), leaves)
    run = EmulatedHipKernel.run
    monkeypatch.setattr(EmulatedHipKernel, "run", lambda *arguments, **options: run(*arguments, **options | {"flush": False}))
    for mine, other in zip(got, results(ours(case, sizes, device=EMULATED), leaves), strict=True):
        assert float((mine - other).abs().max() / mine.abs().max()) <= 1e-4


def test_without_the_residual_of_o(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound of gradients fails where what rounding took from o is left out."""
    prepare = driver.prepare_derivative
    monkeypatch.setattr(driver, "prepare_derivative", lambda *arguments, residual: prepare(*arguments))
    case, sizes = plain(rows.softmax, lambda b, h, q, k: q + 961 > k), large(64)
    leaves = one_large_score(sizes, 1)
    got, exact = results(ours(case, sizes, device=EMULATED), leaves), results(formula(case, sizes), [x.double() for x in leaves])
    assert beyond_rounding(got[1], exact[1]) > 2e-3


@pytest.mark.parametrize(("d", "dv"), [(64, 64), (128, 64), (40, 72)])
def test_head_dimensions(d: int, dv: int) -> None:
    check_forward("causal softmax", Sizes(1, 2, 1, 65, 65, d, dv), DTYPES[(d // 8) % 2])


@pytest.mark.parametrize(("sq", "skv"), [(1, 1), (1, 300), (129, 127), (256, 128)])
def test_lengths(sq: int, skv: int) -> None:
    check_forward("causal softmax", Sizes(2, 4, 2, sq, skv, 32, 32), torch.float16)


def test_lse() -> None:
    q, k, v = inputs(CASES["causal softmax"], SMALL, torch.float16)
    _, lse = attention(q, k, v, mask_mod=causal, device=EMULATED, return_lse=True)
    scores = (q.double() @ k.double().mT / 32**0.5).masked_fill(torch.ones(70, 130).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-5, atol=1e-5)


def test_layout_and_strides() -> None:
    """Of rows at odd addresses, with a number of columns that is no multiple of anything."""
    q, k, v = (x[..., 1:32] for x in inputs(CASES["causal softmax"], SMALL, torch.float16))
    o = attention(q, k, v, mask_mod=causal, device=EMULATED)
    swapped = attention(*(x.transpose(1, 2) for x in (q, k, v)), mask_mod=causal, device=EMULATED, layout="bshd")  # type: ignore[arg-type]
    dense = attention(q.contiguous(), k.contiguous(), v.contiguous(), mask_mod=causal, device=EMULATED)
    assert torch.equal(o, dense) and torch.equal(swapped.transpose(1, 2), dense)


def test_stages_end_in_hip() -> None:
    run = Attention(mask_mod=causal, device=EMULATED)
    q = torch.randn(1, 1, 16, 32).half()
    run(q, q, q)
    assert "ATTN_KERNEL" in run.stages()["hip"]
    assert any("mfma for gfx90a, 256 threads" in program.explain() for program in driver._PROGRAMS.values())


def test_what_is_refused() -> None:
    q = torch.randn(1, 1, 16, 32)
    with pytest.raises(UnsupportedError, match="16-bit inputs"):
        attention(q, q, q, device=EMULATED)
    with pytest.raises(ArgumentError, match=r"move q, k and v with .to\('cuda'\), or use device='cpu' or .*'hip-emulated'"):
        attention(q, q, q, device="hip")
    wide = torch.randn(1, 1, 4, 1032).half()
    with pytest.raises(ArgumentError, match="q has head dimension 1032; it must be 1 to 1024"):
        attention(wide, wide, wide, device=EMULATED)
