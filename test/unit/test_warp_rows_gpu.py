"""Forward passes and tangents on a GPU whose kernels the `warp` dialect makes: outputs at odd lengths, bits of two launches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from attn_mlir import attention, kv_len, mods, q_len, rows
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.nvidia import codegen
from attn_mlir.backends.nvidia.warp import preferred
from gpu_cases import GPU

pytestmark = GPU


def _ahead(b: Any, h: Any, i: Any, j: Any) -> Any:
    """Causal, but for two keys more, so that no other test has compiled these programs. The first rows of few keys see none."""
    return i + (kv_len() - q_len() + 2) >= j


def _of_keys(device: str) -> dict[str, Any]:
    """Adds a number of each key."""
    numbers = torch.linspace(-2, 2, 800, device=device)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + numbers[j]

    return {"score_mod": score}


def _of_documents(device: str) -> dict[str, Any]:
    """Documents of 90 positions in one batch entry, of 40 in the other."""
    documents = torch.stack([torch.arange(800, device=device) // size for size in (90, 40)]).to(torch.int32)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return documents[b, i] == documents[b, j]

    return {"mask_mod": mask}


def _of_lengths(device: str) -> dict[str, Any]:
    """The first keys of each batch entry, none of the second one."""
    lengths = torch.tensor([100, 0, 300, 64], dtype=torch.int32, device=device)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return j < lengths[b]

    return {"mask_mod": mask}


def _of_sums(device: str) -> dict[str, Any]:
    """Adds a number at the sum of both positions."""
    numbers = torch.linspace(-2, 2, 1600, device=device)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + numbers[i + j]

    return {"score_mod": score}


def _of_slopes(device: str) -> dict[str, Any]:
    """ALiBi."""
    slopes = torch.linspace(0.5, 0.01, 4, device=device)

    def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + slopes[h] * (j - i)

    return {"score_mod": score, "mask_mod": _ahead}


def _of_earlier_documents(device: str) -> dict[str, Any]:
    """Documents of 90 positions, causal."""
    documents = (torch.arange(800, device=device) // 90).to(torch.int32)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (documents[i] == documents[j]) & (i >= j)

    return {"mask_mod": mask}


def _biased(element: torch.dtype, **others: Any) -> Callable[[str], dict[str, Any]]:
    """Adds a bias of each head, query and key, which lies among NaN."""

    def made(device: str) -> dict[str, Any]:
        bias = torch.full((4, 711, 720), float("nan"), dtype=element)
        bias[:, :700, :700] = torch.randn(4, 700, 700, generator=torch.Generator().manual_seed(3)).to(element)
        bias = bias.to(device)

        def score(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + bias[h, i, j]

        return {"score_mod": score, **others}

    return made


def _rectified(s: Any) -> Any:
    weights = s.max(0.0)
    return weights / (weights.sum() + 1e-5)


def _of_squares(s: Any) -> Any:
    centred = s - s.mean()
    return centred / ((centred * centred).mean() + 1e-4).sqrt()


def _of_two_passes(s: Any) -> Any:
    return (s - s.max() - (s * s).mean()).tanh()


MASKED: dict[str, Any] = {"mask_mod": _ahead}
CASES: dict[str, tuple[dict[str, Any] | Callable[[str], dict[str, Any]], tuple[int, int]]] = {
    "keys": (_of_keys, (64, 64)),
    "keys wide": (_of_keys, (128, 128)),
    "sigmoid": ({**MASKED, "row": rows.sigmoid}, (64, 64)),
    "sigmoid, all": ({"row": rows.sigmoid}, (64, 64)),
    "sigmoid, all, wide": ({"row": rows.sigmoid}, (128, 128)),
    "softcap wide": ({**MASKED, "score_mod": mods.softcap(9.5)}, (128, 128)),
    "latent": ({"scale": 0.11}, (192, 128)),
    "latent masked": (MASKED, (192, 128)),
    "192": (MASKED, (192, 192)),
    "32": (MASKED, (32, 32)),
    "48": (MASKED, (48, 48)),
    "80": (MASKED, (80, 80)),
    "96": (MASKED, (96, 96)),
    "112, all": ({"scale": 0.11}, (112, 112)),
    "160, all": ({"scale": 0.11}, (160, 160)),
    "256": (MASKED, (256, 256)),
    "256, all": ({"scale": 0.07}, (256, 256)),
    "softcap 256": ({**MASKED, "score_mod": mods.softcap(9.5)}, (256, 256)),
    "sigmoid 256": ({**MASKED, "row": rows.sigmoid}, (256, 256)),
    "rectified": ({**MASKED, "row": _rectified}, (64, 64)),
    "rectified, all, wide": ({"row": _rectified}, (128, 128)),
    "rectified 256": ({**MASKED, "row": _rectified}, (256, 256)),
    "two passes": ({**MASKED, "row": _of_two_passes}, (64, 64)),
    "two passes wide": ({**MASKED, "row": _of_two_passes}, (128, 128)),
    "documents wide": (_of_documents, (128, 128)),
    "lengths wide": (_of_lengths, (128, 128)),
    "sums": (_of_sums, (64, 64)),
    "two plain passes": ({"row": _of_squares}, (64, 64)),
    "two plain passes wide": ({"row": _of_squares}, (128, 128)),
    "keys 256": (_of_keys, (256, 256)),
    "alibi": (_of_slopes, (64, 64)),
    "retention": ({**MASKED, "row": rows.retention}, (64, 64)),
    "earlier documents wide": (_of_earlier_documents, (128, 128)),
    "two passes, all, wide": ({"row": _of_two_passes}, (128, 128)),
    "16": (MASKED, (16, 16)),
    "bias": (_biased(torch.float32), (64, 64)),
    "bias masked": (_biased(torch.float32, **MASKED), (64, 64)),
    "bias wide": (_biased(torch.float32), (128, 128)),
    "bias wide, masked": (_biased(torch.float32, **MASKED), (128, 128)),
    "halves": (_biased(torch.float16), (64, 64)),
    "halves masked": (_biased(torch.float16, **MASKED), (64, 64)),
}
"""Options of a call, or what makes them for a device; columns of q and k, and of v."""
TOLERANCE = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
SIZES = ((17, 1, 1, 1, 1), (70, 333, 4, 2, 1), (333, 127, 4, 1, 1), (700, 700, 2, 2, 30))


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_outputs(name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a single key, of more queries than keys, and of scores so large that whole blocks look for new maxima."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    given, columns = CASES[name]
    made: list[Any] = []
    with mock.patch.object(codegen, "preferred", noting(made)):
        for sizes in SIZES:
            tensors = drawn(sizes, columns, dtype)
            q, k, v = (x.cuda() for x in tensors)
            got, again = (attention(q, k, v, **options(given, "cuda")).cpu() for _ in range(2))
            q, k, v = (x.double() for x in tensors)
            wanted = attention(q, k, v, **options(given, "cpu"))
            assert float((got.double() - wanted).norm()) <= TOLERANCE[dtype] * float(wanted.norm()) + 1e-3
            assert torch.equal(got, again)
    assert made and all(fields.get("emitter") == "warp" for fields in made)


@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("masked", [True, False])
def test_tangents(masked: bool, dim: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By q, k and v."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    given: dict[str, Any] = MASKED if masked else {"scale": 0.12}
    made: list[Any] = []

    def tangent(device: str, tensors: list[torch.Tensor]) -> torch.Tensor:
        primals, tangents = (tuple(x.to(device) for x in some) for some in (tensors[:3], tensors[3:]))
        return torch.func.jvp(lambda *ins: attention(*ins, **given), primals, tangents)[1]

    with mock.patch.object(codegen, "preferred", noting(made)):
        for sizes in SIZES[:3]:
            tensors = [*drawn(sizes, (dim, dim), torch.float16), *drawn(sizes, (dim, dim), torch.float16, 7)]
            wanted = tangent("cpu", [x.double() for x in tensors])
            got = tangent("cuda", tensors).cpu().double()
            assert float((got - wanted).norm()) <= 3e-3 * float(wanted.norm()) + 1e-3
    assert made and all(fields.get("emitter") == "warp" for fields in made)


def noting(made: list[Any]) -> Callable[[Any, Any], Any]:
    """What `codegen.preferred` is, which adds to `made` the schedules of kernels over rows that multiply."""

    def note(kernel: Any, fields: Any) -> Any:
        chosen = preferred.preferred(kernel, fields)
        if attributes.grid_kind(kernel) == "rows" and fields.get("emitter") in ("hopper", "warp"):
            made.append(chosen)
        return chosen

    return note


def options(given: dict[str, Any] | Callable[[str], dict[str, Any]], device: str) -> dict[str, Any]:
    """Those of a call on a device."""
    return given if isinstance(given, dict) else given(device)


def drawn(sizes: tuple[int, ...], columns: tuple[int, int], dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """q, k and v of so many queries, keys and heads of either; q is multiplied by the last number."""
    queries, keys, heads, of_keys, factor = sizes
    draw = torch.Generator().manual_seed(queries + seed)
    shapes = (heads, queries, columns[0]), (of_keys, keys, columns[0]), (of_keys, keys, columns[1])
    q, k, v = (torch.randn(2, *shape, generator=draw).to(dtype) for shape in shapes)
    return [q * factor, k, v]
