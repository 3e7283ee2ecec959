"""Linear attention inside torch.compile(fullgraph=True): one operator, with gradients, for whatever the functions capture."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._inductor.config
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

import attn_mlir
from linear_reference import grid

linear_attention: Any = attn_mlir.linear_attention  # which takes spread arguments here
step: Any = attn_mlir.linear_attention_step

B, H, T, K, V = 2, 4, 40, 8, 8
A = -torch.rand(H, generator=torch.Generator().manual_seed(5))


def inputs(b: int = B, t: int = T) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (b, 2, t, K), "k": (b, 1, t, K), "v": (b, H, t, V), "dt": (b, H, t), "g": (b, H, t, K), "state": (b, H, K, V)}
    found = {name: torch.randn(*shape, generator=generator) for name, shape in shapes.items()}
    return found | {"dt": found["dt"].sigmoid(), "g": -found["g"].abs()}


def mamba(x: dict[str, torch.Tensor]) -> Any:
    dt = x["dt"]
    return linear_attention(
        x["q"], x["k"], x["v"], dt, scale=0.5, v_mod=lambda y, b, h, t: y * dt[b, h, t], decay_mod=lambda g, b, h, t: g * A[h],
        k_mod=lambda y, b, h, t, d: torch.tanh(y) * dt[b, h, t], initial_state=x["state"], output_final_state=True,
    )  # fmt: skip


def channels(x: dict[str, torch.Tensor]) -> Any:
    made = linear_attention(x["q"], x["k"], x["v"], x["dt"], decay_mod=lambda g, b, h, t, d: -g * d - A[h] * A[h])
    return made, linear_attention(x["q"], x["k"], x["v"], x["g"], scale=None)


def other_layout(x: dict[str, torch.Tensor]) -> Any:
    q, k, v, g = (x[name].transpose(1, 2) for name in ("q", "k", "v", "g"))
    return attn_mlir.gla(q, k, v, g, output_final_state=True)


def sequences(x: dict[str, torch.Tensor]) -> Any:
    offsets = torch.tensor([0, 17, 17, x["v"].shape[2]])
    return linear_attention(x["q"], x["k"], x["v"], A, cu_seqlens=offsets, output_final_state=True)


def steps(x: dict[str, torch.Tensor]) -> Any:
    return step(*(x[name][:, :, 0] for name in ("q", "k", "v", "dt")), x["state"])


def mamba2(x: dict[str, torch.Tensor]) -> Any:
    q, k, v, dt = (x[name].transpose(1, 2) for name in ("q", "k", "v", "dt"))
    return attn_mlir.mamba2(v, dt, A, k, q, 64, D=A, dt_bias=A, dt_softplus=True, return_final_states=True)


@pytest.mark.parametrize("function", [mamba, channels, other_layout, steps, mamba2])
def test_the_same_results_and_gradients(function: Callable[..., Any]) -> None:
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    mine, theirs = ({name: value.requires_grad_() for name, value in inputs().items()} for _ in range(2))
    results, known = compiled(mine), function(theirs)
    for x, y in zip(results, known, strict=True):
        assert torch.equal(x, y)
    sum(x.square().sum() for x in results).backward()
    sum(x.square().sum() for x in known).backward()
    for name, x in mine.items():
        expected = theirs[name].grad
        assert (x.grad is None) == (expected is None), name
        if expected is not None:
            torch.testing.assert_close(x.grad, expected, rtol=1e-6, atol=1e-6)


def test_sequences_in_one() -> None:
    x = inputs(b=1)
    results, known = torch.compile(sequences, fullgraph=True, backend="aot_eager")(x), sequences(x)
    assert all(torch.equal(a, b) for a, b in zip(results, known, strict=True))


def test_other_lengths_compile_nothing_in_the_backend() -> None:
    compiled = torch.compile(mamba, fullgraph=True, backend="aot_eager", dynamic=True)
    for t in (T, 23, 66):
        x = inputs(t=t)
        assert all(torch.equal(a, b) for a, b in zip(compiled(x), mamba(x), strict=True))


@pytest.mark.parametrize("run", [linear_attention, attn_mlir.attention])
@pytest.mark.parametrize("change", [lambda scale: scale, lambda scale: 2 * scale + 1])
def test_scales_that_differ_from_call_to_call(run: Callable[..., Any], change: Callable[[float], float]) -> None:
    """They are symbols of the graph, as is the default itself with dynamic=True."""
    q = k = v = inputs()["v"]
    for dynamic in (None, True):
        torch._dynamo.reset()  # the limit of graphs counts for the function's code
        compiled = torch.compile(lambda scale: run(q, k, v, scale=change(scale)), fullgraph=True, backend="aot_eager", dynamic=dynamic)
        for scale in (0.5, 0.7, 0.9):
            torch.testing.assert_close(compiled(scale), run(q, k, v, scale=change(scale)))
    whole = torch.compile(lambda x: run(x, k, v), fullgraph=True, backend="aot_eager", dynamic=True)
    torch.testing.assert_close(whole(q), run(q, k, v))


RATES = torch.rand(H, 3, generator=torch.Generator().manual_seed(6)).requires_grad_()
HALF = torch.tensor(0.5).requires_grad_()


@pytest.mark.parametrize("run", [linear_attention, attn_mlir.attention])
def test_what_functions_compute_from_captured_values(run: Callable[..., Any]) -> None:
    """Numbers, also those that are symbols of the graph, tensors that are computed before they are read, constants."""
    x = inputs()["v"]

    def attend(x: torch.Tensor, number: float) -> torch.Tensor:
        def mod(y: Any, b: Any, h: Any, t: Any, *_: Any) -> Any:
            of_head = RATES.exp().sum(1)[h] + torch.tensor([1.0, 2.0, 3.0, 4.0])[h] + torch.arange(H)[h]
            return y / (1.0 + number**2) * of_head + HALF**2 - 1.5 * HALF.item()

        return run(x, x, x, **{"k_mod" if run is linear_attention else "score_mod": mod})

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=True)
    for number in (0.5, 0.7):
        got, wanted = compiled(x, number), attend(x, number)
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=1e-6)
        pairs = zip(*(torch.autograd.grad(o.square().sum(), [RATES, HALF]) for o in (got, wanted)), strict=True)
        for mine, theirs in pairs:
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


class Rates(torch.nn.Module):
    def forward(self, y: Any, b: Any, h: Any, t: Any) -> Any:
        return y * A[h]


MODS = {
    "built in": torch.tanh,
    "of torch": torch.nn.functional.silu,
    "module": Rates(),
    "partial": functools.partial(lambda factor, y, b, h, t: factor * y * A[h], 2.0),
    "defaults": lambda y, b=None, h=None, t=None: y * 2.0 if b is None else y * A[h],
}


@pytest.mark.parametrize("name", MODS)
def test_how_many_arguments_a_mod_gets(name: str) -> None:
    x = inputs()["v"]
    run = lambda: linear_attention(x, x, x, k_mod=MODS[name])  # noqa: E731
    indices = grid(*x.shape)[:3] if name in ("module", "partial") else ()
    changed = MODS[name](x, *indices)
    torch.testing.assert_close(run(), linear_attention(x, changed, x), rtol=1e-5, atol=1e-5)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(), run())


@pytest.mark.parametrize("run", [linear_attention, attn_mlir.attention])
def test_a_device_where_the_tensors_are_not(run: Callable[..., Any]) -> None:
    """An error, as outside of torch.compile."""
    x = inputs()["v"]
    compiled = torch.compile(lambda device: run(x, x, x, device=device), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled("cpu"), run(x, x, x))
    with pytest.raises(torch._dynamo.exc.Unsupported, match="q is on cpu, but device='cuda' was asked for"):
        compiled("cuda")


@pytest.mark.parametrize("name", ["decay", "initial_state"])
def test_integers_are_refused(name: str) -> None:
    """They are outside of torch.compile, too: a decay of -0.5 became 0 before it got there."""
    x = inputs()
    given = {"decay": x["dt"], "initial_state": x["state"]}[name].int()
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=f"{name} has dtype torch.int32: use float32"):
        torch.compile(lambda value: linear_attention(x["q"], x["k"], x["v"], **{name: value}), fullgraph=True, backend="aot_eager")(given)


def test_the_backward_keeps_no_results() -> None:
    """As outside of torch.compile."""
    kept: list[str] = []

    def forward(graph: torch.fx.GraphModule, _: Any) -> Any:
        (returned,) = graph.graph.find_nodes(op="output")
        kept.extend(node.op for node in returned.args[0][1:])
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=forward, bw_compiler=lambda graph, _: make_boxed_func(graph.forward))
    x = {name: value.requires_grad_() for name, value in inputs().items()}
    given = [x[name] for name in ("q", "k", "v", "g")]
    o = torch.compile(lambda: linear_attention(*given), fullgraph=True, backend=backend)()
    (mine,) = torch.autograd.grad(o.square().sum(), x["k"])
    (known,) = torch.autograd.grad(linear_attention(*given).square().sum(), x["k"])
    assert set(kept) == {"placeholder"} and torch.equal(mine, known)


def test_a_segment_size_that_is_a_symbol() -> None:
    x = torch.randn(1, 1, 1030, 8)
    compiled = torch.compile(
        lambda size: linear_attention(x, x, x, A[:1], segment_size=size), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for size in (512, 1024):
        assert torch.equal(compiled(size), linear_attention(x, x, x, A[:1], segment_size=size))


def test_an_object_with_everything_fixed() -> None:
    attention = attn_mlir.LinearAttention(decay_mod=lambda g: g * -0.5, output_final_state=True)
    x = inputs()
    given = (x["q"], x["k"], x["v"], x["dt"], x["state"])
    results = torch.compile(attention, fullgraph=True, backend="aot_eager")(*given)
    assert all(torch.equal(a, b) for a, b in zip(results, attention(*given), strict=True))


@pytest.mark.parametrize("function", [mamba, other_layout])
def test_inductor(function: Callable[..., Any]) -> None:
    x = {name: value.requires_grad_() for name, value in inputs().items()}
    with torch._inductor.config.patch(force_disable_caches=True):  # a cached graph knows the strides of an earlier version
        results = torch.compile(function, fullgraph=True)(x)  # which checks the strides of what operators give
        results[0].square().sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(results, function(x), strict=True))


def test_gradients_have_the_order_of_the_layout() -> None:
    """Those of [B, T, H, D]: of decays of channels, too, without a copy to another order and back."""
    x = {name: value.transpose(1, 2).contiguous().requires_grad_() for name, value in inputs().items() if name in "qkvg"}
    found = torch.autograd.grad(attn_mlir.gla(x["q"], x["k"], x["v"], x["g"])[0].sum(), list(x.values()))
    assert all(gradient.is_contiguous() for gradient in found)
