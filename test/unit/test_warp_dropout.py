"""Dropout on the emulated Hopper chip: bits that the lanes of a warp share (`warp-share-dropout`), against float64 with the same bits."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import attention, attention_varlen, masks
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs

DEVICE, P, SEED = "cuda-emulated", 0.3, (3, 4)
MASKS: dict[str, Any] = {"full": None, "causal": masks.causal(), "window": masks.sliding_window(40, 0)}


def compare(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, atol: float, **options: Any) -> None:
    """With float64 on the CPU, relative to the largest element."""
    options |= {"dropout_p": P, "dropout_seed": SEED}
    o = attention(q, k, v, device=DEVICE, **options)
    wanted = attention(q.double(), k.double(), v.double(), device="cpu", **options)
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=atol * max(1.0, float(wanted.abs().max())))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("columns", [24, 64, 128])
@pytest.mark.parametrize("lengths", [(1, 17), (127, 127), (70, 300)], ids=str)
def test_odd_lengths_and_groups(lengths: tuple[int, int], columns: int, mask: str) -> None:
    queries, keys = lengths
    q, k, v = (torch.randn(2, heads, length, columns).half() for heads, length in ((4, queries), (2, keys), (2, keys)))
    compare(q, k, v, 4e-3, mask_mod=MASKS[mask])


def test_maxima_that_come_late_are_found_without_what_is_dropped() -> None:
    """Weights that reach the limit are dropped or not: sums have all of them."""
    q, k, v = (torch.randn(1, 1, 520, 64).half() for _ in range(3))
    q[..., 0] = 4.0
    k[..., 0] = -torch.arange(520) * 0.5
    for _ in range(2):
        compare(q, k, v, 6e-3)
        k = k.flip(2)


@pytest.mark.parametrize(("columns", "dtype"), [(48, torch.bfloat16), (112, torch.float16)], ids=str)
def test_packed_sequences_of_columns_that_were_not_timed(columns: int, dtype: torch.dtype) -> None:
    begins = torch.tensor([0, 1, 18, 18, 60], dtype=torch.int32)
    q, k, v = (torch.randn(60, heads, columns).to(dtype) for heads in (1, 1, 1))
    options: Any = {"mask_mod": masks.causal(), "dropout_p": P, "dropout_seed": SEED}
    o = attention_varlen(q, k, v, begins, device=DEVICE, **options)
    wanted = attention_varlen(q.double(), k.double(), v.double(), begins, device="cpu", **options)
    atol = (4e-3 if dtype == torch.float16 else 2e-2) * float(wanted.abs().max())
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=atol)


@pytest.mark.parametrize("columns", [16, 80])
def test_bf16_of_columns_that_were_not_timed(columns: int) -> None:
    q, k, v = (torch.randn(1, heads, 70, columns).to(torch.bfloat16) for heads in (2, 1, 1))
    compare(q, k, v, 2e-2, mask_mod=masks.causal())


def test_bf16_and_fully_masked_rows() -> None:
    q, k, v = (torch.randn(1, 2, 150, 64).to(torch.bfloat16) for _ in range(3))
    compare(q, k, v, 2e-2, mask_mod=lambda b, h, i, j: (i >= j) & (i != 3) & ((i < 20) | (i > 29)))


@pytest.mark.parametrize(("columns", "function"), [(32, "inference"), (64, "fwd"), (64, "inference"), (96, "inference"), (128, "fwd"),
                                                  (128, "inference")])  # fmt: skip
def test_kernels_of_passes_share_them(columns: int, function: str) -> None:
    """In joined loops of wide rows, those of causal masks without residuals, rounds of Philox are a loop."""
    schedule, source = _planned(function, columns, {})
    assert (schedule["emitter"], schedule["dropout"]) == ("warp", "lanes")
    body = source[source.index("__global__") :]
    rows, unroll = (192 if columns <= 64 else 128), 1 if (columns, function) == (128, "inference") else 7
    assert f"attn::dropout_of_warp<{rows}, 128, {unroll}>" in body
    assert body.count("attn::dropout_of_warp<") == body.count("attn::drop_own<") > 0 and "philox_kept(" not in body
    schedule, source = _planned(function, columns, {"dropout": "own"})
    assert schedule["emitter"] == "hopper" and "philox_two(" in source


def test_where_no_kernel_shares_them() -> None:
    """Rows of 192 columns have blocks of 80 keys."""
    assert _planned("inference", 192, {})[0]["emitter"] == "hopper"
    with pytest.raises((UnsupportedError, attn_mlir.AttnError), match="dropout can be 'own', not 'lanes'"):
        _planned("inference", 192, {"dropout": "lanes"})


def _planned(function: str, columns: int, choices: dict[str, Any]) -> tuple[Any, str]:
    """The schedule of the kernel with products of a function, and its source."""
    call = attn_mlir.Attention(mask_mod=masks.causal())
    call.__dict__.update(_last=Inputs("f16", columns, columns), _form=("tensor", "tensor"))
    name, prepare = ("attention", driver.OUTLINE) if function == "inference" else derivative(function, ("q", "k", "v"), "sm_90a")
    _, units = driver._lower(call.ir(), name, prepare, {"arch": "sm_90a", **choices})
    (unit,) = [unit for unit in units.values() if "wgmma" in unit.code.source]
    return unit.schedule, unit.code.source
