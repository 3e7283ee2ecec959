"""Mistakes that other libraries' habits lead to, and what is said to them; and what is no mistake."""

import math
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import AttentionEngine, OnlineSoftmax
from attn_mlir.errors import ArgumentError, AttnError, TraceError

F = torch.nn.functional
LIST = [1.0]


def qkv() -> Any:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(3, 1, 2, 8, 16, generator=generator)


Q, K, V = qkv()


def message(**functions: Any) -> str:
    with pytest.raises(AttnError) as caught:
        attn_mlir.attention(Q, K, V, **functions)
    return str(caught.value)


def unbound(s: Any) -> Any:
    if math.pi < 3:
        rest = s
    return s + rest  # type: ignore[possibly-undefined]


def other_name(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, doosum: Any = 1.0) -> Any:
    return score - doosum_rowscales  # type: ignore[name-defined]  # noqa: F821


ROWS: dict[str, tuple[Any, str]] = {
    "length": (lambda s: s / len(s), "attn_mlir.kv_len() give the lengths"),
    "index": (lambda s: s / s[0], "indexes `s`, which is a whole row of keys"),
    "loop": (lambda s: sum(x for x in s), "iterates over `s`, which is a whole row of keys"),
    "topk": (lambda s: torch.topk(s, 2)[0], "the largest values come of repeated maxima"),
    "sort": (lambda s: s.sort(), "keys come block by block"),
    "flip": (lambda s: torch.flip(s, (-1,)), "keys come block by block"),
    "product": (lambda s: torch.matmul(s, s), "compute products of tensors before the call"),
    "shape": (lambda s: s.reshape(-1), "a traced value has no dimensions to change"),
    "misspelt": (lambda s: s.stdd(), "docs/vocabulary.md lists what there is; did you mean std?"),
    "far from all": (lambda s: torch.special.airy_ai(s), "lists what there is; or compose it of arithmetic"),
    "in place": (lambda s: F.softplus(s.atan_()), ".atan_() changes a value in place"),
    "name": (lambda s: s / missing, "name 'missing' is not defined"),  # type: ignore[name-defined]  # noqa: F821
    "name's help": (lambda s: s / missing, "help: define it before the call"),  # type: ignore[name-defined]  # noqa: F821
    "unbound": (unbound, "assign it on every way through the function"),
    "list": (lambda s: s * LIST[3], "the index is beyond the end of a Python list or tuple"),
    "key": (lambda s: s * {}["x"], "look keys up that the dictionary has"),
    "zero": (lambda s: s * (1 / 0), "a number that the function computes with is 0"),
    "six parameters": (
        lambda s, b, h, q_idx, kv_idx, d: s,
        "takes (s, b, h, q_idx, kv_idx, d), but is called with (s) or (s, b, h, q_idx) or",
    ),
    "score function": (lambda score, b, h, i, j: score, "this looks like a score_mod: pass score_mod=f"),
    "norm": (lambda s: s.norm(p="nuc"), "a norm of order 'nuc'"),
}


@pytest.mark.parametrize("name", ROWS)
def test_row(name: str) -> None:
    function, text = ROWS[name]
    found = message(row=function)
    assert text in found
    assert "must work for any of them" not in found and "mean or " not in found


SCORES: dict[str, tuple[Any, str]] = {
    "shape": (lambda s, b, h, i, j: s / s.shape[-1], "a traced value is one number and has no sizes; attn_mlir.q_len()"),
    "size": (lambda s, b, h, i, j: s / s.size(-1), ".size(-1) of `s`, which is one number"),
    "mask": (lambda b, h, i, j: i >= j, "this looks like a mask_mod: pass mask_mod=f"),
    "row": (lambda s: s, "for a function of a whole row pass row=f"),
    "parameter": (other_name, "or did you mean `doosum`?"),
}


@pytest.mark.parametrize("name", SCORES)
def test_score(name: str) -> None:
    assert SCORES[name][1] in message(score_mod=SCORES[name][0])


def test_a_mask_with_a_score() -> None:
    assert "pass score_mod=f; a mask_mod has no score" in message(mask_mod=lambda s, b, h, i, j: i >= j)


@pytest.mark.parametrize(("layout", "other"), [("bhsd", "bshd"), ("bshd", "bhsd")])
def test_the_other_layout_is_suggested_where_it_fits(layout: str, other: str) -> None:
    q, k = torch.randn(1, 97, 4, 16), torch.randn(1, 130, 4, 16)
    if layout == "bshd":
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    with pytest.raises(ArgumentError, match=f'did you mean layout="{other}"'):
        attn_mlir.attention(q, k, k, layout=layout)
    with pytest.raises(ArgumentError, match=r"heads of k and v$"):
        attn_mlir.attention(torch.randn(1, 3, 5, 16), torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("is_causal", "masks.causal()"), ("attn_mask", "mask_mod=lambda"), ("dropout", "pass dropout_p="), ("foo", "'foo'$")],
)
def test_arguments_of_other_libraries(name: str, hint: str) -> None:
    options: dict[str, Any] = {name: True}
    for function in (lambda **given: attn_mlir.attention(Q, K, V, **given), attn_mlir.Attention):
        with pytest.raises(TypeError, match=f"unexpected keyword argument.*{hint}"):
            function(**options)


def test_a_captured_tensor_that_is_too_small_is_shown() -> None:
    table = {"slopes": torch.zeros(1)}

    def mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * table["slopes"][h]  # here

    found = message(score_mod=mod)
    assert "the captured tensor `slopes` has size 1" in found and "# here" in found
    again = message(score_mod=lambda score, b, h, q_idx, kv_idx: score * table["slopes"][h])  # there
    assert "# here" not in again, "two functions of one program: then no line rather than a wrong one"


def test_indices_modulo_a_size_are_within_bounds() -> None:
    w, ids, pattern = torch.randn(3), torch.tensor([-5, 9, 0, 4, 2, 7, -1, 3]), torch.randn(2, 3)
    i, j = torch.arange(8)[:, None], torch.arange(8)
    for mod in (
        lambda s, i, j: s + w[(i + j) % w.shape[0]],
        lambda s, i, j: s + w[(i - 2 * j) % len(w)] + w[torch.remainder(ids[j], w.size(0))],
        lambda s, i, j: s + pattern[(i - j) % pattern.shape[0], torch.fmod(i + j, pattern.shape[1])],
    ):
        expected = torch.softmax(mod(Q @ K.mT / 4, i, j), -1) @ V
        made = attn_mlir.attention(Q, K, V, score_mod=lambda s, b, h, i, j, f=mod: f(s, i, j))
        torch.testing.assert_close(made, expected, rtol=1e-5, atol=1e-5)
    wrong = message(score_mod=lambda s, b, h, i, j: s + w[(i + j) % (w.shape[0] + 1)])
    assert "read at (q_idx + kv_idx) % (w.shape[0] + 1), which runs over 0..3" in wrong


class Mistaken(OnlineSoftmax):
    """The documented example of a softmax: `backward` uses another name than that of its parameter."""

    @staticmethod
    def backward(dp: Any, scores: Any, final_rowscales: Any, doosum: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # type: ignore[override]
        return (dp - doosum_rowscales) * scores  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize("rows", [False, True])
def test_a_mistake_in_a_custom_vjp_is_told_by_backward(rows: bool) -> None:
    meta = tuple(attn_mlir.meta_tensor(1, 2, "S", 16, dtype=torch.float32) for _ in range(3))
    given = [x.transpose(1, 2).contiguous().requires_grad_() for x in qkv()]
    mod = AttentionEngine(meta, online_func=Mistaken())
    made = mod(*given, return_rowscales=rows)
    o = made[0] if rows else made
    assert o.requires_grad
    torch.testing.assert_close(o, AttentionEngine(meta, online_func=OnlineSoftmax())(*given))
    with pytest.raises(TraceError, match=r"name 'doosum_rowscales' is not defined(.|\n)*did you mean `doosum`\?"):
        (made[1]["lse"] if rows else o).sum().backward()
