"""Linear attention end to end: values and gradients against the recurrence in float64."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.errors import ArgumentError, UnsupportedError
from linear_reference import check_errors, error, reference

linear_attention: Any = attn_mlir.linear_attention  # which takes spread arguments here
step: Any = attn_mlir.linear_attention_step

B, H, K, V = 2, 4, 16, 8
TOLERANCE = 1e-6
Tensors = dict[str, torch.Tensor]


def tensors(t: int, seed: int = 0, dtype: torch.dtype = torch.float32, b: int = B, groups: tuple[int, int] = (2, 1)) -> Tensors:
    """q, k, v, dt in (0, 1), A below 0, gates for steps and channels, and a state."""
    generator = torch.Generator().manual_seed(seed)

    def randn(*shape: int, of: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(of)

    return {
        "q": randn(b, groups[0], t, K, of=dtype),
        "k": randn(b, groups[1], t, K, of=dtype),
        "v": randn(b, H, t, V, of=dtype),
        "dt": randn(b, H, t).sigmoid(),
        "A": -randn(H).abs(),
        "g": torch.nn.functional.logsigmoid(randn(b, H, t)),
        "gk": torch.nn.functional.logsigmoid(randn(b, H, t, K)),
        "rates": -randn(H, K).abs(),
        "state": randn(b, H, K, V),
    }


def plain(names: str) -> Callable[..., Any]:
    """linear_attention or the reference with q, k, v and what `names` say: a decay, and "state" for the initial state."""

    def run(function: Callable[..., Any], x: Tensors) -> Any:
        words = names.split()
        decay = next((x[word] for word in words if word != "state"), None)
        return function(x["q"], x["k"], x["v"], decay, initial_state=x["state"] if "state" in words else None)

    return run


def mamba(function: Callable[..., Any], x: Tensors) -> Any:
    dt, a = x["dt"], x["A"]
    return function(
        x["q"],
        x["k"],
        x["v"],
        dt,
        v_mod=lambda y, b, h, t: y * dt[b, h, t],
        decay_mod=lambda g, b, h, t: g * a[h],
        initial_state=x["state"],
    )


def inventive(function: Callable[..., Any], x: Tensors) -> Any:
    """Mods that nobody has written before: every one of them, nonlinear, reading tables by position, head and column."""
    dt, rates, a = x["dt"], x["rates"], x["A"]
    return function(
        x["q"], x["k"], x["v"], x["g"], scale=0.7,
        q_mod=lambda y, b, h, t, d: torch.tanh(y) * rates[h, d],
        k_mod=lambda y, b, h, t: torch.sigmoid(y) * dt[b, h, t],
        v_mod=lambda y: y * torch.exp(-y * y),
        decay_mod=lambda g, b, h, t, d: g * 0.5 + rates[h, d] * torch.exp(a[h]),
    )  # fmt: skip


def rows(function: Callable[..., Any], x: Tensors) -> Any:
    """Mods that multiply rows, which states and pairs take over."""
    dt, a = x["dt"], x["A"]
    return function(
        x["q"], x["k"], x["v"], x["g"], scale=0.7, initial_state=x["state"],
        q_mod=lambda y, b, h, t: y * dt[b, h, t] * torch.exp(a[h]),
        k_mod=lambda y, b, h, t: -y / (1.0 + dt[b, h, t]),
        v_mod=lambda y, b, h, t: torch.sigmoid(dt[b, h, t]) * y,
    )  # fmt: skip


CASES = {
    "no decay": (plain(""), "q k v"),
    "one decay a head": (plain("A"), "q k v A"),
    "one decay a channel": (plain("rates"), "q k v rates"),
    "gates": (plain("g state"), "q k v g state"),
    "gates of channels": (plain("gk state"), "q k v gk state"),
    "mamba": (mamba, "q k v dt A state"),
    "rows": (rows, "q k v g dt A state"),
    "rows, shared states": (rows, "q k v"),
    "inventive": (inventive, "q k v g dt A rates"),
}


def compare(run: Callable[..., Any], x: Tensors, wanted: str, final: bool = True) -> dict[str, float]:
    """The errors of o, the final state, and the gradients of what `wanted` names, for a random loss of both results."""
    mine = {name: value.clone().requires_grad_(name in wanted.split()) for name, value in x.items()}
    theirs = {name: value.double().requires_grad_(name in wanted.split()) for name, value in x.items()}
    results = run(lambda *a, **o: linear_attention(*a, **o, output_final_state=final), mine)
    results = results if final else (results,)
    expected = run(reference, theirs)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(e.shape, generator=generator, dtype=torch.float64).to(r.dtype) for r, e in zip(results, expected, strict=False)]
    torch.autograd.backward(results, weights)
    torch.autograd.backward(expected[: len(results)], [weight.double() for weight in weights])
    found = {name: error(r, e) for name, r, e in zip(("o", "final"), results, expected, strict=False)}
    for name in wanted.split():
        gradient, known = mine[name].grad, theirs[name].grad
        assert gradient is not None and known is not None
        assert gradient.dtype == x[name].dtype
        found[f"d {name}"] = error(gradient, known)
    return found


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str) -> None:
    run, wanted = CASES[case]
    for t in (1, 63, 200):
        if t > 1 or "state" in wanted:  # else the decay has no effect, and its gradient is what rounding leaves of 0
            check_errors(compare(run, tensors(t), wanted))


@pytest.mark.parametrize(("case", "dtype"), [("gates", torch.bfloat16), ("mamba", torch.float16)])
def test_sixteen_bits(case: str, dtype: torch.dtype) -> None:
    run, wanted = CASES[case]
    found = compare(run, tensors(100, dtype=dtype), wanted)
    assert max(found.values()) < 0.006, found


def test_float64() -> None:
    x = {name: value.double() for name, value in tensors(70).items()}
    found = compare(mamba, x, "q k v dt A state")
    assert max(found.values()) < 1e-13, found


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_nothing_is_saved_but_the_inputs(layout: str) -> None:
    """So that o and the final state take no memory until the backward, and may be changed in place."""
    x = {name: value.requires_grad_() for name, value in tensors(40).items() if name in ("q", "k", "v", "g")}
    given = [x[name].transpose(1, 2) if layout == "bshd" else x[name] for name in ("q", "k", "v", "g")]
    saved: list[torch.Size] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.shape)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        o, final = linear_attention(*given, output_final_state=True, layout=layout)
    assert len(saved) == len(given)
    wanted = torch.autograd.grad(2.0 * o.sum() + final.sum(), list(x.values()), retain_graph=True)
    o.mul_(2.0)
    final.add_(1.0)
    found = torch.autograd.grad(o.sum() + final.sum(), list(x.values()))
    assert all(torch.equal(gradient, same) for gradient, same in zip(found, wanted, strict=True))


@pytest.mark.parametrize("wanted", ["state", "k A"])
def test_only_some_gradients(wanted: str) -> None:
    found = compare(mamba, tensors(40), wanted, final=False)
    check_errors(found)


def test_extreme_decays_give_no_nan() -> None:
    x = tensors(150)
    x["g"] = torch.where(torch.rand(B, H, 150, generator=torch.Generator().manual_seed(1)) < 0.3, -1000.0, x["g"])
    x["g"][0, 0, 5] = -torch.inf
    check_errors(compare(plain("g state"), x, "q k v g state"))


def test_two_calls_through_the_state_are_one() -> None:
    x = tensors(130)
    whole, final = linear_attention(x["q"], x["k"], x["v"], x["g"], initial_state=x["state"], output_final_state=True)
    state, parts = x["state"], []
    for part in (slice(0, 77), slice(77, 77), slice(77, 130)):
        o, state = linear_attention(
            *(x[name][:, :, part] for name in "qkvg"), initial_state=state, output_final_state=True
        )  # fmt: skip
        parts.append(o)
    assert error(torch.cat(parts, 2), whole) < TOLERANCE
    assert error(state, final) < TOLERANCE


@pytest.mark.parametrize("flat", [True, False])
def test_steps_are_the_sequence(flat: bool) -> None:
    x = tensors(12)
    dt, a = x["dt"], x["A"]
    expected, final = mamba(reference, x)
    state, outputs = x["state"], []
    for i in range(12):
        now = dt[:, :, i : i + 1]
        at = i if flat else slice(i, i + 1)
        o, state = step(
            *(x[name][:, :, at] for name in ("q", "k", "v", "dt")), state,
            v_mod=lambda y, b, h, t, now=now: y * now[b, h, t], decay_mod=lambda g, b, h, t: g * a[h],
        )  # fmt: skip
        outputs.append(o if not flat else o.unsqueeze(2))
    assert error(torch.cat(outputs, 2), expected) < TOLERANCE
    assert error(state, final) < TOLERANCE


def _turned(x: torch.Tensor) -> torch.Tensor:
    return x.transpose(1, 2).contiguous().requires_grad_()


def test_the_other_layout() -> None:
    x = tensors(50)
    turned = [_turned(x[name]) for name in ("q", "k", "v", "gk")]
    o = linear_attention(*turned, layout="bshd")
    assert o.shape == (B, 50, H, V)
    theirs = [x[name].double().requires_grad_() for name in ("q", "k", "v", "gk")]
    expected = reference(*theirs)[0]
    assert error(o.transpose(1, 2), expected) < TOLERANCE
    o.square().sum().backward()
    expected.square().sum().backward()
    grads = [x.grad.transpose(1, 2) for x in turned if x.grad is not None]
    check_errors({f"d {name}": error(x, y.grad) for name, x, y in zip(("q", "k", "v", "gk"), grads, theirs, strict=True)})


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_sequences_in_one(dtype: torch.dtype) -> None:
    bounds = [0, 70, 70, 73, 140]
    x = tensors(140, b=1)
    x["state"] = torch.randn(4, H, K, V, generator=torch.Generator().manual_seed(3))
    offsets = torch.tensor(bounds, dtype=dtype)

    def run(function: Callable[..., Any], x: Tensors) -> Any:
        given: Any = bounds if function is reference else offsets
        return function(x["q"], x["k"], x["v"], x["g"], initial_state=x["state"], cu_seqlens=given)

    found = compare(run, x, "q k v g state")
    check_errors(found)


@pytest.mark.parametrize(
    ("bounds", "text"),
    [
        ([1, 20], "cu_seqlens must start at 0 and end at the number of positions, 20; it runs from 1 to 20"),
        ([0, 21], "it runs from 0 to 21"),
        ([0, 12, 7, 20], "cu_seqlens must not decrease"),
    ],
)
def test_wrong_sequences(bounds: list[int], text: str) -> None:
    x = tensors(20, b=1)
    with pytest.raises(ArgumentError, match=re.escape(text)):
        linear_attention(x["q"], x["k"], x["v"], cu_seqlens=torch.tensor(bounds))


def test_no_positions() -> None:
    x = tensors(0)
    state = x["state"].requires_grad_()
    o, final = linear_attention(x["q"], x["k"].requires_grad_(), x["v"], x["g"], initial_state=state, output_final_state=True)
    assert o.shape == (B, H, 0, V)
    assert torch.equal(final, state)
    (o.sum() + (2 * final).sum()).backward()
    assert state.grad is not None and torch.equal(state.grad, torch.full_like(state, 2.0))
    assert linear_attention(*(y[:0] for y in (tensors(3)["q"], tensors(3)["k"], tensors(3)["v"]))).shape == (0, H, 3, V)


def test_strided_inputs() -> None:
    x = tensors(40)
    q = torch.randn(B, 40, K, 2)[..., 0].unsqueeze(1)
    v = x["v"].mT.contiguous().mT
    k = x["k"].flip(2)
    assert error(linear_attention(q, k, v, x["g"]), reference(q, k, v, x["g"])[0]) < TOLERANCE


def test_large_states() -> None:
    q, k = torch.randn(2, 1, 1, 70, 256)
    v = torch.randn(1, 2, 70, 512)
    o, final = linear_attention(q, k, v, -torch.rand(2), output_final_state=True)
    assert o.shape == (1, 2, 70, 512) and final.shape == (1, 2, 256, 512)
    q, k, v = q[..., :67], k[..., :67], v[..., :3]
    g = -torch.rand(1, 2, 70)
    assert error(linear_attention(q, k, v, g), reference(q, k, v, g)[0]) < TOLERANCE


def test_what_mods_capture_is_read_anew_and_checked() -> None:
    x, factor = tensors(10), 1.0
    attention = attn_mlir.LinearAttention(v_mod=lambda y: y * factor)
    once = attention(x["q"], x["k"], x["v"])
    factor = 3.0
    assert error(attention(x["q"], x["k"], x["v"]), 3 * once.double()) < TOLERANCE
    short = torch.ones(B, H, 9)
    with pytest.raises(ArgumentError, match="`short` has size 9 in dimension 2, but `t` indexes it with 0 to 9"):
        linear_attention(x["q"], x["k"], x["v"], v_mod=lambda y, b, h, t: y * short[b, h, t])
    with pytest.raises(ArgumentError, match=r"'short' has size 9 in dimension 2, but is read at t \+ 1, which runs over 1\.\.10\.$"):
        linear_attention(x["q"], x["k"], x["v"], v_mod=lambda y, b, h, t: y * short[b, h, t + 1])


def test_derivatives_that_are_not_there() -> None:
    x = tensors(10)
    v = x["v"].requires_grad_()
    o = linear_attention(x["q"], x["k"], v, x["g"])
    (gradient,) = torch.autograd.grad(o.square().sum(), v, create_graph=True)
    with pytest.raises(UnsupportedError, match="linear attention has no second derivative yet"):
        torch.autograd.grad(gradient.sum(), v)
    with pytest.raises(UnsupportedError, match="linear attention has no forward-mode derivative yet"):
        torch.func.jvp(lambda y: linear_attention(x["q"], x["k"], y), (v,), (v,))


def test_vmap_and_grad_of_torch_func() -> None:
    x = tensors(20)

    def loss(q: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return linear_attention(q[None], x["k"][:1], v[None], x["g"][:1]).square().sum()

    made = torch.func.vmap(torch.func.grad(loss))(x["q"], x["v"])
    q = x["q"].double().requires_grad_()
    expected = torch.cat([reference(q[i : i + 1], x["k"][:1], x["v"][i : i + 1], x["g"][:1])[0] for i in range(B)])
    expected.square().sum().backward()
    assert error(made, q.grad) < TOLERANCE


def test_stages() -> None:
    attention = attn_mlir.LinearAttention(decay_mod=lambda g: g * 2.0)
    assert "attn.decay" in attention.ir()
    stages = attention.stages()
    assert '"attn.chunk"' in stages["attn-chunk-rewrite"]
    assert attention.ir("attn-chunk-rewrite") == stages["attn-chunk-rewrite"]
    with pytest.raises(ArgumentError, match="stage is one of traced, "):
        attention.ir("attn-nothing")
    assert "chunk_decay" in attention.explain()


def test_explanations_name_what_is_captured() -> None:
    rates, steps = torch.rand(4), torch.rand(2, 4, 9)

    def decay(g: Any, b: Any, h: Any, t: Any) -> Any:
        return g * rates[h] - rates[h // 2]

    attention = attn_mlir.LinearAttention(v_mod=lambda x, b, h, t: x * steps[b, h, t], decay_mod=decay)
    lines = attention.explain().splitlines()
    assert lines[2:4] == ["    v = v * steps[b, h, t]", "    g = g * rates[h] - rates[...]"]
