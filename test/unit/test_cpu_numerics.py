"""Kernels on the CPU against float64 formulas: head dimensions, types, lengths, layouts, and every elementary function."""

import math

import pytest
import torch

import attn_mlir
from attn_mlir import masks, rows

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def reference(q, k, v, mask=None, scale=None):
    """Softmax attention in float64; fully masked rows give 0 and lse -inf."""
    q, k, v = q.double(), k.double(), v.double()
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse[..., None]).exp().nan_to_num(0.0)
    return weights @ v, lse


def error(got, expected):
    """Largest error, relative to the size of what is expected."""
    assert got.shape == expected.shape
    finite = expected.isfinite()
    assert torch.equal(got.double()[~finite], expected[~finite])
    if not finite.any():
        return 0.0
    return ((got.double() - expected)[finite].abs().max() / expected[finite].abs().max().clamp(min=1e-3)).item()


def tensors(b, hq, hkv, sq, skv, d, dv, dtype):
    return torch.randn(b, hq, sq, d).to(dtype), torch.randn(b, hkv, skv, d).to(dtype), torch.randn(b, hkv, skv, dv).to(dtype)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("d", "dv"), [(1, 1), (3, 5), (64, 64), (80, 96), (127, 33), (192, 128), (512, 512)])
def test_head_dimensions_and_types(d, dv, dtype):
    torch.manual_seed(d)
    attention = attn_mlir.Attention(mask_mod=masks.causal(), return_lse=True)
    for shape in ((1, 1, 1, 1, 1), (2, 4, 2, 17, 127), (1, 6, 1, 127, 65)):
        q, k, v = tensors(*shape, d, dv, dtype)
        o, lse = attention(q, k, v)
        mask = torch.arange(shape[3])[:, None] >= torch.arange(shape[4])
        expected, expected_lse = reference(q, k, v, mask)
        assert o.dtype == dtype
        assert error(o, expected) < TOLERANCE[dtype]
        assert error(lse, expected_lse) < min(TOLERANCE[dtype], 2e-6)


@pytest.mark.parametrize("length", [1, 17, 31, 32, 33, 127, 1000])
def test_lengths(length):
    torch.manual_seed(length)
    for kv_length in (1, 64, 65, 1000):
        q, k, v = tensors(1, 2, 1, length, kv_length, 16, 16, torch.float32)
        assert error(attn_mlir.attention(q, k, v), reference(q, k, v)[0]) < 2e-6


def test_length_does_not_recompile():
    from attn_mlir.backends.cpu.driver import compile_count

    attention = attn_mlir.Attention(mask_mod=masks.sliding_window(9))
    for queries in (5, 1):  # compiles a kernel for few queries, one for a single one, and one for more
        attention(*tensors(1, 2, 2, queries, 5, 24, 24, torch.float32))
    before = compile_count()
    for shape in ((3, 4, 4, 33, 70), (1, 1, 1, 200, 1), (2, 3, 3, 64, 64), (1, 5, 5, 1, 9)):
        attention(*tensors(*shape, 24, 24, torch.float32))
    assert compile_count() == before
    # The first grouped heads may add the kernel for single queries, whatever the length; nothing after that.
    attention(*tensors(1, 4, 2, 7, 7, 24, 24, torch.float32))
    before = compile_count()
    for shape in ((3, 4, 2, 33, 70), (1, 8, 1, 1, 300), (2, 6, 3, 64, 64)):
        attention(*tensors(*shape, 24, 24, torch.float32))
    assert compile_count() == before


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("heads", [(6, 2), (8, 1), (40, 1), (4, 4)])
def test_one_query_of_grouped_heads(heads, layout):
    """Decoding: the heads of a group are the rows of one block; what depends on the head must still see the right one."""
    torch.manual_seed(7)
    slopes, visible = torch.rand(heads[0]), torch.randint(30, 90, (2, heads[0]))
    attention = attn_mlir.Attention(
        score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx) * 0.1,
        mask_mod=lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx + attn_mlir.kv_len() - attn_mlir.q_len()) & (kv_idx < visible[b, h]),
        query_mod=lambda x, b, h, q_idx, d: x * (1 + h) + q_idx,
        return_lse=True,
        layout=layout,
    )
    q, k, v = tensors(2, heads[0], heads[1], 1, 77, 16, 24, torch.float32)
    inputs = [t.transpose(1, 2).contiguous() for t in (q, k, v)] if layout == "bshd" else (q, k, v)
    o, lse = attention(*inputs)
    position = torch.arange(77)
    bias = slopes[:, None, None] * position * 0.1
    scale = 1 + torch.arange(heads[0])[:, None, None]
    group = heads[0] // heads[1]
    scores = (q * scale).double() @ k.double().repeat_interleave(group, 1).transpose(-1, -2) / 4 + bias
    scores = scores.masked_fill(position >= visible[..., None, None], -math.inf)
    assert error(o.transpose(1, 2) if layout == "bshd" else o, scores.softmax(-1) @ v.double().repeat_interleave(group, 1)) < 5e-6
    assert error(lse, scores.logsumexp(-1)) < 5e-6


def test_rows_without_keys():
    q, k, v = tensors(2, 2, 1, 40, 23, 16, 16, torch.float32)
    o, lse = attn_mlir.attention(q, k, v, mask_mod=masks.causal(align="bottom_right"), return_lse=True)
    mask = torch.arange(40)[:, None] + 23 - 40 >= torch.arange(23)
    expected, expected_lse = reference(q, k, v, mask)
    assert (o[:, :, :17] == 0).all()
    assert (lse[:, :, :17] == -math.inf).all()
    assert error(o, expected) < 2e-6
    assert error(lse, expected_lse) < 2e-6


def test_empty_tensors():
    for b, sq, skv in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        q, k, v = tensors(b, 2, 2, sq, skv, 8, 8, torch.float32)
        o, lse = attn_mlir.attention(q, k, v, return_lse=True)
        assert o.shape == (b, 2, sq, 8)
        assert (o == 0).all()
        assert (lse == -math.inf).all()


def test_skipped_blocks_are_never_read():
    """Keys that no query row of a block can see may hold anything."""
    torch.manual_seed(0)
    q, k, v = tensors(1, 2, 2, 300, 300, 32, 32, torch.float32)
    window = masks.sliding_window(40)
    o = attn_mlir.attention(q, k, v, mask_mod=window)
    # Rows 200.. see keys from 160 on; their block of query rows starts at 192 and sees 152 at the least.
    for poison in (math.nan, math.inf):
        k2, v2 = k.clone(), v.clone()
        k2[:, :, :152], v2[:, :, :152] = poison, poison
        assert torch.equal(attn_mlir.attention(q, k2, v2, mask_mod=window)[:, :, 200:], o[:, :, 200:])


def test_masked_keys_inside_a_block():
    """Masked keys with NaN scores do not matter, as long as v is finite there: their weight is exactly 0."""
    torch.manual_seed(1)
    q, k, v = tensors(1, 1, 1, 20, 20, 16, 16, torch.float32)
    o = attn_mlir.attention(q, k, v, mask_mod=masks.causal())
    k2 = k.clone()
    k2[:, :, 10:] = math.nan
    assert torch.equal(attn_mlir.attention(q, k2, v, mask_mod=masks.causal())[:, :, :10], o[:, :, :10])


def test_nan_and_infinity_are_not_hidden():
    q, k, v = tensors(1, 1, 1, 8, 8, 16, 16, torch.float32)
    q[0, 0, 3, 2] = math.nan
    o = attn_mlir.attention(q, k, v)
    assert o[0, 0, 3].isnan().all()
    assert not o[0, 0, :3].isnan().any()
    assert not o[0, 0, 4:].isnan().any()
    v[0, 0, 5, 1] = math.inf
    assert attn_mlir.attention(q, k, v)[0, 0, 0, 1] == math.inf


@pytest.mark.parametrize("size", [1e-30, 1e4, 1e18])
def test_extreme_scores(size):
    torch.manual_seed(2)
    q, k, v = tensors(1, 2, 2, 33, 70, 16, 16, torch.float32)
    assert error(attn_mlir.attention(q * size, k, v), reference(q * size, k, v)[0]) < (1e-5 if size < 1e3 else 1e-2)


def test_strides():
    torch.manual_seed(3)
    base = torch.randn(2, 37, 3, 4, 16)
    q, k, v = (base[:, :, i].transpose(1, 2) for i in range(3))
    expected = reference(q, k, v)[0]
    assert error(attn_mlir.attention(q, k, v), expected) < 2e-6
    # Columns that are not contiguous, a broadcast batch, and rows in reverse order of memory.
    assert error(attn_mlir.attention(q.transpose(2, 3).contiguous().transpose(2, 3), k, v), expected) < 2e-6
    shared_k, shared_v = k[:1].expand(2, -1, -1, -1), v[:1].expand(2, -1, -1, -1)
    assert error(attn_mlir.attention(q, shared_k, shared_v), reference(q, shared_k, shared_v)[0]) < 2e-6


def test_layout_bshd():
    torch.manual_seed(4)
    q, k, v = torch.randn(3, 2, 37, 4, 16)
    o = attn_mlir.attention(q, k, v, layout="bshd")
    expected, _ = reference(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
    assert o.shape == q.shape
    assert o.is_contiguous()
    assert error(o, expected.transpose(1, 2)) < 2e-6


def test_runs_are_bitwise_equal():
    torch.manual_seed(5)
    q, k, v = tensors(2, 4, 2, 200, 300, 64, 64, torch.bfloat16)
    first = attn_mlir.attention(q, k, v, mask_mod=masks.causal())
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(attn_mlir.attention(q, k, v, mask_mod=masks.causal()), first)
    finally:
        torch.set_num_threads(threads)


FUNCTIONS = {
    "exp": (lambda x: x.exp(), torch.exp, (-110, 88.5)),
    "exp2": (lambda x: x.exp2(), torch.exp2, (-150, 127.9)),
    "log": (lambda x: x.log(), torch.log, (1e-3, 100)),
    "log2": (lambda x: x.log2(), torch.log2, (1e-3, 100)),
    "tanh": (lambda x: x.tanh(), torch.tanh, (-12, 12)),
    "sigmoid": (lambda x: x.sigmoid(), torch.sigmoid, (-80, 80)),
    "erf": (lambda x: x.erf(), torch.erf, (-6, 6)),
    "sqrt": (lambda x: x.sqrt(), torch.sqrt, (0, 100)),
    "rsqrt": (lambda x: x.rsqrt(), torch.rsqrt, (1e-3, 100)),
    "sin": (lambda x: x.sin(), torch.sin, (-30, 30)),
    "cos": (lambda x: x.cos(), torch.cos, (-30, 30)),
    "abs": (lambda x: abs(x), torch.abs, (-5, 5)),
    "pow": (lambda x: x**1.7, lambda x: x**1.7, (0, 10)),
    "reciprocal": (lambda x: 1 / x, torch.reciprocal, (0.1, 10)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementary_functions(name):
    """f(x) for many x at once: one key, v = 1, and the row that leaves scores as they are."""
    traced, expected, (low, high) = FUNCTIONS[name]
    x = torch.linspace(low, high, 4001)
    q, one = x.reshape(1, 1, -1, 1), torch.ones(1, 1, 1, 1)
    got = attn_mlir.attention(q, one, one, row=rows.identity, score_mod=lambda s, b, h, i, j: traced(s), scale=1.0).reshape(-1)
    wanted = expected(x.double())
    ulp = 1.2e-7 * wanted.abs().clamp(min=1e-30 if name.startswith("exp") else 1e-3)
    assert ((got.double() - wanted).abs() <= 4 * ulp + 1.5e-45).all()


def test_elementary_functions_in_float64():
    x = torch.linspace(0.1, 5.0, 33, dtype=torch.float64)
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    for traced, expected, _ in FUNCTIONS.values():
        score = lambda s, b, h, i, j, traced=traced: traced(s)  # noqa: E731
        got = attn_mlir.attention(x.reshape(1, 1, -1, 1), one, one, row=rows.identity, score_mod=score, scale=1.0)
        torch.testing.assert_close(got.reshape(-1), expected(x), rtol=1e-14, atol=1e-14)


def test_exp_in_float64_everywhere():
    x = torch.cat([torch.linspace(-745, 709.7, 4001), torch.tensor([0.0, math.inf, -math.inf, math.nan, 710.0, -746.0, 1e-300])]).double()
    one = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    got = attn_mlir.attention(x.reshape(1, 1, -1, 1), one, one, row=rows.identity, score_mod=lambda s, b, h, i, j: s.exp(), scale=1.0)
    torch.testing.assert_close(got.reshape(-1), x.exp(), rtol=5e-16, atol=1e-323, equal_nan=True)


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2", "tanh", "erf", "sigmoid"])
def test_elementary_functions_at_special_values(name):
    traced, expected, _ = FUNCTIONS[name]
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 1e-42, 3e38, -3e38])
    q, one = x.reshape(1, 1, -1, 1), torch.ones(1, 1, 1, 1)
    got = attn_mlir.attention(q, one, one, row=rows.identity, score_mod=lambda s, b, h, i, j: traced(s), scale=1.0).reshape(-1)
    torch.testing.assert_close(got, expected(x.double()).float(), rtol=4e-7, atol=1e-37, equal_nan=True)
