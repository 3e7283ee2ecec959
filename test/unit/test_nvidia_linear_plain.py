"""Linear attention on Hopper without TileLang: all kernels are the project's own, and give what the recurrence gives in float64."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import linear_attention
from linear_reference import error, reference
from scan_plans import ScanPlan, emulate

BAR = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ScanPlan]:
    """The programs that `device="cuda-emulated"` compiles, whose plain kernels and scans of warps a CPU runs."""
    return emulate(monkeypatch)


def inputs(dtype: torch.dtype, length: int, decay: str, sequences: int = 1, heads: tuple[int, int] = (2, 4)) -> dict[str, torch.Tensor]:
    """q and k have fewer heads than v."""
    (of_k, of_v), size = heads, 64
    found = {name: torch.randn(1, of_k, length, size).to(dtype) for name in "qk"} | {"v": torch.randn(1, of_v, length, size).to(dtype)}
    shapes = {"step": (1, of_v, length), "channels": (1, of_v, length, size)}
    found |= {"decay": -0.3 * torch.rand(shapes[decay])} if decay in shapes else {}
    return found | {"initial_state": torch.randn(sequences, of_v, size, size)}


def errors(x: dict[str, torch.Tensor], options: dict[str, Any], **own: Any) -> dict[str, float]:
    """Of o, the final state, and all gradients; `own` are options that the reference does not take."""
    upstream, results = {}, []
    for device, dtype in (("cuda-emulated", None), (None, torch.float64)):
        leaves = {name: t.detach().to(dtype or t.dtype, copy=True).requires_grad_() for name, t in x.items()}
        if device is None:
            outputs = reference(**leaves, scale=0.125, **options)
        else:
            offsets = {"cu_seqlens": torch.tensor(options["cu_seqlens"])} if "cu_seqlens" in options else {}
            given: dict[str, Any] = {**leaves, **options, **offsets, **own}
            outputs = linear_attention(**given, scale=0.125, output_final_state=True, device=device)
        upstream = upstream or {n: torch.randn(t.shape).to(t.dtype) for n, t in enumerate(outputs)}
        gradients = torch.autograd.grad(outputs, list(leaves.values()), [upstream[n].to(t.dtype) for n, t in enumerate(outputs)])
        results.append([*outputs, *gradients])
    return dict(zip(["o", "state", *x], (error(a, b) for a, b in zip(*results, strict=True)), strict=True))


def check(made: list[ScanPlan], dtype: torch.dtype, found: dict[str, float]) -> None:
    """Errors are within the bar, and no kernel is TileLang's."""
    assert {name: value for name, value in found.items() if not value < BAR[dtype]} == {}
    assert made and "tilelang" not in {unit.schedule["emitter"] for plan in made for unit in plan.units.values()}


@needs_host_clang
@pytest.mark.parametrize(
    ("dtype", "length", "decay"),
    [(HALF, 127, "step"), (BRAIN, 70, "channels"), (SINGLE, 1, "step"), (SINGLE, 70, "none"), (BRAIN, 17, "none")],
)
def test_gradients(made: list[ScanPlan], dtype: torch.dtype, length: int, decay: str) -> None:
    check(made, dtype, errors(inputs(dtype, length, decay), {}))


@needs_host_clang
@pytest.mark.parametrize(("dtype", "decay"), [(HALF, "step"), (SINGLE, "channels")])
def test_sequences_side_by_side(made: list[ScanPlan], dtype: torch.dtype, decay: str) -> None:
    """One is empty, one shorter than a chunk; a program has all intervals of a sequence, one after another."""
    heads = (1, 2) if decay == "channels" else (2, 4)
    check(made, dtype, errors(inputs(dtype, 600, decay, sequences=3, heads=heads), {"cu_seqlens": [0, 0, 17, 600]}))


@needs_host_clang
@pytest.mark.parametrize("dtype", [BRAIN, SINGLE])
def test_segments(made: list[ScanPlan], dtype: torch.dtype) -> None:
    """Sums of log decays, of channels too, along a segment, the last of which is short."""
    found = errors(inputs(dtype, 540, "channels", heads=(1, 1)), {}, segment_size=512)
    check(made, dtype, found)
    assert "simt" in {unit.schedule["emitter"] for plan in made for name, unit in plan.units.items() if "decay_sum" in name}


@needs_host_clang
def test_mods(made: list[ScanPlan]) -> None:
    check(made, BRAIN, errors(inputs(BRAIN, 130, "step"), {"v_mod": lambda x, b, h, t: x * (h + 1.0), "k_mod": lambda x: x * 0.5}))
