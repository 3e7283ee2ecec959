"""8-bit attention on the CPU: against float64, by FlashAttention-3's criterion, with scales of every shape, and what is refused."""

import math
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import Attention, attention, attention_varlen, rows
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError
from fp8_cases import FP8, ROWS, check_as_flash_attention_3, dense, outliers, scaled

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2
B, HQ, HKV, D = 2, 4, 2, 32


def inputs(sq: int, skv: int, dtype: torch.dtype, q_dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
    q, k, v = outliers(B, HQ, sq, D), outliers(B, HKV, skv, D, seed=1), outliers(B, HKV, skv, D, seed=2)
    return q.to(q_dtype or dtype), k.to(dtype), v.to(dtype)


def scales() -> dict[str, Any]:
    return {"q_descale": torch.rand(B, HQ) + 0.5, "k_descale": torch.rand(B, HKV) + 0.5, "v_descale": torch.rand(B, HKV) + 0.5}


@pytest.mark.parametrize("dtype", FP8)
@pytest.mark.parametrize(("sq", "skv"), [(1, 1), (17, 127), (127, 17), (3, 1000)])
def test_normal_inputs_with_outliers(dtype: torch.dtype, sq: int, skv: int) -> None:
    q, k, v = inputs(sq, skv, dtype)
    given: dict[str, Any] = scales()
    o = attention(q, k, v, **given)
    assert o.dtype == torch.bfloat16 and o.shape == (B, HQ, sq, D)
    wide: Any = [scaled(x, scale) for x, scale in zip((q, k, v), given.values(), strict=True)]
    check_as_flash_attention_3(o, dense(*wide), dense(*wide, weights=dtype))


@pytest.mark.parametrize("name", ROWS)
def test_rows_whose_weights_are_bounded(name: str) -> None:
    q, k, v = inputs(33, 70, E4)
    row, function = ROWS[name]
    mask = torch.ones(33, 70, dtype=torch.bool).tril(-2)  # two rows see nothing
    o = attention(q, k, v, row=row, mask_mod=lambda b, h, i, j: j <= i - 2, v_descale=0.25, out_dtype=torch.float32)
    wide: Any = q.double(), k.double(), v.double() * 0.25
    check_as_flash_attention_3(o, dense(*wide, row=function, mask=mask), dense(*wide, row=function, mask=mask, weights=E4))
    assert (o[:, :, :2] == 0).all()


def test_fully_masked_rows_and_the_sum_of_exponentials() -> None:
    q, k, v = inputs(20, 40, E5)
    given: dict[str, Any] = scales()
    o, lse = attention(q, k, v, mask_mod=lambda b, h, i, j: i > 3, return_lse=True, **given)
    assert (o[:, :, :4] == 0).all() and (lse[:, :, :4] == -math.inf).all()
    wide_q, wide_k = scaled(q, given["q_descale"]), scaled(k, given["k_descale"]).repeat_interleave(2, 1)
    wanted = (wide_q @ wide_k.mT / math.sqrt(D)).logsumexp(-1)
    torch.testing.assert_close(lse[:, :, 4:].double(), wanted[:, :, 4:], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("q_dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("sq", [1, 40])
def test_wider_queries_lose_nothing(q_dtype: torch.dtype, sq: int) -> None:
    q, k, v = inputs(sq, 130, E4, q_dtype)
    given: dict[str, Any] = {name: scale for name, scale in scales().items() if name != "q_descale"}
    o = attention(q, k, v, **given)
    assert o.dtype == q_dtype
    wanted = dense(q.double(), scaled(k, given["k_descale"]), scaled(v, given["v_descale"]))
    torch.testing.assert_close(o.double(), wanted, rtol=1.01 * torch.finfo(q_dtype).eps / 2 + 1e-6 * (q_dtype != torch.float64), atol=3e-6)


def test_decoding_in_parts_and_not() -> None:
    for q_dtype, bound in ((torch.float16, 1e-3), (E4, 2e-2)):
        q, k, v = inputs(1, 3000, E4, q_dtype)
        given: dict[str, Any] = {"k_descale": torch.rand(HKV), "v_descale": torch.rand(HKV)}
        wanted = dense(q.double(), scaled(k, given["k_descale"]), scaled(v, given["v_descale"]))
        for splits in (1, 4):
            torch.testing.assert_close(attention(q, k, v, num_splits=splits, **given).double(), wanted, rtol=2 * bound, atol=bound)


@pytest.mark.parametrize("q_dtype", [torch.bfloat16, E4])
def test_packed_sequences_and_pages(q_dtype: torch.dtype) -> None:
    lengths, keys, size = (1, 17, 5), (70, 17, 0), 16
    q = outliers(sum(lengths), HQ, D).to(q_dtype)
    k, v = (outliers(sum(keys), HKV, D, seed=seed).to(E4) for seed in (1, 2))
    of_q, of_k = (torch.tensor([0, *x]).cumsum(0).int() for x in (lengths, keys))
    given: dict[str, Any] = {"k_descale": torch.rand(3, HKV) + 0.5, "v_descale": torch.rand(3, HKV) + 0.5}
    packed = attention_varlen(q, k, v, of_q, of_k, **given)
    table = torch.randperm(24).view(3, 8).int()
    pages = [torch.full((24, size, HKV, D), math.nan).to(E4) for _ in "kv"]
    for b, n in enumerate(keys):
        for j in range(n):
            for cache, x in zip(pages, (k, v), strict=True):
                cache[table[b, j // size], j % size] = x[of_k[b] + j]
    paged = attention_varlen(q, pages[0], pages[1], of_q, seqused_k=torch.tensor(keys).int(), block_table=table, **given)
    assert packed.dtype == torch.bfloat16 and torch.equal(paged, packed)
    for b in range(3):
        one_q, *one = (x[s[b] : s[b + 1]].transpose(0, 1)[None] for x, s in ((q, of_q), (k, of_k), (v, of_k)))
        wide: Any = [x * scale[b][:, None, None] for x, scale in zip((x.double() for x in one), given.values(), strict=True)]
        wanted = dense(one_q.double(), wide[0], wide[1])[0].transpose(0, 1)
        torch.testing.assert_close(packed[of_q[b] : of_q[b + 1]].double(), wanted, rtol=0.02, atol=0.03 if q_dtype == E4 else 1e-2)


def test_infinite_and_subnormal_numbers() -> None:
    tiny = 2.0**-16  # the smallest of e5m2, exact as any sum of few of them
    q = torch.zeros(1, 1, 4, D).to(E5)
    k = torch.zeros(1, 1, 8, D).to(E5)
    v = torch.full((1, 1, 8, D), tiny).to(E5)
    assert (attention(q, k, v, out_dtype=torch.float32) == tiny).all()
    assert (attention(q, k, v, v_descale=2.0**16, out_dtype=torch.float32) == 1).all()
    v[0, 0, 3, 0], v[0, 0, 5, 1] = math.inf, math.nan
    o = attention(q, k, v, out_dtype=torch.float32)
    assert (o[..., 0] == math.inf).all() and o[..., 1].isnan().all() and (o[..., 2:] == tiny).all()
    masked = attention(q, k, v, mask_mod=lambda b, h, i, j: j < 3, out_dtype=torch.float32)
    assert (masked[..., 2:] == tiny).all()
    k[0, 0, 2] = math.nan  # masked, it does not matter
    assert (attention(q, k, v, mask_mod=lambda b, h, i, j: j > 6, out_dtype=torch.float32)[..., 2:] == tiny).all()


@pytest.mark.parametrize("dtype", FP8)
def test_outputs_of_8_bits_saturate(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    q, k = torch.zeros(2, 1, 2, 3, D).to(dtype)
    v = torch.linspace(-8, 8, D).expand(1, 2, 3, D).to(dtype)
    assert torch.equal(attention(q, k, v, out_dtype=dtype).float(), v.float())
    o = attention(q, k, v, o_scale=torch.tensor([1.0, 1e6]), out_dtype=dtype)
    assert torch.equal(o[:, 0].float(), v[:, 0].float())
    assert torch.equal(o[:, 1].float(), v[:, 1].float().sign() * largest)
    v = torch.full((1, 2, 3, D), math.nan).to(dtype)
    assert attention(q, k, v, out_dtype=dtype).isnan().all()


def test_shapes_of_scales() -> None:
    q, k, v = inputs(5, 33, E4)
    compute = Attention(layout="bhsd")
    whole: dict[str, Any] = {"q_descale": torch.rand(B, HQ) + 0.5, "k_descale": torch.rand(B, HKV) + 0.5, "v_descale": torch.rand(B, HKV)}
    for name, shapes in (
        ("q_descale", [(HQ,), (HKV,), (1, HKV), (B, HKV), ()]),
        ("k_descale", [(HKV,), ()]),
        ("v_descale", [(1, HKV), ()]),
    ):
        for shape in shapes:
            scale = torch.rand(shape) + 0.5
            full = scale.repeat_interleave(HQ // HKV, -1) if name == "q_descale" and shape and shape[-1] == HKV else scale
            wanted = compute(q, k, v, **{**whole, name: full.expand(whole[name].shape).contiguous()})
            assert torch.equal(compute(q, k, v, **{**whole, name: scale}), wanted)
    assert torch.equal(compute(q, k, v, v_descale=0.5), compute(q, k, v, v_descale=torch.tensor(0.5)))
    twice = compute(q, k, v, o_scale=torch.tensor([1.0, 2.0, 4.0, 8.0]), out_dtype=torch.float32)
    once = compute(q, k, v, out_dtype=torch.float32) * torch.tensor([1.0, 2.0, 4.0, 8.0])[:, None, None]
    torch.testing.assert_close(twice, once, rtol=1e-6, atol=0)


def test_what_is_known_of_scales_is_their_form_alone() -> None:
    """Calls again with scales of the same shapes, dtypes and devices read their own values, and others are checked."""
    q, k, v = inputs(5, 7, E4)
    for shape in ((), (HKV,), (1, HKV), (B, HKV)):
        for _ in range(3):
            scale = torch.rand(shape) + 0.5
            full = scale.expand(B, HKV).clone()
            assert torch.equal(attention(q, k, v, v_descale=scale), attention(q, k, v, v_descale=full))
    ones, twos = attention(q, k, v, v_descale=1), attention(q, k, v, v_descale=2, out_dtype=torch.float32)
    assert twos.dtype == torch.float32 and torch.equal(ones, (twos / 2).bfloat16())
    for wrong in (torch.ones(HKV, 1), torch.ones(HKV).double(), torch.ones(HKV, device="meta"), True):
        for _ in range(2):
            with pytest.raises(ArgumentError, match="v_descale"):
                attention(q, k, v, v_descale=wrong)


def test_functions_see_scores_of_what_the_numbers_stand_for() -> None:
    q, k, v = inputs(9, 21, E4)
    slopes = torch.rand(HQ)
    given: dict[str, Any] = scales()

    def mod(score, b, h, q_idx, kv_idx):
        return torch.tanh(score) * slopes[h]

    o = attention(q, k, v, score_mod=mod, dropout_p=0.5, dropout_seed=(1, 2), scale=1.0, **given)
    kept = attn_mlir.dropout_mask(B, HQ, 9, 21, 0.5, (1, 2))
    wide: Any = [scaled(x, scale) for x, scale in zip((q, k, v), given.values(), strict=True)]

    def row(s: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(s * math.sqrt(D)) * slopes[:, None, None]).softmax(-1) * kept * 2

    check_as_flash_attention_3(o, dense(*wide, row=row), dense(*wide, row=row, weights=E4))


@pytest.mark.parametrize("row", [rows.relu, rows.identity, lambda s: s.exp() / s.exp().sum()])
def test_rows_whose_weights_nothing_bounds(row: Any) -> None:
    q, k, v = inputs(5, 7, E4)
    with pytest.raises(CompileError, match="rounded to f8E4M3FN, whose largest number is 448, but nothing bounds them"):
        attention(q, k, v, row=row)
    assert torch.isfinite(attention(q.bfloat16(), k, v, row=row)).all()  # as the message says


def test_what_is_refused() -> None:
    q, k, v = inputs(5, 7, E4)
    wide = q.float().requires_grad_()
    for call, kind, message in (
        (lambda: attention(q, k.float(), v.float()), ArgumentError, "k has dtype torch.float32 but q has torch.float8_e4m3fn"),
        (lambda: attention(q, k.to(E5), v.to(E5)), ArgumentError, "k has dtype torch.float8_e5m2 but q has torch.float8_e4m3fn"),
        (lambda: attention(wide, k, v.to(E5)), ArgumentError, "v has dtype torch.float8_e5m2 but k has torch.float8_e4m3fn"),
        (lambda: attention(wide, k, v), UnsupportedError, "no derivatives: call it under torch.no_grad"),
        (lambda: attention(wide.detach(), k, v, q_descale=1.0), ArgumentError, "q_descale is for q of 8 bits"),
        (lambda: attention(wide, wide, wide, k_descale=1.0), ArgumentError, "k_descale is for k and v of 8 bits"),
        (lambda: attention(q, k, v, k_descale=torch.ones(HKV).double()), ArgumentError, "use k_descale.float"),
        (lambda: attention(q, k, v, k_descale=torch.ones(HQ)), ArgumentError, r"k_descale must have shape \[\] or \[2\] or \[2, 2\]"),
        (lambda: attention(q, k, v, out_dtype=torch.int8), ArgumentError, "out_dtype is a torch.dtype of floating-point numbers"),
        (lambda: attention(q, k, v, extra_qk=[(q, k)]), UnsupportedError, "extra_qk takes no 8-bit q, k and v yet"),
        (lambda: attention(q, k, v, return_partial=True), UnsupportedError, "return_partial takes no 8-bit"),
        (lambda: attn_mlir.linear_attention(q, k, v), ArgumentError, "q has dtype torch.float8_e4m3fn: use float32"),
    ):
        with pytest.raises(kind, match=message):
            call()


def test_layouts_autocast_and_lists_of_keys() -> None:
    q, k, v = inputs(16, 64, E4)
    given: dict[str, Any] = scales()
    wanted = attention(q, k, v, **given)
    turned: Any = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    assert torch.equal(attention(turned[0], turned[1], turned[2], layout="bshd", **given).transpose(1, 2), wanted)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(q, k, v, **given), wanted)
    lists = torch.tensor([[0, 2]]).expand(B, 1, 1, 2).int().contiguous()
    o = attention(q, k, v, key_index=lists, key_block=(16, 16))
    masked = attention(q, k, v, mask_mod=lambda b, h, i, j: j // 16 % 2 == 0)
    torch.testing.assert_close(o, masked, rtol=0.05, atol=0.05)
