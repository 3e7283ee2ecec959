"""Tangents and second derivatives of heads of more than 256 columns on GPUs, emulated and real, against float64 on the CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from amd_tools import needs_host_clang
from attn_mlir import attention, attention_varlen, masks, rows
from attn_mlir.backends.gpu import pair_chunks
from attn_mlir.backends.nvidia import driver as nvidia_driver
from gpu_cases import GPU

EMULATED = "hip-emulated"
causal = masks.causal()


def standardised(s: Any) -> Any:
    """A row whose gradients take a further pass over the keys."""
    c = s - s.mean()
    e = torch.exp(c / torch.sqrt((c * c).mean() + 1e-3))
    return e / e.sum()


def softcap(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """A score function with a tangent of its own."""
    return 5 * torch.tanh(s / 5)


Sizes = tuple[int, int, int, int, int, int, int]
CASES: dict[str, tuple[Sizes, dict[str, Any]]] = {
    "causal": ((2, 4, 2, 33, 41, 272, 48), {"mask_mod": causal}),
    "full": ((1, 2, 2, 17, 50, 264, 264), {}),
    "one query": ((1, 2, 1, 1, 17, 257, 64), {}),
    "wide v": ((1, 4, 1, 40, 40, 64, 320), {"mask_mod": causal}),
    "fully masked rows": ((1, 2, 1, 40, 40, 264, 64), {"mask_mod": lambda b, h, i, j: i >= j + 20}),
    "window": ((1, 2, 1, 60, 60, 264, 64), {"mask_mod": masks.sliding_window(9)}),
    "sigmoid": ((1, 2, 1, 20, 30, 264, 64), {"row": rows.sigmoid}),
    "softcap": ((1, 2, 1, 20, 30, 264, 64), {"score_mod": softcap, "mask_mod": causal}),
    "standardised": ((1, 2, 2, 20, 30, 264, 64), {"row": standardised}),
}
"""Batch entries, heads, heads of keys, queries, keys, columns of q and of v; what is asked for."""


def derivatives(function: Callable[..., Any], inputs: list[Tensor], moved: list[Tensor], upstream: Tensor) -> list[Tensor]:
    """Results, their tangents, and second derivatives by inputs and `upstream`, of gradients along `moved`; -7 in place of -inf."""
    made, tangents = torch.func.jvp(function, tuple(inputs), tuple(moved))  # type: ignore[misc]
    wrt = [x.requires_grad_() for x in (*inputs, upstream)]
    gradients = torch.autograd.grad(function(*inputs)[0], inputs, upstream, create_graph=True)
    second = torch.autograd.grad(sum((a * b).sum() for a, b in zip(gradients, moved, strict=True)), wrt)  # type: ignore[arg-type]
    return [torch.nan_to_num(x.detach().double().cpu(), neginf=-7.0) for x in (*made, *tangents, *second)]


def errors(name: str, device: str, tensors: str, sizes: Sizes | None = None, factor: float = 1.0) -> list[float]:
    """How far o, row outputs, their tangents and second derivatives are from those in float64."""
    usual, options = CASES[name]
    batch, heads, groups, queries, keys, columns, values = sizes or usual
    shapes = ((heads, queries, columns), (groups, keys, columns), (groups, keys, values))
    drawn = [torch.randn(batch, *shape).bfloat16() for shape in shapes]
    drawn[0] *= factor
    moved = [torch.randn_like(x) for x in drawn]
    do = torch.randn(batch, heads, queries, values).bfloat16()
    outputs = {} if options.get("row") else {"return_lse": True}

    def run(where: str, at: str, exact: bool) -> list[Tensor]:
        ins, ts, (u,) = ([(x.double() if exact else x).to(at) for x in each] for each in (drawn, moved, [do]))

        def function(*given: Tensor) -> Any:
            made: Any = attention(*given, device=where, **options, **outputs)  # type: ignore[arg-type]
            return made if outputs else (made,)

        return derivatives(function, ins, ts, u)

    found = zip(run(device, tensors, False), run("cpu", "cpu", True), strict=True)
    return [float((a - b).norm() / (b.norm() + 1e-9)) for a, b in found]


@needs_host_clang
@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("causal", "window"):
        monkeypatch.setattr(pair_chunks, "MOST_PAIRS", 4096)
        monkeypatch.setattr(pair_chunks, "FEWEST", 8)
    assert max(errors(name, EMULATED, "cpu")) <= 6e-3


@pytest.mark.parametrize("name", ["window", "fully masked rows", "sigmoid", "standardised"])
def test_emulated_ampere(name: str) -> None:
    """There the forward pass has no kernels of slices."""
    assert max(errors(name, "cuda-emulated-sm80", "cpu")) <= 6e-3


def packed_errors(device: str, tensors: str, queries: Sequence[int], keys: Sequence[int]) -> list[float]:
    """The same of packed sequences."""
    sizes = ((queries, 4, 272), (keys, 2, 272), (keys, 2, 64), (queries, 4, 64))
    *drawn, do = (torch.randn(sum(lengths) + 2, heads, columns).bfloat16() for lengths, heads, columns in sizes)
    moved = [torch.randn_like(x) for x in drawn]
    offsets = [torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32) for lengths in (queries, keys)]

    def run(where: str, at: str, exact: bool) -> list[Tensor]:
        ins, ts, (u,) = ([(x.double() if exact else x).to(at) for x in each] for each in (drawn, moved, [do]))
        places = [x.to(at) for x in offsets]

        def function(q: Tensor, k: Tensor, v: Tensor) -> Any:
            return attention_varlen(q, k, v, *places, mask_mod=masks.causal("bottom_right"), return_lse=True, device=where)

        return derivatives(function, ins, ts, u)

    found = zip(run(device, tensors, False), run("cpu", "cpu", True), strict=True)
    return [float((a - b).norm() / (b.norm() + 1e-9)) for a, b in found]


LENGTHS = (17, 1, 0, 33, 30, 40, 31), (17, 5, 9, 40, 27, 0, 31)


@needs_host_clang
@pytest.mark.parametrize("device", [EMULATED, "cuda-emulated-sm80"])
def test_packed(device: str) -> None:
    assert max(packed_errors(device, "cpu", *LENGTHS)) <= 6e-3


@needs_host_clang
def test_large_scores() -> None:
    """Scores of thousands neither overflow nor lose their tangents where these are not small."""
    first = errors("causal", EMULATED, "cpu", (1, 2, 1, 17, 17, 264, 64), 200.0)[:4]
    assert max(first[:3]) <= 2e-2 and first[3] <= 2e-2


class TestGpu:
    pytestmark = GPU

    def test_packed(self) -> None:
        assert max(packed_errors("cuda", "cuda", *LENGTHS)) <= 6e-3
        assert max(packed_errors("cuda", "cuda", (1000, 127, 130), (1000, 200, 130))) <= 6e-3

    @pytest.mark.parametrize("name", ["causal", "fully masked rows", "sigmoid"])
    def test_as_on_ampere(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(nvidia_driver, "_for_device", lambda: {"arch": "sm_80"})
        assert max(errors(name, "cuda", "cuda")) <= 6e-3

    @pytest.mark.parametrize("name", CASES)
    def test_derivatives(self, name: str) -> None:
        assert max(errors(name, "cuda", "cuda")) <= 6e-3

    @pytest.mark.parametrize("sizes", [(1, 4, 1, 127, 1000, 576, 512), (2, 2, 2, 1000, 127, 320, 320), (1, 1, 1, 17, 9, 1024, 1024)])
    def test_sizes(self, sizes: Sizes) -> None:
        assert max(errors("causal", "cuda", "cuda", sizes)) <= 6e-3
