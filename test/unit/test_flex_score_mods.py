"""The score functions of PyTorch's own tests of FlexAttention, with the gradients of all that they capture, against dense float64.

`flex_suite.py` tells which of those tests each one here stands for.
"""

from typing import Any

import pytest
import torch

from attn_mlir import flex as flex_module
from attn_mlir.flex import AuxRequest, create_block_mask
from flex_dense import compare, compare_all, dense, per_head, qkv, tensors

S = 37
flex_attention: Any = flex_module.flex_attention


def causal(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return torch.where(m >= n, score, float("-inf"))


def inverse_causal(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return torch.where(m <= n, score, float("-inf"))


def rel_bias(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score + (m - n)


def rel_causal(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return causal(rel_bias(score, b, h, m, n), b, h, m, n)


def alibi(score: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return score + (n - m) * torch.exp2(-((h + 1) * 8.0 / 8))


BUILTIN = per_head(
    lambda score, *_: score, lambda score, *_: score * 2, lambda score, *_: score * score, causal, inverse_causal, rel_bias, rel_causal,
    alibi,
)  # fmt: skip


def flex(**given: Any) -> Any:
    return lambda q, k, v: flex_attention(q, k, v, **given)


def test_builtin_score_mods() -> None:
    compare_all(flex(score_mod=BUILTIN), *qkv(h=8), score_mod=BUILTIN)


@pytest.mark.parametrize(("sq", "skv", "hkv", "bkv"), [(18, 37, 8, 2), (64, 64, 2, 2), (9, 37, 4, 1), (1, 130, 8, 2), (1, 61, 1, 1)])
def test_builtin_score_mods_other_sizes(sq: int, skv: int, hkv: int, bkv: int) -> None:
    """Other lengths, fewer heads or one batch of keys, and single queries. Score functions of fully masked rows give 0."""
    q, k, v = qkv(b=2, h=8, hkv=hkv, sq=sq, skv=skv, bkv=bkv)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: kv_idx < 200, 2, 1, sq, skv) if bkv == 1 else None
    o, aux = flex_attention(q, k, v, BUILTIN, mask, enable_gqa=hkv < 8, return_aux=AuxRequest(lse=True, max_scores=True))
    wanted, lse, greatest = dense(q, k, v, BUILTIN)
    compare(o, wanted, 5e-5)
    compare(aux.lse, lse, 5e-5)
    compare(aux.max_scores, greatest, 5e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_builtin_score_mods_dtypes(dtype: torch.dtype) -> None:
    q, k, v = qkv(h=8, dtype=dtype)
    o = flex_attention(q, k, v, BUILTIN)
    assert o.dtype == dtype
    compare(o, dense(q, k, v, BUILTIN)[0], {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(dtype, 1e-12))


def test_captured_tables() -> None:
    """Every way to index in PyTorch's tests, in one function: the gradient of each table is that of all the places where it is read."""
    b, h = 2, 4
    shapes = (
        (S, S), (b, S, S), (b, h, S, S), (2 * S,), (b, S), (4, b, h, S), (b, h, 4, S), (S,), (S,), (17,), (S,), (S,), (S, S), (h,), (b,),
    )  # fmt: skip
    made = [0.3 * x for x in tensors(*shapes)]
    seq, batch, head, rel, twice, weird1, weird2, indirect, symmetric, window, some, tokens, flipped, heads, batches = made
    offset, which = torch.randint(0, S, (S,)), torch.tensor(0)

    def every(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        score = score + seq[q, kv] + batch[b, q, kv] + head[b, h, q, kv] + rel[(q - kv) + S] + rel[torch.abs(q - kv)]
        score = score + twice[b][q] + weird1[0][b, h][q] + weird2[b][h][which, q] + weird2[b, h, which, q] + seq[q][kv]
        score = score + indirect[offset[q]] + symmetric[q] + symmetric[kv] + window[torch.clamp(q - kv + 8, 0, 16)]
        return (score + tokens[kv] + flipped[kv, q] + batches[b]) * some[q] * torch.sigmoid(heads[h])

    compare_all(flex(score_mod=every), *qkv(), captured=made, score_mod=every)


def test_captured_tables_of_16_bits_and_integers() -> None:
    half, scale, boolean = torch.randn(S).bfloat16(), torch.ones((), dtype=torch.int32), torch.arange(S) >= S // 2
    mass = torch.full((1,), 2.0, dtype=torch.float16)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        score = score + half[q] - half[kv] + scale + torch.log(mass[0])
        return torch.where(boolean[q] == boolean[kv], score, float("-inf"))

    q, k, v = qkv()
    compare(flex_attention(q, k, v, mod), dense(q, k, v, mod)[0])


def test_only_the_bias_needs_a_gradient() -> None:
    bias = torch.randn(2 * S, requires_grad=True)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + bias[torch.abs(q - kv)]

    q, k, v = qkv()
    o, wanted = flex_attention(q, k, v, mod), dense(q, k, v, mod)[0]
    upstream = torch.randn_like(o)
    (mine,), (theirs,) = (torch.autograd.grad(x, (bias,), g) for x, g in ((o, upstream), (wanted, upstream.double())))
    compare(mine, theirs, 5e-5)


def test_masks_in_scores() -> None:
    """Masks that are written into the score: documents, odd keys, compositions, windows, neighbourhoods, jagged sequences."""
    document = torch.arange(S) // 16
    bidirectional = torch.tensor([5, 11], dtype=torch.int32)
    offsets, sequence = torch.tensor([0, 7, 30, S], dtype=torch.int32), torch.zeros(S, dtype=torch.int32)
    sequence[7:30], sequence[30:] = 1, 2
    seq_len = torch.arange(2, dtype=torch.int32) + 1

    def documents(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where((q >= kv) & (document[q] == document[kv]), score, -float("inf"))

    def even(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(kv % 2 == 0, score, float("-inf"))

    def composed(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return inverse_causal(rel_bias(score, b, h, q, kv), b, h, q, kv)

    def video(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        seen = (q <= bidirectional[b]) & (kv <= bidirectional[b])
        return torch.where(seen | (q >= kv), score, -float("inf"))

    def neighbours(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        near = ((q / 6 - kv / 6).abs() <= 3) | ((q % 6 - kv % 6).abs() <= 3)
        return torch.where(near, score, float("-inf"))

    def jagged(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return causal(score, b, h, q - offsets[sequence[q]], kv - offsets[sequence[kv]])

    def padded(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(score <= seq_len[b] - 2, causal(score, b, h, q, kv), -float("inf"))  # some rows keep nothing

    def windowed(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(q + 10 >= kv, score, float("-inf"))

    mod = per_head(documents, even, composed, video, neighbours, jagged, padded, windowed)
    q, k, v = qkv(h=8)
    assert (dense(q, k, v, mod)[1] == -torch.inf).any()
    compare_all(flex(score_mod=mod), q, k, v, score_mod=mod)


def test_functions_of_the_score() -> None:
    def trig(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.sin(torch.cos(score)) + torch.tan(b)

    def trig2(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.cos(score) * torch.sin(score) + torch.tan(b)

    def logarithm(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(score > 0, torch.log(score), score)

    mod = per_head(lambda score, *_: torch.nn.functional.silu(score), trig, trig2, logarithm)
    compare_all(flex(score_mod=mod), *qkv(d=24), tolerance=2e-4, score_mod=mod)


def test_poisoned_tables_and_scores() -> None:
    """What a mask leaves out is not read into results: NaN in a table behind the mask, and 1 / score."""
    table = torch.randn(S, S)
    table = torch.where(torch.ones(S, S).tril().bool(), table, torch.nan).requires_grad_()
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx, None, None, S, S)

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return torch.where(h == 0, score + table[q, kv], 1 / score)

    q, k, v = qkv(h=2, requires_grad=True)
    o = flex_attention(q, k, v, mod, mask)
    grads = torch.autograd.grad(o.sum(), (q, k, v, table))
    for x in (o, *grads):
        assert x.isfinite().all()
    compare(o, dense(*(x.detach() for x in (q, k, v)), mod, lambda b, h, m, n: m >= n)[0], 2e-4)


def test_a_changed_branch_and_a_changed_scale() -> None:
    """The branch that a captured value chooses is followed at every call; a captured tensor is read each time."""
    scale = torch.ones((), dtype=torch.int32)
    add = True

    def mod(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
        return score + scale if add else score * scale

    q, k, v = qkv()
    compare(flex_attention(q, k, v, mod), dense(q, k, v, mod)[0])
    add, scale = False, scale.fill_(3)
    compare(flex_attention(q, k, v, mod), dense(q, k, v, mod)[0])


@pytest.mark.parametrize("dims", [(17, 17), (94, 94), (121, 121), (16, 32), (32, 16), (4, 4)])
def test_head_dims(dims: tuple[int, int]) -> None:
    """Odd ones, those of v that differ, and small ones, which torch's compiled kernels refuse."""
    q, k, v = qkv(d=dims[0], dv=dims[1], b=1, h=2)
    compare(flex_attention(q, k, v, rel_bias), dense(q, k, v, rel_bias)[0])
