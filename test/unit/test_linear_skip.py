"""The skip of linear attention, o_t + skip_mod(b, h, t) v_t: values and gradients against the recurrence in float64."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.errors import ArgumentError, AttnError, TraceError, UnsupportedError
from linear_reference import check_errors, error, reference
from test_linear_attention import B, H, K, Tensors, V, compare, linear_attention, step, tensors

TOLERANCE = 1e-6


def inputs(t: int, **options: Any) -> Tensors:
    """Those of `tensors`, and D, a number for each head."""
    return tensors(t, **options) | {"D": torch.randn(H, generator=torch.Generator().manual_seed(4))}


def mamba(function: Callable[..., Any], x: Tensors, **options: Any) -> Any:
    dt, a, skip = x["dt"], x["A"], x["D"]
    return function(
        x["q"], x["k"], x["v"], dt, v_mod=lambda y, b, h, t: y * dt[b, h, t], decay_mod=lambda g, b, h, t: g * a[h],
        skip_mod=lambda b, h, t: skip[h], **{"initial_state": x["state"], **options},
    )  # fmt: skip


def alone(function: Callable[..., Any], x: Tensors) -> Any:
    """A number for each position, computed from what other mods read, too."""
    dt, skip = x["dt"], x["D"]
    return function(
        x["q"], x["k"], x["v"], x["g"], scale=0.7, q_mod=lambda y, b, h, t: y * dt[b, h, t],
        skip_mod=lambda b, h, t: torch.tanh(dt[b, h, t] * skip[h]) + 0.01 * t - b,
    )  # fmt: skip


def curved(function: Callable[..., Any], x: Tensors) -> Any:
    """v before a v_mod that does not multiply rows."""
    skip = x["D"]
    return function(x["q"], x["k"], x["v"], x["g"], v_mod=lambda y: y * torch.exp(-y * y), skip_mod=lambda b, h, t: skip[h] * skip[h])


def constant(function: Callable[..., Any], x: Tensors) -> Any:
    return function(x["q"], x["k"], x["v"], x["A"], skip_mod=lambda b, h, t: 0.5, initial_state=x["state"])


CASES = {
    "mamba": (mamba, "q k v dt A D state"),
    "alone": (alone, "q k v g dt D"),
    "curved": (curved, "q k v g D"),
    "constant": (constant, "q k v A state"),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case: str) -> None:
    run, wanted = CASES[case]
    for t in (1, 130):
        if t > 1 or "state" in wanted:  # else the decay has no effect, and its gradient is what rounding leaves of 0
            check_errors(compare(run, inputs(t), wanted))


@pytest.mark.parametrize("wanted", ["D", "v", "dt"])
def test_only_some_gradients(wanted: str) -> None:
    check_errors(compare(mamba, inputs(70), wanted, final=False))


@pytest.mark.parametrize(("case", "dtype"), [("mamba", torch.bfloat16), ("curved", torch.float16)])
def test_sixteen_bits(case: str, dtype: torch.dtype) -> None:
    """The sum over positions that is the gradient of D is of products that are not rounded."""
    run, wanted = CASES[case]
    found = compare(run, inputs(100, dtype=dtype), wanted)
    assert found["d D"] < TOLERANCE, found
    assert max(found.values()) < 0.006, found


def test_float64() -> None:
    x = {name: value.double() for name, value in inputs(70).items()}
    assert max(compare(mamba, x, "q k v dt A D state").values()) < 1e-13


def test_steps_are_the_sequence() -> None:
    x = inputs(6)
    dt, a, skip = x["dt"], x["A"], x["D"]
    expected, final = mamba(reference, x)
    state, outputs = x["state"], []
    for i in range(6):
        now = dt[:, :, i : i + 1]
        o, state = step(
            *(x[name][:, :, i] for name in ("q", "k", "v", "dt")), state, v_mod=lambda y, b, h, t, now=now: y * now[b, h, t],
            decay_mod=lambda g, b, h, t: g * a[h], skip_mod=lambda b, h, t: skip[h],
        )  # fmt: skip
        outputs.append(o)
    assert error(torch.stack(outputs, 2), expected) < TOLERANCE
    assert error(state, final) < TOLERANCE


def test_sequences_in_one() -> None:
    bounds, x = [0, 70, 70, 73, 140], inputs(140, b=1)
    x["state"] = torch.randn(4, H, K, V, generator=torch.Generator().manual_seed(3))

    def run(function: Callable[..., Any], x: Tensors) -> Any:
        return mamba(function, x, cu_seqlens=bounds if function is reference else torch.tensor(bounds))

    check_errors(compare(run, x, "q k v dt A D state"))


def test_segments() -> None:
    x = inputs(600, b=1)
    x["dt"] *= 0.1

    def run(function: Callable[..., Any], x: Tensors) -> Any:
        return mamba(function, x, **({} if function is reference else {"segment_size": 512}))

    check_errors(compare(run, x, "q k v dt D state"))


def test_the_other_layout_and_an_object() -> None:
    x = inputs(20)
    skip = x["D"]
    turned = [x[name].transpose(1, 2) for name in ("q", "k", "v", "g")]
    attention = attn_mlir.LinearAttention(layout="bshd", skip_mod=lambda b, h, t: skip[h])
    known = reference(x["q"], x["k"], x["v"], x["g"])[0]
    for _ in range(2):
        expected = known + skip[:, None, None] * x["v"]
        assert error(attention(*turned).transpose(1, 2), expected) < TOLERANCE
        skip *= 2.0  # read at every call
    assert '"attn.skip"' in attention.ir()
    assert "o_t = o_t + skip[h] v_t, with v as it comes" in attention.explain()


def test_the_same_program_without_a_skip() -> None:
    decay = lambda g: g * 2.0  # noqa: E731
    assert attn_mlir.LinearAttention(decay_mod=decay).ir() == attn_mlir.LinearAttention(decay_mod=decay, skip_mod=None).ir()
    assert "skip" not in attn_mlir.LinearAttention(decay_mod=decay).ir()


def test_torch_compile() -> None:
    x = inputs(40)
    mine, theirs = ({name: value.clone().requires_grad_() for name, value in x.items()} for _ in range(2))
    results = torch.compile(lambda x: alone(linear_attention, x), fullgraph=True, backend="aot_eager")(mine)
    known = alone(linear_attention, theirs)
    assert torch.equal(results, known)
    results.square().sum().backward()
    known.square().sum().backward()
    for name in ("q", "k", "v", "g", "dt", "D"):
        torch.testing.assert_close(mine[name].grad, theirs[name].grad, rtol=1e-6, atol=1e-6)


def test_vmap_and_grad_of_torch_func() -> None:
    x = inputs(20)
    skips = torch.stack([x["D"], -2.0 * x["D"]])

    def loss(skip: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return linear_attention(x["q"], x["k"], v, x["g"], skip_mod=lambda b, h, t: skip[h]).square().sum()

    found = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(0, None))(skips, x["v"])
    for i, skip in enumerate(skips.double()):
        d, v = skip.requires_grad_(), x["v"].double().requires_grad_()
        o = reference(x["q"], x["k"], v, x["g"], skip_mod=lambda b, h, t, d=d: d[h])[0]
        for got, wanted in zip(found, torch.autograd.grad(o.square().sum(), (d, v)), strict=True):
            assert error(got[i], wanted) < TOLERANCE


CHANNELS = "skip_mod does not go with decays of channels, [H, K], [B, H, T, K] or a decay_mod that takes d: leave it out, and add skip * v"


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"decay": -torch.ones(H, K), "skip_mod": lambda b, h, t: 1.0}, UnsupportedError, CHANNELS),
        ({"decay_mod": lambda g, b, h, t, d: g * d, "skip_mod": lambda b, h, t: 1.0}, UnsupportedError, CHANNELS),
        ({"skip_mod": lambda x: x}, TraceError, "skip_mod `<lambda>`: takes (x), but is called with (b, h, t)"),
        ({"skip_mod": lambda b, h, t: None}, TraceError, "must return the factor of v, but returned None"),
        ({"skip_mod": lambda b, h, t: h > 0}, TraceError, "must return the factor of v, but returned a condition"),
        ({"skip_mod": torch.ones(H)}, ArgumentError, "skip_mod must be a function, got Tensor"),
    ],
)
def test_mistakes(options: dict[str, Any], kind: type[AttnError], text: str) -> None:
    x = tensors(9)
    with pytest.raises(kind, match=re.escape(text)):
        linear_attention(x["q"], x["k"], x["v"], **options)


def test_a_table_that_is_too_short() -> None:
    x, short = tensors(9), torch.ones(B, H, 8)
    with pytest.raises(ArgumentError, match="`short` has size 8 in dimension 2, but `t` indexes it with 0 to 8"):
        linear_attention(x["q"], x["k"], x["v"], skip_mod=lambda b, h, t: short[b, h, t])
