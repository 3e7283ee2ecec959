"""The delta rule through the AMD backend, emulated, against its recurrence in float64: outputs, states and gradients."""

from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir.diagnostics import DiagnosticError
from delta_cases import compare, inputs, narrow, run, wanted
from linear_reference import error

EMULATED = "hip-emulated"
BAR = {torch.float32: 2e-6, torch.float16: 5e-3, torch.bfloat16: 5e-3}


def check(x: dict[str, Any], own: bool = False, removed: bool = False, **options: Any) -> None:
    double, expected = wanted(x, own=own or removed, removed=removed, read_before=options.get("read_before_update", False))
    if own:
        options["erase_key"] = x["erase_key"]
    if removed:
        options |= {"erase_key": x["erase_key"] + 0.1 * x["k"], "removed_key": x["erase_key"]}
    errors = compare(x, run(x, device=EMULATED, **options), expected, double)
    assert all(value < BAR[x["q"].dtype] for value in errors.values()), errors


@needs_host_clang
@pytest.mark.parametrize(("length", "low"), [(1, 1.0), (17, 10.0), (127, 0.1), (1000, 10.0)])
def test_decays_of_heads(length: int, low: float) -> None:
    """Two heads of v share one of q and k; the last length has 32 chunks."""
    check(inputs(length, heads=4 if length < 1000 else 2, low=low))


@needs_host_clang
@pytest.mark.parametrize(("length", "low"), [(17, 10.0), (50, 0.1)])
def test_decays_of_channels(length: int, low: float) -> None:
    check(inputs(length, channels=True, low=low))


@needs_host_clang
def test_sixteen_bits() -> None:
    """64 columns: chunks of 64 positions, a system of four blocks."""
    check(narrow(inputs(70, of_k=1, dims=(64, 64), low=0.5), torch.float16))


@needs_host_clang
def test_channels_in_sixteen_bits() -> None:
    check(narrow(inputs(33, of_k=1, dims=(32, 16), channels=True), torch.bfloat16))


@needs_host_clang
def test_an_erase_key_of_its_own_read_before_the_update() -> None:
    check(narrow(inputs(40), torch.float16), own=True, read_before_update=True)


@needs_host_clang
@pytest.mark.parametrize("channels", [False, True])
def test_another_key_is_removed(channels: bool) -> None:
    """The gradient of decays is of two scans: a kernel of its own adds up states."""
    check(inputs(40, channels=channels), removed=True)


@needs_host_clang
def test_sequences_of_any_lengths() -> None:
    offsets = [0, 1, 40, 40, 77]
    x = inputs(77)
    x["state"] = torch.randn(4, 2, 16, 16, requires_grad=True)
    double, expected = wanted(x, cu_seqlens=offsets)
    errors = compare(x, run(x, cu_seqlens=torch.tensor(offsets), device=EMULATED), expected, double)
    assert all(value < BAR[torch.float32] for value in errors.values()), errors


@needs_host_clang
def test_segments() -> None:
    """A program passes states on with products of matrices."""
    x = {n: v.detach() for n, v in narrow(inputs(520, heads=1, of_k=1, dims=(32, 16), low=0.002), torch.float16).items()}
    found, (_, expected) = run(x, segment_size=512, device=EMULATED), wanted(x)
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) < BAR[torch.float16]


@needs_host_clang
@pytest.mark.parametrize(("columns", "channels"), [(128, False), (256, True)])
def test_many_columns(columns: int, channels: bool) -> None:
    """The state in blocks of v's columns."""
    x = {n: v.detach() for n, v in narrow(inputs(33, heads=1, of_k=1, dims=(columns, columns), channels=channels), torch.bfloat16).items()}
    found, (_, expected) = run(x, device=EMULATED), wanted(x)
    assert max(error(a, b) for a, b in zip(found, expected, strict=True)) < BAR[torch.bfloat16]


@needs_host_clang
def test_what_does_not_fit_is_refused() -> None:
    x = {n: v.detach() for n, v in inputs(8, dims=(256, 256), channels=True).items()}
    with pytest.raises(DiagnosticError, match="bytes of shared memory"):
        run(x, device=EMULATED, erase_key=x["erase_key"], removed_key=x["k"])


@needs_host_clang
def test_ready_made() -> None:
    """`gated_delta_rule` with lengths of q and k divided out, as models call it."""
    q, k, v = (torch.randn(1, 50, 2, 32, dtype=torch.float16) for _ in range(3))
    beta, g = torch.rand(1, 50, 2), -torch.rand(1, 50, 2)
    options: dict[str, Any] = {"g": g, "beta": beta, "use_qk_l2norm_in_kernel": True, "output_final_state": True}
    found: Any = attn_mlir.gated_delta_rule(q, k, v, device=EMULATED, **options)
    want: Any = attn_mlir.gated_delta_rule(q.float(), k.float(), v.float(), **options)
    assert max(error(a, b.double()) for a, b in zip(found, want, strict=True)) < BAR[torch.float16]
