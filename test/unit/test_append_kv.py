"""append_kv: what is written where, key by key, and that nothing else is."""

import math
from typing import Any

import pytest
import torch

from attn_mlir import ArgumentError, append_kv


def tables(positions: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    angles = torch.arange(positions)[:, None] * 0.5 ** torch.arange(channels // 2)
    return angles.cos(), angles.sin()


def turned(x: torch.Tensor, position: int, channels: int, interleaved: bool) -> torch.Tensor:
    """A row [H, D] rotated, pair by pair."""
    y = x.clone()
    for i in range(channels // 2):
        a, b = (2 * i, 2 * i + 1) if interleaved else (i, i + channels // 2)
        c, s = math.cos(position * 0.5**i), math.sin(position * 0.5**i)
        y[:, a], y[:, b] = x[:, a] * c - x[:, b] * s, x[:, b] * c + x[:, a] * s
    return y


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_new_keys_are_written_in_place(paged: bool, interleaved: bool) -> None:
    lengths, new, size = [0, 5, 15], 3, 4
    used = torch.tensor(lengths, dtype=torch.int32)
    k, v, q = torch.randn(3, new, 2, 8), torch.randn(3, new, 2, 6), torch.randn(3, new, 4, 8)
    shape = (20, size) if paged else (5, 18)
    k_cache, v_cache = torch.randn(*shape, 2, 8), torch.randn(shape[0], 2, shape[1], 6).transpose(1, 2)
    pages = torch.randperm(20)[:15].reshape(3, 5).int()
    rows = torch.tensor([4, 0, 2], dtype=torch.int32)
    place: dict[str, Any] = {"block_table": pages} if paged else {"cache_batch_idx": rows}
    wanted = k_cache.clone(), v_cache.clone()
    for b, length in enumerate(lengths):
        for j in range(new):
            p = length + j
            where = (int(pages[b, p // size]), p % size) if paged else (int(rows[b]), p)
            wanted[0][where], wanted[1][where] = turned(k[b, j], p, 6, interleaved), v[b, j]
    cos, sin = tables(32, 6)
    made = append_kv(k_cache, v_cache, k, v, used, q=q, rotary_cos=cos, rotary_sin=sin, interleaved=interleaved, **place)
    torch.testing.assert_close(k_cache, wanted[0])
    assert torch.equal(v_cache, wanted[1])
    assert made is not None
    torch.testing.assert_close(made[2, 1], turned(q[2, 1], 16, 6, interleaved))


def test_without_rotation_bits_are_kept() -> None:
    k_cache = torch.zeros(2, 7, 1, 4, dtype=torch.bfloat16)
    v_cache, k = k_cache.clone(), torch.randn(2, 2, 1, 4).bfloat16()
    assert append_kv(k_cache, v_cache, k, -k, torch.tensor([5, 0], dtype=torch.int32)) is None
    assert torch.equal(k_cache[0, 5:], k[0]) and torch.equal(v_cache[1, :2], -k[1])
    assert not k_cache[0, :5].any() and not k_cache[1, 2:].any()


@pytest.mark.parametrize("step", [1, -1])
def test_rows_of_the_caches_themselves(step: int) -> None:
    """Keys that move within a cache, as accepted tokens of a draft do, are those from before the call; and v may be a view of k_cache."""
    used = torch.tensor([2, 3], dtype=torch.int32)
    k_cache = torch.randn(2, 9, 3, 4)
    v_cache = torch.randn(2, 9, 3, 4)
    k = k_cache[:, 2 + step : 6 + step]
    wanted = k_cache.clone(), v_cache.clone()
    for b, begin in enumerate(used.tolist()):
        wanted[0][b, begin : begin + 4], wanted[1][b, begin : begin + 4] = k[b], k[b].flip(-1)
    both = torch.stack([k_cache, k_cache.flip(-1)])
    append_kv(both[0], v_cache, both[0, :, 2 + step : 6 + step], both[1, :, 2 + step : 6 + step], used)
    assert torch.equal(both[0], wanted[0]) and torch.equal(v_cache, wanted[1])
    latent, values = k_cache.clone(), torch.zeros(2, 9, 3, 4)
    append_kv(latent, values, latent[:, 3:7], latent[:, 3:7], used)
    for b, begin in enumerate(used.tolist()):
        assert torch.equal(values[b, begin : begin + 4], k_cache[b, 3:7]) and torch.equal(latent[b, begin : begin + 4], k_cache[b, 3:7])


def test_what_is_refused_writes_nothing() -> None:
    k_cache, v_cache, k = torch.zeros(2, 4, 1, 4), torch.zeros(2, 4, 1, 4), torch.ones(2, 2, 1, 4)
    used = torch.tensor([1, 2], dtype=torch.int32)
    table = torch.tensor([[0, 1], [1, 0]], dtype=torch.int32)
    eights: dict[str, Any] = {x: k.to(torch.float8_e4m3fn) for x in ("k", "v")}
    eights |= {x: k_cache.to(torch.float8_e4m3fn) for x in ("k_cache", "v_cache")}
    eights |= dict(zip(("rotary_cos", "rotary_sin"), tables(8, 4), strict=True))
    cases: list[tuple[str, dict[str, Any]]] = [
        ("reach position 4, but k_cache has 4 positions", {"seqused_k": used + 1}),
        ("seqused_k must be an int32 tensor", {"seqused_k": used.long()}),
        ("seqused_k must not be negative", {"seqused_k": used - 2}),
        ("block_table names pages from 0 to 2", {"block_table": table + torch.tensor([[0, 0], [1, 0]], dtype=torch.int32)}),
        ("block_table gives several sequences one place", {"block_table": table * 0, "seqused_k": used * 0}),
        ("cache_batch_idx gives several sequences one place", {"cache_batch_idx": used * 0, "seqused_k": used * 0}),
        ("cache_batch_idx is for contiguous caches", {"cache_batch_idx": used, "block_table": table}),
        ("rotary_cos has 3 positions", dict(zip(("rotary_cos", "rotary_sin"), tables(3, 4), strict=True))),
        ("come together", {"rotary_cos": tables(3, 4)[0]}),
        ("v has shape", {"v": k[:, :1]}),
        ("k_cache has dtype", {"k_cache": k_cache.double()}),
        ("requires a gradient", {"v": k.clone().requires_grad_()}),
        ("k_cache has one place in memory for several", {"k_cache": torch.zeros(6, 1, 4).unfold(0, 4, 2).permute(0, 3, 1, 2)}),
        ("rotary_cos must be a tensor of floats", {"rotary_cos": [1.0], "rotary_sin": [0.0]}),
        ("rotary_sin is on meta but k is on cpu", {"rotary_cos": tables(8, 4)[0], "rotary_sin": tables(8, 4)[1].to("meta")}),
        ("q is on meta but k is on cpu", {"q": k.to("meta"), **dict(zip(("rotary_cos", "rotary_sin"), tables(8, 4), strict=True))}),
        ("k has dtype torch.float8_e4m3fn, which is not rotated", eights),
    ]
    for message, options in cases:
        given: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": k, "seqused_k": used, **options}
        with pytest.raises(ArgumentError, match=message):
            append_kv(**given)
    assert not k_cache.any() and not v_cache.any()


def test_values_are_columns_of_keys_or_others_beside_them() -> None:
    """MLA's v_cache is columns of k_cache: v is those of k, bit for bit, NaN too; what lies beside k in one tensor is no such."""
    used = torch.tensor([1, 0], dtype=torch.int32)
    k, cache = torch.randn(2, 2, 1, 6), torch.zeros(2, 4, 1, 6)
    k[0, 0, 0, 1] = torch.nan
    append_kv(cache, cache[..., 1:5], k, k[..., 1:5].clone(), used)
    assert torch.equal(cache[0, 1:3].nan_to_num(7), k[0].nan_to_num(7)) and torch.equal(cache[1, :2], k[1])
    before = cache.clone()
    with pytest.raises(ArgumentError, match="v_cache has columns 1 to 4"):  # a step over the only head means nothing
        append_kv(cache, cache.squeeze(2)[..., 1:5].unsqueeze(2), k, k[..., 1:5] + 1, used)
    for v, mods in ((k[..., 1:5] + 1, {}), (k[..., 1:5], dict(zip(("rotary_cos", "rotary_sin"), tables(8, 4), strict=True)))):
        with pytest.raises(ArgumentError, match="v_cache has columns 1 to 4 of k_cache in the same memory"):
            append_kv(cache, cache[..., 1:5], k, v, used, **mods)
    assert torch.equal(cache.nan_to_num(7), before.nan_to_num(7))
    both = torch.zeros(2, 4, 2, 1, 6)
    append_kv(both[:, :, 0], both[:, :, 1], k.nan_to_num(), k.nan_to_num() + 1, used)
    assert torch.equal(both[1, :2, 0], k[1]) and torch.equal(both[1, :2, 1], k[1] + 1)
