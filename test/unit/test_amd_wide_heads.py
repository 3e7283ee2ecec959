"""Heads of more than 256 columns through emulated kernels for AMD GPUs: v in slices, and keys and values in one place of shared memory."""

from pathlib import Path

import pytest
import torch

from amd_emitter_faults import Fault
from amd_planting import wrong_with
from amd_tools import needs_host_clang
from attn_mlir import Attention, attention, attention_varlen, masks
from attn_mlir.backends.amd import driver

pytestmark = needs_host_clang
Tensor = torch.Tensor
EMULATED = "hip-emulated"
SIZES = [(257, 264), (576, 512), (1024, 1024)]
BARRIERS = (
    Fault("values put where keys are still read", r"attn::barrier\(\);(\s+\{(?:(?!barrier)(?:.|\n))*?keep_transposed)", r"\1"),
    Fault("values read before all are there", r"(keep_transposed(?:(?!barrier)(?:.|\n))*?)attn::barrier\(\);", r"\1"),
)


def wrong(head: int, value: int, queries: int = 19, keys: int = 70) -> list[str]:
    """What differs from float64, of causal attention of 4 heads that share 2, in bf16 for the widest heads."""
    dtype = torch.bfloat16 if head > 1000 else torch.float16
    q, k, v = (torch.randn(1, h, n, d).to(dtype) for h, n, d in ((4, queries, head), (2, keys, head), (2, keys, value)))
    made = attention(q, k, v, mask_mod=masks.causal("bottom_right"), return_lse=True, device=EMULATED)
    exact = attention(q.double(), k.double(), v.double(), mask_mod=masks.causal("bottom_right"), return_lse=True)
    bounds = (1.6e-2 if dtype == torch.bfloat16 else 2e-3, 1e-5)
    return [name for name, a, b, bound in zip(("o", "lse"), made, exact, bounds, strict=True) if not (a - b).abs().max() <= bound]


@pytest.mark.parametrize(("head", "value"), SIZES)
def test_forward(head: int, value: int) -> None:
    assert not wrong(head, value)
    program = next(reversed(driver._PROGRAMS.values()))
    (unit,) = program.units.values()
    assert unit.schedule["in_turn"] == (2 if head > 768 else 0)
    assert int(unit.schedule.get("launch_columns", value)) <= 256


def test_decoding_of_one_latent_key() -> None:
    """v is a part of k, as in MLA; 16 query heads are rows, and keys are seen in parts."""
    q, latent = torch.randn(4, 16, 576).half(), torch.randn(403, 1, 576).half()
    offsets, used = (torch.tensor(x, dtype=torch.int32) for x in ((0, 1, 2, 3, 4), (0, 1, 1, 130, 403)))
    given = {"max_q": 1, "max_k": 273, "return_lse": True, "num_splits": 3}
    o, lse = attention_varlen(q, latent, latent[..., :512], offsets, used, **given, device=EMULATED)
    exact, exact_lse = attention_varlen(q.double(), latent.double(), latent[..., :512].double(), offsets, used, return_lse=True)
    assert not o[1].any() and (lse[:, 1] == -torch.inf).all()
    torch.testing.assert_close(o.double(), exact, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("fault", BARRIERS, ids=lambda fault: fault.name.replace(" ", "-"))
def test_a_missing_barrier_is_caught(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    for program in driver._PROGRAMS.values():
        program._launchers.clear()
    assert wrong_with(fault, monkeypatch, lambda: wrong(1024, 256))
    for program in driver._PROGRAMS.values():
        program._launchers.clear()


@pytest.mark.parametrize("device", ["hip", "cuda"])
def test_reports_tell_of_slices(device: str, tmp_path: Path) -> None:
    path = tmp_path / "wide.html"
    Attention().report(path, device=device, dtype=torch.float16, head_dim=576, binaries=False)
    assert "launch_columns = 192" in path.read_text()
    Attention().report(path, device=device, dtype=torch.float16, head_dim=576, binaries=False, backward=True)
    assert "launch_pairs" in path.read_text()
