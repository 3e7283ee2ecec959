"""Backward passes on a GPU whose kernels the `warp` dialect makes: gradients at odd lengths and large scores, bits of two launches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from attn_mlir import attention, kv_len, masks, mods, q_len, rows
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia import codegen
from attn_mlir.backends.nvidia.warp import preferred
from gpu_cases import GPU

pytestmark = GPU


def _ahead(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Causal, but for three keys more, so that no other test has compiled these programs."""
    return i + (kv_len() - q_len() + 3) >= j


def _causal(b: Any, h: Any, i: Any, j: Any) -> Any:
    """The first keys are seen by all queries: the first thread block at a block of queries stores its sums."""
    return i >= j


def _cooler(s: Any) -> Any:
    """No other test has compiled this one."""
    return rows.sigmoid(0.75 * s)


def _documents(device: str) -> dict[str, Any]:
    """Four documents of 200 positions, in which keys before a query and three more are seen."""
    numbers = (torch.arange(800, device=device) // 200).to(torch.int32)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (numbers[i] == numbers[j]) & (i + 3 >= j)

    return {"mask_mod": mask}


def _lengths(device: str) -> dict[str, Any]:
    """A number of keys of each of two batch entries."""
    numbers = torch.tensor([1000, 40], dtype=torch.int32, device=device)
    return {"mask_mod": lambda b, h, i, j: j < numbers[b]}


def _rectified(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-3)


CAUSAL: dict[str, Any] = {"mask_mod": _ahead}
CASES: dict[str, tuple[dict[str, Any] | Callable[[str], dict[str, Any]], int]] = {
    "causal": (CAUSAL, 64),
    "sigmoid": ({**CAUSAL, "row": rows.sigmoid}, 64),
    "documents": (_documents, 64),
    "documents wide": (_documents, 128),
    "softcap": ({**CAUSAL, "score_mod": mods.softcap(9.5)}, 64),
    "rectified": ({**CAUSAL, "row": _rectified}, 64),
    "sigmoid wide": ({"mask_mod": _causal, "row": _cooler}, 128),
    "softcap wide": ({"mask_mod": _causal, "score_mod": mods.softcap(9.5)}, 128),
    "rectified wide": ({"mask_mod": _causal, "row": _rectified}, 128),
    "retention wide": ({"mask_mod": _causal, "row": rows.retention}, 128),
    "lengths wide": (_lengths, 128),
    "window wide": ({"mask_mod": masks.sliding_window(100)}, 128),
}
"""Options of a call, or what makes them for a device; columns."""
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those of the Hopper emitter, too, which makes the same kernels where it is asked for."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    options, dim = CASES[name]
    made: list[Any] = []

    def note(kernel: Any, fields: Any) -> Any:
        chosen = preferred.preferred(kernel, fields)
        if attributes.grid_kind(kernel) == "pairs":
            made.append(chosen)
        return chosen

    with mock.patch.object(codegen, "preferred", note):
        for queries, keys, heads, of_keys, factor in ((1, 1, 1, 1, 1), (70, 333, 4, 2, 1), (333, 333, 4, 1, 1), (700, 700, 2, 2, 30)):
            draw = torch.Generator().manual_seed(queries)
            shapes = (heads, queries), (of_keys, keys), (of_keys, keys), (heads, queries)
            q, k, v, do = (torch.randn(2, *shape, dim, generator=draw).to(dtype) for shape in shapes)
            q = q * factor
            got, again = ([g.cpu() for g in of("cuda", (q, k, v, do), options)] for _ in range(2))
            for mine, wanted in zip(got, of("cpu", [x.double() for x in (q, k, v, do)], options), strict=True):
                assert float((mine.double() - wanted).norm()) <= TOLERANCE[dtype] * float(wanted.norm()) + 1e-3 * factor
            assert all(torch.equal(a, b) for a, b in zip(got[1:], again[1:], strict=True))
    assert made and all(fields.get("emitter") == "warp" for fields in made)


def of(device: str, tensors: Any, options: dict[str, Any] | Callable[[str], dict[str, Any]]) -> tuple[torch.Tensor, ...]:
    """Gradients of q, k and v."""
    options = options if isinstance(options, dict) else options(device)
    q, k, v, do = (x.to(device) for x in tensors)
    ins = [x.requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(attention(*ins, **options), ins, do)
