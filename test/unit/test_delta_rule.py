"""The delta rule on the CPU against its recurrence in float64: outputs, states and all gradients; chunks, steps and sequences."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.errors import ArgumentError, UnsupportedError
from delta_cases import compare, inputs, narrow, run, wanted
from delta_reference import delta_reference
from linear_reference import error
from random_delta import delta_errors

LIMIT = 2e-6


def check(errors: dict[str, float]) -> None:
    assert all(value < LIMIT for value in errors.values()), errors


@pytest.mark.parametrize(("length", "low"), [(1, 0.1), (17, 10.0), (127, 0.1), (1000, 10.0)])
def test_decays_of_heads(length: int, low: float) -> None:
    """Two heads of v share one of q and k."""
    x = inputs(length, heads=4, low=low)
    double, expected = wanted(x)
    check(compare(x, run(x), expected, double))


@pytest.mark.parametrize(("length", "low"), [(17, 0.1), (127, 10.0)])
def test_decays_of_channels(length: int, low: float) -> None:
    x = inputs(length, channels=True, low=low)
    double, expected = wanted(x)
    check(compare(x, run(x), expected, double))


def test_an_erase_key_of_its_own_read_before_the_update() -> None:
    x = inputs(100)
    double, expected = wanted(x, own=True, read_before=True)
    check(compare(x, run(x, erase_key=x["erase_key"], read_before_update=True), expected, double))


def test_another_key_is_removed() -> None:
    x = inputs(70, channels=True)
    double, expected = wanted(x, own=True, removed=True)
    found = run(x, erase_key=x["erase_key"] + 0.1 * x["k"], removed_key=x["erase_key"])
    check(compare(x, found, expected, double))


def test_another_key_of_16_bits_is_removed() -> None:
    x = narrow(inputs(40), torch.float16)
    double, expected = wanted(x, own=True, removed=True)
    found = run(x, erase_key=x["erase_key"] + 0.1 * x["k"], removed_key=x["erase_key"])
    assert max(compare(x, found, expected, double).values()) < 1e-3


def test_two_thousand_positions() -> None:
    """Without decays, where nothing but erasing keeps the state small."""
    x = inputs(2048, low=0.0)
    double, expected = wanted(x)
    check(compare(x, run(x), expected, double))


def test_one_after_the_other_and_through_the_state() -> None:
    """All positions at once, two parts through the state, and steps of decoding are the same recurrence."""
    x = {name: value.detach() for name, value in inputs(45).items()}
    (o, final), cut = run(x), 20

    def part(begin: int, end: int, state: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return run({n: value[:, :, begin:end] for n, value in x.items() if n != "state"} | {"state": state})

    first, middle = part(0, cut, x["state"])
    second, last = part(cut, 45, middle)
    assert error(torch.cat([first, second], 2), o.double()) < LIMIT
    assert error(last, final.double()) < LIMIT
    state, steps = x["state"], []
    for t in range(45):
        made, state = part(t, t + 1, state)
        steps.append(made)
    assert error(torch.cat(steps, 2), o.double()) < LIMIT
    assert error(state, final.double()) < LIMIT
    q, k, v, g, beta = (x[name][:, :, 0] for name in ("q", "k", "v", "g", "beta"))
    o_0, state = attn_mlir.linear_attention_step(q, k, v * beta.unsqueeze(2), g, x["state"], None, erase=beta)
    assert error(o_0, o[:, :, 0].double()) < LIMIT
    assert error(state, part(0, 1, x["state"])[1].double()) < LIMIT


@pytest.mark.parametrize("extreme", ["nothing erased", "mirrored", "no keys", "the same keys"])
def test_extremes(extreme: str) -> None:
    x = {name: value.detach() for name, value in inputs(70, heads=4).items()}
    match extreme:
        case "nothing erased":
            x["beta"] = torch.zeros_like(x["beta"])
        case "mirrored":
            x["beta"] = torch.full_like(x["beta"], 2.0)
        case "no keys":
            x["k"][:, :, ::3] = 0.0
        case _:
            x["k"] = x["k"][:, :, :1].repeat(1, 1, 70, 1)
    x = {name: value.requires_grad_() for name, value in x.items()}
    double, expected = wanted(x)
    check(compare(x, run(x), expected, double))


@pytest.mark.parametrize("channels", [False, True])
def test_decays_that_leave_nothing(channels: bool) -> None:
    """-inf is a decay like any other: outputs are those of the recurrence, and gradients those of one whose exp is 0."""
    x = {name: value.detach() for name, value in inputs(70, channels=channels).items()}
    x["g"][:, :, 5::9] = -torch.inf
    low = x | {"g": torch.where(x["g"] == -torch.inf, -200.0, x["g"])}
    found = []
    for each in (x, low):
        leaves = {name: value.clone().requires_grad_() for name, value in each.items()}
        made = run(leaves)
        (made[0].square().sum() + made[1].sum()).backward()
        found.append([*made, *(value.grad for value in leaves.values() if value.grad is not None)])
    for value, known in zip(found[0], wanted(x)[1], strict=False):
        assert error(value, known) < LIMIT
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_captured_tensors_may_change_between_calls() -> None:
    """In place, and what all pieces read at once; a graph from before notices."""
    x = {name: value.detach() for name, value in inputs(33).items()}
    rate = torch.rand(2)

    def made() -> torch.Tensor:
        return attn_mlir.linear_attention(
            x["q"], x["k"], x["v"], x["g"], decay_mod=lambda g, b, h, t: g * rate[h], k_mod=lambda k, b, h, t: k * rate[h],
            q_mod=lambda q, b, h, t: q * rate[h], v_mod=lambda v, b, h, t: v * rate[h], erase_mod=lambda b, h, t: rate[h],
        )  # fmt: skip

    def reference() -> torch.Tensor:
        r = rate.double().view(1, 2, 1, 1)
        q, k, v, g = (x[name].double() for name in ("q", "k", "v", "g"))
        return delta_reference(q * r, k * r, v * r, g * r[..., 0], r * r * k)[0]

    assert error(made(), reference()) < LIMIT
    rate.mul_(0.5)
    assert error(made(), reference()) < LIMIT
    rate.requires_grad_()
    o = made()
    with torch.no_grad():
        rate.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_segments_at_the_same_time() -> None:
    """They pass on their states by matrices, where decays leave something of them."""
    stages = attn_mlir.LinearAttention(erase_mod=lambda b, h, t: 0.5, segment_size=512)
    assert '"attn.transition_scan"' in stages.ir("attn-split-sequences")
    x = inputs(1000, heads=1, of_k=1, dims=(16, 8), low=0.002)
    double, expected = wanted(x)
    check(compare(x, run(x, segment_size=512), expected, double))


def test_ready_made_rules_take_segments() -> None:
    x = torch.randn(1, 8, 2, 16)
    for rule, inputs_of in (
        (attn_mlir.delta_rule, [x[..., 0]]),
        (attn_mlir.gated_delta_rule, [x[..., 0]] * 2),
        (attn_mlir.kda, [x, x[..., 0]]),
    ):
        with pytest.raises(ArgumentError, match="segment_size is a multiple of 512 positions"):
            rule(x, x, x, *inputs_of, segment_size=100)  # pyright: ignore[reportArgumentType]


def test_sequences_of_any_lengths() -> None:
    offsets = [0, 1, 40, 40, 77]
    x = inputs(77)
    x["state"] = torch.randn(4, 2, 16, 16, requires_grad=True)
    double, expected = wanted(x, cu_seqlens=offsets)
    check(compare(x, run(x, cu_seqlens=torch.tensor(offsets)), expected, double))


def test_sixteen_bits() -> None:
    x = inputs(100)
    for name in ("q", "k", "v"):
        x[name] = x[name].detach().to(torch.bfloat16).requires_grad_()
    double, expected = wanted(x)
    found = run(x)
    errors = {"o": error(found[0], expected[0]), "final_state": error(found[1], expected[1])}
    torch.autograd.backward(list(found), [torch.ones_like(y) for y in found])
    torch.autograd.backward(list(expected), [torch.ones_like(y) for y in expected])
    errors |= {f"d{n}": error(value.grad, double[n].grad) for n, value in x.items() if double[n].grad is not None}
    assert all(value < 5e-3 for value in errors.values()), errors
    assert errors["dbeta"] < LIMIT  # sums that are not rounded


def test_what_functions_capture_has_gradients() -> None:
    """A decay, a share and a key mod of one's own."""
    x = {name: value.detach() for name, value in inputs(33).items()}
    bias, rate = (torch.rand(2, requires_grad=True) for _ in range(2))
    o = attn_mlir.linear_attention(
        x["q"], x["k"], x["v"], x["g"], decay_mod=lambda g, b, h, t: g * rate[h], k_mod=lambda k, b, h, t: k * bias[h],
        erase_mod=lambda b, h, t: torch.sigmoid(bias[h] + 0.01 * t),
    )  # fmt: skip
    o.square().sum().backward()
    d_bias, d_rate = (value.detach().double().requires_grad_() for value in (bias, rate))
    k = x["k"].double() * d_bias.view(1, 2, 1, 1)
    share = torch.sigmoid(d_bias.view(1, 2, 1) + 0.01 * torch.arange(33))
    made, _ = delta_reference(x["q"], k, x["v"], x["g"].double() * d_rate.view(1, 2, 1), share.unsqueeze(3) * k)
    made.square().sum().backward()
    check({"o": error(o, made), "bias": error(bias.grad, d_bias.grad), "rate": error(rate.grad, d_rate.grad)})


def test_wrong_inputs_are_named() -> None:
    x = {name: value.detach() for name, value in inputs(8).items()}
    q, k, v = x["q"], x["k"], x["v"]
    with pytest.raises(ArgumentError, match="erase has shape"):
        attn_mlir.linear_attention(q, k, v, erase=x["beta"][:, :, :5])
    with pytest.raises(ArgumentError, match="erase_key says what is erased, but nothing is"):
        attn_mlir.linear_attention(q, k, v, erase_key=k)
    with pytest.raises(ArgumentError, match="read_before_update goes with erase"):
        attn_mlir.linear_attention(q, k, v, read_before_update=True)
    with pytest.raises(ArgumentError, match="its heads must divide"):
        attn_mlir.linear_attention(q, k, v, erase=x["beta"], erase_key=k[:, :, :5])
    with pytest.raises(UnsupportedError, match="skip_mod does not go with erase and erase_mod: leave it out"):
        attn_mlir.linear_attention(x["q"], x["k"], x["v"], erase=x["beta"], skip_mod=lambda b, h, t: 1.0)
    with pytest.raises(ArgumentError, match="removed_key must be a tensor like k"):
        attn_mlir.linear_attention(q, k, v, erase=x["beta"], removed_key=1.0)  # pyright: ignore[reportArgumentType]


def test_the_engine_takes_an_erase_mod() -> None:
    """Its share is an input of the call."""
    meta = attn_mlir.meta_tensor
    x = {name: value.detach() for name, value in inputs(33).items()}
    custom = attn_mlir.CustomIO({"beta": (1, "heads", "seq_len")})
    engine = attn_mlir.LinearAttentionEngine(
        [meta(1, 2, 33, 16, dtype=torch.float32) for _ in range(3)],
        erase_mod=lambda share, io: share * io.input_tensors["beta"], custom_io=custom,
    )  # fmt: skip
    o = engine(x["q"], x["k"], x["v"], x["g"], x["beta"])
    made, _ = delta_reference(x["q"], x["k"], x["v"], x["g"], x["beta"].double().unsqueeze(3) * x["k"].double())
    assert error(o, made) < LIMIT


@pytest.mark.parametrize("short", [False, True])
def test_inside_of_a_graph(short: bool) -> None:
    """torch.compile sees one operator, whatever says how much is erased, and its gradients are the same."""
    x = inputs(33)
    bias = torch.rand(2, requires_grad=True)

    def run(q: Any, k: Any, v: Any, g: Any, beta: Any, key: Any) -> Any:
        if short:
            return attn_mlir.linear_attention(q, k, v, g, erase_mod=lambda b, h, t: torch.sigmoid(bias[h]), read_before_update=True)
        return attn_mlir.linear_attention(q, k, v, g, erase=beta, erase_mod=lambda s, b, h, t: s * bias[h], erase_key=key)

    given = [x[name] for name in ("q", "k", "v", "g", "beta", "erase_key")]
    wanted = torch.autograd.grad(run(*given).square().sum(), [x["k"], x["g"], bias])
    found = torch.autograd.grad(torch.compile(run, backend="eager", fullgraph=True)(*given).square().sum(), [x["k"], x["g"], bias])
    for got, known in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, known)


@pytest.mark.parametrize("number", [8, 9])
def test_random_rules(number: int) -> None:
    """Several sequences; decays of channels. Both remove a key of its own. `benchmarks/fuzz_api.py --delta` draws as many as wanted."""
    told, wrong = delta_errors(number)
    assert not wrong, f"{wrong}\n{told}"
