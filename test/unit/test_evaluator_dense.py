"""The reference evaluator against dense formulas in PyTorch that share nothing with it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from attn_mlir.reference.promote import promoted
from programs import run, text_of

B, H, HKV, SQ, SKV, D = 2, 4, 2, 17, 23, 64
Tensor = torch.Tensor
Grid = tuple[Tensor, Tensor, Tensor, Tensor]


def grid() -> Grid:
    sizes = (B, H, SQ, SKV)
    return tuple(torch.arange(n).view([-1 if i == axis else 1 for i in range(4)]) for axis, n in enumerate(sizes))  # type: ignore[return-value]


def softmax(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    hidden = s.masked_fill(~m, -torch.inf)
    return torch.softmax(hidden, -1).nan_to_num(0.0), torch.logsumexp(hidden, -1)


def sigmoid(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return (torch.sigmoid(s),)


def relu_normalised(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    r = torch.relu(s) * m
    return r / (r.sum(-1, keepdim=True) + 1e-6), r.sum(-1)


def retention(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return (s / (s * m).abs().sum(-1, keepdim=True).clamp(min=1.0),)


def sink(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    extra = c["sink"][None, :H, None, None].expand(B, H, SQ, 1)
    hidden = torch.cat([s.masked_fill(~m, -torch.inf), extra], -1)
    return torch.softmax(hidden, -1)[..., :-1], torch.logsumexp(hidden, -1)


def layer_norm(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    n = m.sum(-1, keepdim=True)
    mean = (s * m).sum(-1, keepdim=True) / n
    variance = ((s - mean) ** 2 * m).sum(-1, keepdim=True) / n
    return (s - mean) / torch.sqrt(variance + 1e-5) / n, mean[..., 0]


def std_temperature(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    std = torch.sqrt(s.var(-1, keepdim=True, correction=0) + 1.0)
    return torch.softmax(s / std, -1), std[..., 0]


def entropy(s: Tensor, m: Tensor, c: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    p, lse = softmax(s, m, c)
    return p, lse, torch.special.entr(p).sum(-1)


Score = Callable[[Tensor, Grid, Mapping[str, Tensor]], Tensor]
Mask = Callable[[Grid, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class Case:
    """What a program in test/Inputs should compute; its captures are drawn in the order of its arguments."""

    row: Callable[..., tuple[Tensor, ...]] = softmax
    score: Score = lambda s, g, c: s
    mask: Mask = lambda g, c: torch.ones(1, 1, 1, 1, dtype=torch.bool)
    captures: Mapping[str, Callable[[np.random.Generator], object]] = field(default_factory=dict)


def causal(g: Grid, c: Mapping[str, Tensor]) -> Tensor:
    return g[2] >= g[3]


def normal(*shape: int) -> Callable[[np.random.Generator], object]:
    return lambda rng: rng.standard_normal(shape)


def documents(*shape: int) -> Callable[[np.random.Generator], object]:
    return lambda rng: np.sort(rng.integers(0, 4, shape), axis=-1)


CASES: dict[str, Case] = {
    "plain-softmax": Case(),
    "causal-softmax": Case(mask=causal),
    "softmax-f16": Case(mask=causal),
    "sliding-window": Case(mask=lambda g, c: (g[2] >= g[3]) & (g[2] - g[3] <= 5)),
    "sliding-window-scalar": Case(mask=lambda g, c: (g[2] - g[3]).abs() <= c["window"], captures={"window": lambda rng: 4}),
    "document": Case(mask=lambda g, c: c["ids"][g[2]] == c["ids"][g[3]], captures={"ids": documents(SKV)}),
    "document-causal": Case(
        mask=lambda g, c: (c["ids"][g[0], g[2]] == c["ids"][g[0], g[3]]) & (g[2] >= g[3]), captures={"ids": documents(B, SKV)}
    ),
    "key-padding": Case(mask=lambda g, c: c["keep"][g[0], g[3]], captures={"keep": lambda rng: rng.random((B, SKV)) < 0.5}),
    "length": Case(mask=lambda g, c: g[3] < c["n"][g[0]], captures={"n": lambda rng: np.array([9, 0])}),
    "prefix-lm": Case(mask=lambda g, c: (g[3] < c["n"][g[0]]) | (g[2] >= g[3]), captures={"n": lambda rng: np.array([6, 0])}),
    "causal-bottom-right": Case(mask=lambda g, c: g[2] + SKV - SQ >= g[3]),
    "empty-rows": Case(mask=lambda g, c: (g[2] >= 5) & (g[2] >= g[3])),
    "dilated": Case(mask=lambda g, c: (g[2] - g[3]) % 2 == 0),
    "alibi-signed": Case(score=lambda s, g, c: s + c["m"][g[1]] * (g[3] - g[2]), captures={"m": normal(H)}),
    "alibi-absolute": Case(score=lambda s, g, c: s - c["m"][g[1]] * (g[3] - g[2]).abs(), captures={"m": normal(H)}),
    "softcap": Case(score=lambda s, g, c: 20 * torch.tanh(s / 20), mask=causal),
    "bias": Case(score=lambda s, g, c: s + c["bias"], captures={"bias": normal(B, H, SQ, SKV)}),
    "relative-bias": Case(score=lambda s, g, c: s + c["t"][g[1], (g[3] - g[2]).clamp(-8, 8) + 8], captures={"t": normal(H, 17)}),
    "nested-gather": Case(
        score=lambda s, g, c: s + c["t"][c["kind"][g[2]], c["kind"][g[3]]], captures={"kind": documents(SKV), "t": normal(4, 4)}
    ),
    "sigmoid-bias": Case(sigmoid, lambda s, g, c: s + c["bias"], captures={"bias": lambda rng: -1.25}),
    "sigmoid-causal": Case(sigmoid, mask=causal),
    "relu": Case(lambda s, m, c: (torch.relu(s),), mask=causal),
    "relu-normalised": Case(relu_normalised, mask=causal),
    "retention": Case(retention, lambda s, g, c: s * torch.exp(-c["d"][g[1]].abs() * (g[2] - g[3])), causal, {"d": normal(H)}),
    "identity": Case(lambda s, m, c: (s,), mask=causal),
    "sink": Case(sink, mask=causal, captures={"sink": normal(H)}),
    "layer-norm": Case(layer_norm, mask=causal),
    "std-temperature": Case(std_temperature),
    "entropy": Case(entropy, mask=causal),
}


def dense(case: Case, q: Tensor, k: Tensor, v: Tensor, captures: Mapping[str, Tensor]) -> list[Tensor]:
    k, v = (x.repeat_interleave(H // HKV, dim=1) for x in (k, v))
    s = case.score(torch.einsum("bhid,bhjd->bhij", q, k) / 8.0, grid(), captures)
    present = case.mask(grid(), captures).expand(s.shape)
    p, *rows = case.row(s, present, captures)
    return [torch.einsum("bhij,bhjd->bhid", p * present, v), *rows]


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_dense_formula(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(7)
    d = 32 if name == "softmax-f16" else D
    q, k, v = (rng.standard_normal((B, heads, n, d)) for heads, n in ((H, SQ), (HKV, SKV), (HKV, SKV)))
    captures = {key: draw(rng) for key, draw in case.captures.items()}
    got = run(promoted(text_of(name)), [q, k, v, *captures.values()])
    q, k, v = (torch.from_numpy(x) for x in (q, k, v))
    wanted = dense(case, q, k, v, {key: torch.as_tensor(c) for key, c in captures.items()})
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-11, atol=1e-12)


def test_mods_of_query_key_and_value() -> None:
    rng = np.random.default_rng(3)
    q, k, v = (torch.from_numpy(rng.standard_normal((B, heads, n, D))) for heads, n in ((H, SQ), (HKV, SKV), (HKV, SKV)))
    gain = torch.from_numpy(rng.standard_normal((H, D)))
    got = run(text_of("query-key-value-mods"), [q.numpy(), k.numpy(), v.numpy(), gain.numpy(), 0.75])
    values = torch.tanh(v) / torch.arange(1, SKV + 1)[:, None]
    wanted = torch.nn.functional.scaled_dot_product_attention(q * gain[:, None], 0.75 * k, values, is_causal=True, enable_gqa=True)
    np.testing.assert_allclose(got[0], wanted.numpy(), rtol=1e-11, atol=1e-12)


def test_row_without_keys_gives_zero_and_minus_infinity() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, 9, D)) for _ in range(3))
    o, lse = run(text_of("empty-rows"), [q, k, v])
    assert (o[:, :, :5] == 0).all()
    assert (lse[:, :, :5] == -np.inf).all()
    assert np.isfinite(lse[:, :, 5:]).all()
    assert (o[:, :, 5:] != 0).all()
    o, mean = run(text_of("layer-norm").replace("sge, %q_idx", "sgt, %q_idx"), [q, k, v])
    assert (o[:, :, 0] == 0).all()
    assert (mean[:, :, 0] == 0).all()
    assert (mean[:, :, 1:] != 0).all()


def test_no_keys_at_all() -> None:
    q, k = np.ones((1, 2, 3, D)), np.ones((1, 1, 0, D))
    o, lse = run(text_of("plain-softmax"), [q, k, k])
    assert o.shape == q.shape
    assert (o == 0).all()
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_masked_keys_and_values_never_matter(poison: float) -> None:
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((B, 2, 12, D)) for _ in range(3))
    clean = run(text_of("causal-softmax"), [q, k, v])
    k[:, :, 8:], v[:, :, 8:] = poison, poison
    for program in ("causal-softmax", "online-causal-softmax"):
        got = run(text_of(program), [q, k, v], block=3, q_block=2)
        for mine, theirs in zip(got, clean, strict=True):
            np.testing.assert_allclose(mine[:, :, :8], theirs[:, :, :8], rtol=1e-12)
        assert not np.isfinite(got[0][:, :, 8:]).any()
