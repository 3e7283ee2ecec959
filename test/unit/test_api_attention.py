"""`attention(...)` on the CPU: variants written by users, as for FlexAttention, against dense float64."""

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from api_helpers import assert_near, inputs, reference
from attn_mlir import Attention, attention, masks, mods

Function = Callable[..., Any]
HEADS, SQ, SKV = 4, 37, 53
SLOPES = mods.alibi_slopes(HEADS)
DOCUMENT = torch.arange(SKV) // 11
OFFSETS = torch.tensor([0, 11, 22, 33, 44])
BIAS = torch.randn(2, HEADS, SQ, SKV, generator=torch.Generator().manual_seed(3))
PREFIX = torch.tensor([5, 20])


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + SLOPES[h] * (kv_idx - q_idx)


def alibi_with_exp2(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    scale = torch.exp2(-((h + 1) * 8.0 / HEADS))
    return score - scale * abs(q_idx - kv_idx)


def softcap(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 2.0 * torch.tanh(score / 2.0)


def bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + BIAS[b, h, q_idx, kv_idx]


def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + (q_idx - kv_idx)


def checkerboard(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    score = torch.where(torch.abs(kv_idx - q_idx) % 2 == 1, score * 0.5, score)
    return torch.where(torch.abs(kv_idx - q_idx) % 2 == 0, score * 2.0, score)


SCORE_MODS = [alibi, alibi_with_exp2, softcap, bias, relative, checkerboard]


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return causal(b, h, q_idx, kv_idx) & (q_idx - kv_idx <= 7)


def document_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    same = DOCUMENT[q_idx] == DOCUMENT[kv_idx]
    return same & causal(b, h, q_idx - OFFSETS[DOCUMENT[q_idx]], kv_idx - OFFSETS[DOCUMENT[kv_idx]])


def prefix_lm(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.logical_or(kv_idx < PREFIX[b], q_idx >= kv_idx)


def natten(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    width, kernel = 8, 3
    q_x, q_y = q_idx // width, q_idx % width
    kv_x, kv_y = kv_idx // width, kv_idx % width
    center_x = q_x.clamp(kernel // 2, 6 - kernel // 2)
    center_y = q_y.clamp(kernel // 2, (width - 1) - kernel // 2)
    return ((center_x - kv_x).abs() <= kernel // 2) & ((center_y - kv_y).abs() <= kernel // 2)


def dilated(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return ((q_idx - kv_idx) % 3 == 0) | (kv_idx < 2)


MASK_MODS = [causal, sliding_window, document_causal, prefix_lm, natten, dilated]


@pytest.mark.parametrize("score_mod", SCORE_MODS, ids=lambda f: f.__name__)
def test_score_mod(score_mod: Function) -> None:
    q, k, v = inputs()
    o, lse = attention(q, k, v, score_mod=score_mod, mask_mod=causal, return_lse=True)
    expected, expected_lse = reference(q, k, v, score_mod=score_mod, mask_mod=causal)
    assert_near(o, expected)
    assert_near(lse, expected_lse)


@pytest.mark.parametrize("mask_mod", MASK_MODS, ids=lambda f: f.__name__)
def test_mask_mod(mask_mod: Function) -> None:
    q, k, v = inputs()
    o, lse = attention(q, k, v, mask_mod=mask_mod, return_lse=True)
    expected, expected_lse = reference(q, k, v, mask_mod=mask_mod)
    assert_near(o, expected)
    assert_near(lse, expected_lse)


def shift(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx + (SKV - SQ) >= kv_idx


PREDEFINED: dict[str, tuple[Function, Function]] = {
    "causal": (masks.causal(), causal),
    "bottom right": (masks.causal(align="bottom_right"), shift),
    "window": (masks.sliding_window(7), sliding_window),
    "two-sided window": (masks.sliding_window(3, 2), lambda b, h, i, j: (i - j <= 3) & (j - i <= 2)),
    "open window": (masks.sliding_window(3, None), lambda b, h, i, j: i - j <= 3),
    "bottom-right window": (masks.sliding_window(5, align="bottom_right"), lambda b, h, i, j: (i + 16 >= j) & (i + 16 - j <= 5)),
    "document": (masks.document(DOCUMENT), lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]),
    "documents by batch": (masks.document(DOCUMENT.expand(2, -1)), lambda b, h, i, j: DOCUMENT[i] == DOCUMENT[j]),
    "prefix": (masks.prefix_lm(9), lambda b, h, i, j: (j < 9) | (i >= j)),
    "prefix by batch": (masks.prefix_lm(PREFIX), prefix_lm),
    "dilated": (masks.dilated(3), lambda b, h, i, j: (i - j) % 3 == 0),
    "and": (masks.and_(masks.causal(), masks.dilated(2)), lambda b, h, i, j: (i >= j) & ((i - j) % 2 == 0)),
    "or": (masks.or_(masks.causal(), masks.prefix_lm(4)), lambda b, h, i, j: (i >= j) | (j < 4)),
    "not": (masks.not_(masks.causal()), lambda b, h, i, j: i < j),
}


@pytest.mark.parametrize("name", PREDEFINED)
def test_predefined_mask(name: str) -> None:
    q, k, v = inputs()
    mask_mod, expected = PREDEFINED[name]
    assert_near(attention(q, k, v, mask_mod=mask_mod), reference(q, k, v, mask_mod=expected)[0])


@pytest.mark.parametrize("shape", [(2, 4, 37, 53), (1, 4, 37, 53), (2, 1, 1, 53), (1, 1, 37, 1), (4, 1, 1), (37, 53), (53,), ()])
def test_additive_bias_of_every_shape(shape: tuple[int, ...]) -> None:
    q, k, v = inputs()
    bias = torch.randn(shape, generator=torch.Generator().manual_seed(5))
    expected, _ = reference(q, k, v, score_mod=lambda s, *_: s + bias.double())
    assert_near(attention(q, k, v, score_mod=mods.additive_bias(bias)), expected)


def test_predefined_mods() -> None:
    q, k, v = inputs()
    for mod, expected in (
        (mods.alibi(SLOPES), alibi),
        (mods.alibi(SLOPES, absolute=True), lambda s, b, h, i, j: s - SLOPES[h] * abs(i - j)),
        (mods.softcap(2.0), softcap),
    ):
        assert_near(attention(q, k, v, score_mod=mod), reference(q, k, v, score_mod=expected)[0])


def test_input_mods() -> None:
    q, k, v = inputs()
    gain = torch.linspace(0.5, 1.5, 16)
    o = attention(
        q,
        k,
        v,
        query_mod=lambda x, b, h, q_idx, d: x * gain[d],
        key_mod=lambda x: x * 0.5,
        value_mod=lambda x, b, h, kv_idx, d: x + kv_idx * 0.01,
    )
    positions = torch.arange(SKV).view(1, 1, -1, 1) * 0.01
    assert_near(o, reference(q * gain, k * 0.5, v + positions)[0])


@pytest.mark.parametrize("scale", [None, 1.0, 0.3, 0, -0.25, 16**-0.5])
def test_scale(scale: float | None) -> None:
    q, k, v = inputs()
    assert_near(attention(q, k, v, scale=scale), reference(q, k, v, scale=scale)[0])


def test_scale_is_a_runtime_argument() -> None:
    q, k, v = inputs()
    first = Attention(scale=0.3).ir()
    assert first == Attention(scale=0.7).ir()
    assert "%scale: f32" in first
    for scale in (0.3, 0.7):
        assert_near(attention(q, k, v, scale=scale), reference(q, k, v, scale=scale)[0])


def test_layouts_and_strides() -> None:
    q, k, v = inputs()
    expected, expected_lse = reference(q, k, v, mask_mod=causal)
    qt, kt, vt = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    o, lse = attention(qt, kt, vt, mask_mod=causal, layout="bshd", return_lse=True)
    assert_near(o, expected.transpose(1, 2))
    assert_near(lse, expected_lse)
    assert o.is_contiguous()
    assert_near(attention(qt.transpose(1, 2), kt.transpose(1, 2), vt.transpose(1, 2), mask_mod=causal), expected)
    repeated = k[:, :1].expand(-1, 2, -1, -1)
    assert_near(attention(q, repeated, v, mask_mod=causal), reference(q, repeated, v, mask_mod=causal)[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(dtype: torch.dtype) -> None:
    q, k, v = inputs(dtype=dtype)
    o = attention(q, k, v, mask_mod=causal)
    expected, _ = reference(q, k, v, mask_mod=causal)
    assert o.dtype == dtype
    assert_near(o, expected, 2 * torch.finfo(dtype).eps)


def test_captured_values_are_read_at_every_call() -> None:
    q, k, v = inputs()
    slopes = torch.ones(HEADS)
    for window in (3, 9):
        mask_mod = lambda b, h, q_idx, kv_idx, window=window: abs(q_idx - kv_idx) <= window  # noqa: E731
        score_mod = lambda score, b, h, q_idx, kv_idx, slopes=slopes: score + slopes[h] * kv_idx  # noqa: E731
        assert_near(
            attention(q, k, v, score_mod=score_mod, mask_mod=mask_mod), reference(q, k, v, score_mod=score_mod, mask_mod=mask_mod)[0]
        )
        slopes = slopes * 0.1


def test_rows_without_keys() -> None:
    q, k, v = inputs()
    mask_mod = lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx + 5) & (h != 2)  # noqa: E731
    o, lse = attention(q, k, v, mask_mod=mask_mod, return_lse=True)
    expected, expected_lse = reference(q, k, v, mask_mod=mask_mod)
    assert_near(o, expected)
    assert torch.equal(lse == -math.inf, expected_lse == -math.inf)
    assert not o[:, 2].any()


def test_a_mask_that_is_true_everywhere_or_nowhere() -> None:
    q, k, v = inputs()
    always = Attention(mask_mod=lambda b, h, q_idx, kv_idx: True)
    assert "attn.mask" not in always.ir()
    assert_near(always(q, k, v), reference(q, k, v)[0])
    o, lse = attention(q, k, v, mask_mod=lambda b, h, q_idx, kv_idx: False, return_lse=True)
    assert not o.any()
    assert (lse == -math.inf).all()


@pytest.mark.parametrize("empty", ["b", "sq", "skv", "h"])
def test_empty(empty: str) -> None:
    b, h, sq, skv = (0 if name == empty else size for name, size in (("b", 2), ("h", 4), ("sq", 5), ("skv", 7)))
    q, k, v = inputs(b, h, min(h, 2), sq, skv)
    for layout in ("bhsd", "bshd"):
        tensors = [q, k, v] if layout == "bhsd" else [x.transpose(1, 2).contiguous() for x in (q, k, v)]
        q_, k_, v_ = tensors
        o, lse, states = attention(q_, k_, v_, layout=layout, return_lse=True, return_states=True, row=lambda s: (s, {"total": s.sum()}))
        o = o if layout == "bhsd" else o.transpose(1, 2)
        assert o.shape == (*q.shape[:3], 24)
        assert not o.any()
        assert lse.shape == q.shape[:3]
        assert (lse == -math.inf).all()
        assert not states["total"].any()


def test_attention_object() -> None:
    q, k, v = inputs()
    compiled = Attention(score_mod=alibi, mask_mod=causal, return_lse=True)
    o, lse = compiled(q, k, v)
    expected = attention(q, k, v, score_mod=alibi, mask_mod=causal, return_lse=True)
    assert torch.equal(o, expected[0])
    assert torch.equal(lse, expected[1])
    assert "tensor<?x?x?x16xf32>" in compiled.ir()
    assert "tile." in compiled.ir("attn-tile")


def test_sizes_inside_functions() -> None:
    def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + q_idx / attn_mlir.q_len() - kv_idx / attn_mlir.kv_len() * (h + 1) / attn_mlir.num_heads()

    q, k, v = inputs()
    expected = lambda s, b, h, i, j: s + i / SQ - j / SKV * (h + 1) / HEADS  # noqa: E731
    assert_near(attention(q, k, v, score_mod=score_mod), reference(q, k, v, score_mod=expected)[0])


def test_explain_says_how_the_row_is_computed() -> None:
    text = Attention().explain()
    assert "attn.attention" in text
    assert "sum" in text and "max" in text


def test_threads() -> None:
    """Tracing, compiling and running at the same time in several threads, with other functions and other captured values."""
    q, k, v = inputs()
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for width in range(number, number + 3):
                mask_mod = lambda b, h, i, j, width=width: abs(i - j) <= width  # noqa: E731
                if number % 2:
                    o, expected = attention(q, k, v, mask_mod=mask_mod), reference(q, k, v, mask_mod=mask_mod)[0]
                else:
                    o = attention(q, k, v, mask_mod=mask_mod, score_mod=alibi)
                    expected = reference(q, k, v, mask_mod=mask_mod, score_mod=alibi)[0]
                assert_near(o, expected)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
