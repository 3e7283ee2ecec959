"""Attention on emulated AMD GPUs at the edges: masks of one key, some or none, more values of columns than shared memory holds."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from amd_tools import needs_host_clang
from generated_code import complaints, kernels, traced

pytestmark = needs_host_clang

Mask = Callable[..., Any]
MASKS: dict[str, tuple[Mask, Callable[[torch.Tensor], torch.Tensor] | None]] = {
    "none, softmax": (lambda b, h, i, j: j < 0, None),
    "none of either": (lambda b, h, i, j: (i < 0) & (j < 0), lambda s: s),
    "first, scores": (lambda b, h, i, j: j == 0, lambda s: s),
    "first, softmax": (lambda b, h, i, j: j == 0, None),
    "two blocks": (lambda b, h, i, j: (j < 3) | (j == 200), None),
    "first row": (lambda b, h, i, j: i == 0, None),
}


def run(device: str, given: list[torch.Tensor], **options: Any) -> list[torch.Tensor]:
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    q, k, v = leaves
    o = attn_mlir.attention(q, k, v, device=device, **options)
    return [o, *torch.autograd.grad(o.float().square().sum(), leaves)]


@pytest.mark.parametrize("name", MASKS)
def test_masks_of_few_keys(name: str) -> None:
    mask, row = MASKS[name]
    given = [torch.randn(1, heads, length, 16).mul(0.5).half() for heads, length in ((4, 5), (2, 17), (2, 17))]
    options: dict[str, Any] = {"mask_mod": mask} | ({"row": row} if row else {})
    for got, wanted in zip(run("hip-emulated", given, **options), run("cpu", given, **options), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)
        if name.startswith("none"):
            assert not got.any()


ALONE: dict[str, Any] = {
    "mean": {"row": lambda s: torch.ones_like(s) / torch.ones_like(s).sum()},
    "sum": {"row": lambda s: torch.ones_like(s) / 64.0},
    "positions": {"score_mod": lambda s, b, h, i, j: 0.01 * (i + 2 * j)},
}


@pytest.mark.parametrize("name", ALONE)
def test_weights_that_do_not_depend_on_scores(name: str) -> None:
    """Of 130 queries, more than a block of keys has rows."""
    given = [torch.randn(1, 2, length, 16).mul(0.5).half() for length in (130, 90, 90)]
    for got, wanted in zip(run("hip-emulated", given, **ALONE[name]), run("cpu", given, **ALONE[name]), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)


def _score(reads: int) -> Callable[..., Any]:
    table = torch.linspace(-1, 1, 16)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        for number in range(reads):
            s = s + table[j * (number + 3) % 16]
        return s

    return score


def test_values_of_columns_without_room_are_read_where_they_are_used() -> None:
    (code,) = kernels(traced(score=_score(80)), ("",), ("amd",))
    assert code.shared_bytes <= 64 * 1024
    (usual,) = kernels(traced(score=_score(3)), ("",), ("amd",))
    assert usual.shared_bytes + 77 * 512 > 64 * 1024
    q, k, v = (torch.randn(1, 1, 17, 64).mul(0.5).half() for _ in range(3))
    got, wanted = (attn_mlir.attention(q, k, v, score_mod=_score(80), device=device) for device in ("hip-emulated", "cpu"))
    torch.testing.assert_close(got, wanted, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("columns", [8, 80, 256])
def test_every_head_dimension_has_blocks_that_fit(columns: int) -> None:
    for mask, _ in list(MASKS.values())[:3]:
        for code in kernels(traced(mask, _score(9), columns), vendors=("amd",)):
            assert code.shared_bytes <= 64 * 1024


@pytest.mark.parametrize("name", MASKS)
def test_hopper_has_kernels_for_them(name: str) -> None:
    mask, row = MASKS[name]
    assert kernels(traced(mask, row=row or (lambda s: torch.softmax(s, -1)), columns=64), vendors=("nvidia",))


@pytest.mark.parametrize("name", ALONE)
def test_hopper_has_kernels_of_weights_that_do_not_depend_on_scores(name: str) -> None:
    given = ALONE[name]
    for code in kernels(traced(None, given.get("score_mod"), row=given.get("row", attn_mlir.softmax)), vendors=("nvidia",)):
        assert not complaints(code)


@pytest.mark.parametrize("columns", [(8, 256), (64, 256)], ids=str)
def test_sums_before_the_gradients_have_blocks_of_the_widest_product(columns: tuple[int, int]) -> None:
    """The kernel that makes them multiplies values by do, which are wider than q and k, and blocks of those did not fit into memory."""
    dim, wide = columns
    given = [torch.randn(1, heads, length, n).half() for heads, length, n in ((2, 17, dim), (1, 64, dim), (1, 64, wide))]
    options: dict[str, Any] = {
        "row": lambda s: torch.relu(s - s.mean()) / (1.0 + (s * s).sum()),
        "mask_mod": lambda b, h, i, j: (i + j) % 3 != 0,
    }
    for got, wanted in zip(run("hip-emulated", given, **options), run("cpu", [x.double() for x in given], **options), strict=True):
        assert float((got.double() - wanted).norm()) <= 1e-2 * float(wanted.norm())
