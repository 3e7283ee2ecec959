"""A few queries of `attention` with many keys on GPUs: seen in parts, as packed sequences are, with the same results in every layout."""

from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import attention, masks, rows
from attn_mlir.api import long_caches
from attn_mlir.errors import UnsupportedError
from gpu_cases import GPU
from key_list_cases import agree
from spies import note_ways

Tensor = torch.Tensor


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether calls see keys in parts; these are few enough for emulation."""
    monkeypatch.setattr(long_caches, "LEAST_PAIRS", 1024)
    return note_ways(monkeypatch, long_caches, "of_long_caches")


def ordered(x: Tensor, order: str) -> Tensor:
    return x if order == "bhsd" else x.transpose(1, 2).contiguous() if order == "bshd" else x.permute(2, 0, 1, 3).contiguous()


def flat(found: Any) -> list[Tensor]:
    if isinstance(found, dict):
        return list(found.values())
    return [each for part in found for each in flat(part)] if isinstance(found, tuple) else [found]


SLOPES = torch.rand(8)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask_mod": masks.causal("bottom_right"), "num_splits": 3},
    "biased": {"score_mod": lambda s, b, h, i, j: s + SLOPES[h] * (j - i) * 0.01 + b, "return_lse": True},
    "states": {"row": rows.softmax1, "return_states": True, "scale": 0.2},
}


@needs_host_clang
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", ("bhsd", "bshd")], ids=str)
@pytest.mark.parametrize("sizes", [(2, 8, 2, 1, 512), (2, 8, 1, 4, 400), (1, 4, 4, 1, 304)], ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_emulated_amd(kind: str, sizes: tuple[int, ...], layout: Any, ways: list[bool]) -> None:
    batch, heads, kv_heads, queries, keys = sizes
    q, (k, v) = torch.randn(batch, heads, queries, 32).half(), torch.randn(2, batch, kv_heads, keys, 32).half()
    order = layout if isinstance(layout, str) else layout[0]
    q, k, v = (ordered(x, order) for x in (q, k, v))
    options = dict(KINDS[kind])
    found = attention(q, k, v, layout=layout, device="hip-emulated", **options)
    options.pop("num_splits", None)
    wanted = attention(q.double(), k.double(), v.double(), layout=layout, **options)
    for got, want in zip(flat(found), flat(wanted), strict=True):
        assert got.shape == want.shape and got.stride() == want.stride()
    agree(flat(found), flat(wanted), 3e-3)
    assert ways == [queries == 1 or "num_splits" in KINDS[kind]]


@needs_host_clang
def test_what_stays_as_it_is(ways: list[bool]) -> None:
    """Gradients, short caches, pages that no lane copies, several queries of narrow heads, rows of two passes, dropout."""
    q, (k, v) = torch.randn(1, 4, 1, 32).half(), torch.randn(2, 1, 2, 272, 32).half()

    def two_passes(s: Any) -> Any:
        e = (s * s.max().tanh()).exp()
        return e / e.sum()

    wanted = attention(q.double(), k.double(), v.double(), row=two_passes)
    agree([attention(q, k, v, row=two_passes, device="hip-emulated")], [wanted], 3e-3)
    attention(q.clone().requires_grad_(), k, v, device="hip-emulated")
    for keys in (208, 271):
        shorter = q, k[:, :, :keys], v[:, :, :keys]
        agree([attention(*shorter, device="hip-emulated")], [attention(q.double(), shorter[1].double(), shorter[2].double())], 3e-3)
    attention(torch.randn(1, 4, 17, 32).half(), k, v, device="hip-emulated")
    assert ways == [False] * 4
    attention(q, k, v, dropout_p=0.1, dropout_seed=(1, 2), device="hip-emulated")
    assert len(ways) == 4
    with pytest.raises(UnsupportedError, match="num_splits"):
        attention(torch.randn(1, 4, 17, 32).half(), k, v, device="hip-emulated", num_splits=2)


HEADS = [((32, 8), 128, 128, 1, 9000), ((128, 1), 576, 512, 2, 1001), ((16, 16), 64, 64, 1, 16384)]


@pytest.mark.parametrize(("heads", "dim", "values", "queries", "keys"), HEADS)
class TestGpu:
    """On a Hopper GPU."""

    pytestmark = GPU

    @pytest.mark.parametrize("layout", ["bhsd", "bshd"])
    def test_numbers(self, heads: tuple[int, int], dim: int, values: int, queries: int, keys: int, layout: Any, ways: list[bool]) -> None:
        q, k = torch.randn(2, heads[0], queries, dim).half(), torch.randn(2, heads[1], keys, dim).half()
        v = torch.randn(2, heads[1], keys, values).half() if values == dim else k[..., :values]
        s = q.double() @ k.double().repeat_interleave(heads[0] // heads[1], 1).mT / dim**0.5
        seen = torch.arange(queries)[:, None] + keys - queries >= torch.arange(keys)
        s = s.masked_fill(~seen, -torch.inf)
        wanted, lse = s.softmax(-1) @ v.double().repeat_interleave(heads[0] // heads[1], 1), s.logsumexp(-1)
        on = [ordered(x, layout).cuda() for x in (q, k)]
        last = on[1][..., :values] if values < dim else ordered(v, layout).cuda()
        with torch.no_grad():
            o, found = attention(on[0], on[1], last, layout=layout, mask_mod=masks.causal("bottom_right"), return_lse=True)
        agree([ordered(o.cpu(), layout), found.cpu()], [wanted, lse], 3e-3)
        assert ways == [True]
