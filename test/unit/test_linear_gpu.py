"""Linear attention from Python on an NVIDIA GPU: the ready-made functions, the engine, sequences in one, steps, torch.compile."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from attn_mlir import (
    CustomIO,
    LinearAttentionEngine,
    gla,
    lightning,
    linear_attention,
    linear_attention_step,
    mamba2,
    meta_tensor,
    retention_linear,
    simple_gla,
)
from attn_mlir.errors import UnsupportedError
from linear_reference import error, reference

pytestmark = pytest.mark.gpu
B, H, K, V = 2, 4, 128, 64
BOUND, BOUND_SINGLE = 0.004, 1.5e-6


def inputs(t: int, dtype: torch.dtype = torch.bfloat16, heads: int = H) -> dict[str, torch.Tensor]:
    """[B, T, H, D] on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device="cuda")

    found = {"q": randn(B, t, heads, K).to(dtype), "k": (randn(B, t, heads, K) * K**-0.5).to(dtype), "v": randn(B, t, H, V).to(dtype)}
    gates = {"g": functional.logsigmoid(randn(B, t, H) + 1.0), "gk": functional.logsigmoid(randn(B, t, H, K) + 1.0)}
    return found | gates | {"dt": randn(B, t, H).sigmoid() * 0.3, "A": -randn(H).abs() - 0.3, "state": randn(B, H, K, V), "D": randn(H)}


def bound(dtype: torch.dtype) -> float:
    """What errors may be with inputs of a dtype."""
    return BOUND_SINGLE if dtype == torch.float32 else BOUND


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.detach().cpu().double().transpose(1, 2) if x.dim() > 2 else x.detach().cpu().double()


def compare(run: Callable[..., Any], known: Callable[..., Any], x: dict[str, torch.Tensor], wanted: str) -> dict[str, float]:
    """Errors of o, the final state and the gradients of what `wanted` names; `known` takes float64 tensors on the CPU."""
    mine = {n: value.clone().requires_grad_(n in wanted.split()) for n, value in x.items()}
    theirs = {n: value.detach().cpu().double().requires_grad_(n in wanted.split()) for n, value in x.items()}
    results, expected = run(mine), known(theirs)
    weights = [torch.randn_like(result) for result in results]
    torch.autograd.backward(results, weights)
    torch.autograd.backward(expected, [weight.cpu().double() for weight in weights])
    found = {name: error(r.cpu(), e) for name, r, e in zip(("o", "final"), results, expected, strict=True)}
    return found | {f"d {n}": error(mine[n].grad.cpu(), theirs[n].grad) for n in wanted.split()}  # type: ignore[union-attr]


def pair(x: dict[str, torch.Tensor], decay: Any, scale: float | None = None) -> Any:
    q, k, v = (x[n].transpose(1, 2) for n in "qkv")
    o, final = reference(q, k, v, decay, scale, initial_state=x["state"])
    return o.transpose(1, 2), final


CASES: dict[str, tuple[Any, Any, str]] = {
    "simple_gla": (lambda x: (simple_gla, {"g": x["g"]}), lambda x: x["g"].transpose(1, 2), "g"),
    "retention": (lambda x: (retention_linear, {}), lambda x: torch.log1p(-torch.exp2(-5.0 - torch.arange(H, dtype=torch.float64))), ""),
    "lightning": (lambda x: (lightning, {"layer_idx": 1, "num_layers": 4}), lambda x: -6.0 / H * torch.arange(H, dtype=torch.float64), ""),
    "gla": (lambda x: (gla, {"g": x["gk"]}), lambda x: x["gk"].transpose(1, 2), "gk"),
}


@pytest.mark.parametrize("t", [1, 130])
@pytest.mark.parametrize("case", CASES)
def test_ready_made(case: str, t: int) -> None:
    choose, decay, wanted = CASES[case]

    def run(x: dict[str, torch.Tensor]) -> Any:
        function, options = choose(x)
        return function(x["q"], x["k"], x["v"], initial_state=x["state"], output_final_state=True, **options)

    found = compare(run, lambda x: pair(x, decay(x)), inputs(t), f"q k v state {wanted}")
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize(("low", "high"), [(-0.011, -0.009), (-1.1, -0.9), (-3.3, -2.7), (-6.6, -5.4), (-11.0, -9.0), (-10.0, 0.0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["g", "gk"])
def test_strong_decays(name: str, dtype: torch.dtype, low: float, high: float) -> None:
    """The decays' own gradient is as precise as the others, also where it is exp(-10) of them."""
    x = inputs(300, dtype)
    x[name] = low + (high - low) * torch.rand_like(x[name])
    function = simple_gla if name == "g" else gla

    def run(x: dict[str, torch.Tensor]) -> Any:
        return function(x["q"], x["k"], x["v"], x[name], initial_state=x["state"], output_final_state=True)

    found = compare(run, lambda x: pair(x, x[name].transpose(1, 2)), x, f"q k v state {name}")
    assert max(found.values()) < BOUND, found


@pytest.mark.parametrize("of_skip", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_mamba2(dtype: torch.dtype, of_skip: torch.dtype) -> None:
    """With D in each dtype: its gradient is a sum of products that are not rounded."""

    def run(x: dict[str, torch.Tensor]) -> Any:
        return mamba2(x["v"], x["dt"], x["A"], x["k"], x["q"], 256, D=x["D"], initial_states=x["state"].mT, return_final_states=True)

    def known(x: dict[str, torch.Tensor]) -> Any:
        y, final = pair({**x, "v": x["v"] * x["dt"][..., None]}, (x["dt"] * x["A"]).transpose(1, 2), 1.0)
        return y + x["v"] * x["D"][:, None], final.mT

    x = inputs(300, dtype, heads=1)
    found = compare(run, known, x | {"D": x["D"].to(of_skip)}, "q k v dt A D state")
    assert found.pop("d D") < {torch.bfloat16: BOUND, torch.float16: 5e-4, torch.float32: BOUND_SINGLE}[of_skip], found
    # One number a head, the sum over all positions, which may cancel.
    assert found.pop("d A") < (2e-5 if dtype == torch.float32 else BOUND), found
    assert max(found.values()) < bound(dtype), found


@pytest.mark.parametrize(("dtype", "curved"), [(torch.bfloat16, False), (torch.float16, True), (torch.float32, False)], ids=str)
def test_a_skip_for_each_position(dtype: torch.dtype, curved: bool) -> None:
    """In sequences by cu_seqlens, of few heads of q and k; with and without a v_mod that multiplies rows."""
    x, bounds = {n: value[:1] if value.dim() > 2 else value for n, value in inputs(260, dtype, heads=1).items()}, [0, 64, 64, 191, 260]
    weights = torch.randn(1, H, 260, V, device="cuda").to(dtype)

    def gradients(function: Callable[..., Any], x: dict[str, torch.Tensor], offsets: Any) -> dict[str, torch.Tensor]:
        leaves = {n: x[n].transpose(1, 2).contiguous().requires_grad_() for n in ("q", "k", "v", "g", "dt")}
        q, k, v, g, dt = leaves.values()
        row, other = lambda y, b, h, t: y * dt[b, h, t], lambda y: y * torch.exp(-y * y)
        made = function(q, k, v, g, v_mod=other if curved else row, skip_mod=lambda b, h, t: 1.0 - dt[b, h, t], cu_seqlens=offsets)
        o = made[0] if isinstance(made, tuple) else made
        return {"o": o} | dict(zip(leaves, torch.autograd.grad(o, list(leaves.values()), weights.to(o)), strict=True))

    mine = gradients(linear_attention, x, torch.tensor(bounds, device="cuda", dtype=torch.int32))
    theirs = gradients(reference, {n: value.cpu().double() for n, value in x.items()}, bounds)
    found = {name: error(mine[name].cpu(), known) for name, known in theirs.items()}
    assert max(found.values()) < bound(dtype), found


def test_the_same_bits_in_every_run() -> None:
    """dA and d D add up what all positions give; the kernels but those of these sums are those of `test_mamba2`."""
    x, weights = inputs(300, torch.float32, heads=1), torch.randn(B, 300, H, V, device="cuda")
    mine = {n: x[n].clone().requires_grad_() for n in ("q", "k", "v", "dt", "A", "D", "state")}

    def gradients() -> tuple[torch.Tensor, ...]:
        v, dt, a, k, q = (mine[n] for n in ("v", "dt", "A", "k", "q"))
        y, _ = mamba2(v, dt, a, k, q, 256, D=mine["D"], initial_states=mine["state"].mT, return_final_states=True)
        return torch.autograd.grad(y, list(mine.values()), weights)

    usual = gradients()
    torch.use_deterministic_algorithms(True)
    try:
        first, second = gradients(), gradients()
    finally:
        torch.use_deterministic_algorithms(False)
    for name, a, b, known in zip(mine, first, second, usual, strict=True):
        assert torch.equal(a, b), name
        assert error(a.cpu(), known.cpu().double()) < (2e-5 if name == "A" else BOUND_SINGLE), name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_engine(dtype: torch.dtype) -> None:
    t = 200
    x = inputs(t, dtype, heads=1)
    metas = [meta_tensor(B, heads, t, dim, dtype=dtype) for heads, dim in ((1, K), (1, K), (H, V))]
    mod = LinearAttentionEngine(
        metas,
        decay_mod=lambda g, custom_io: g * custom_io.input_tensors["A"],
        v_mod=lambda v, custom_io: v * custom_io.input_tensors["dt"],
        custom_io=CustomIO({"A": (1, "heads"), "dt": ("batch", "heads", "seq_len")}),
    )  # fmt: skip
    q, k, v, dt = (x[n].transpose(1, 2) for n in ("q", "k", "v", "dt"))
    o = mod(q, k, v, dt, x["A"][None], dt)
    d, a = turned(x["dt"]), turned(x["A"])
    assert error(o.cpu(), reference(turned(x["q"]), turned(x["k"]), turned(x["v"]) * d[..., None], d * a[:, None])[0]) < bound(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_sequences_in_one_and_their_steps(dtype: torch.dtype) -> None:
    x, bounds = {n: value[:1] if value.dim() > 2 else value for n, value in inputs(260, dtype).items()}, [0, 64, 64, 191, 260]
    q, k, v, g = (x[n].transpose(1, 2) for n in ("q", "k", "v", "g"))
    offsets = torch.tensor(bounds, device="cuda", dtype=torch.int32)
    o, final = linear_attention(q, k, v, g, cu_seqlens=offsets, output_final_state=True)
    known, states = reference(*(turned(x[n]) for n in ("q", "k", "v", "g")), cu_seqlens=bounds)
    assert error(o.cpu(), known) < bound(dtype)
    assert error(final.cpu(), states) < bound(dtype)
    state, steps = None, []
    for i in range(191, 200):
        step, state = linear_attention_step(q[:, :, i], k[:, :, i], v[:, :, i], g[:, :, i], state)
        steps.append(step)
    assert error(torch.stack(steps, 2).cpu(), known[:, :, 191:200]) < bound(dtype)


def test_compiled_by_torch() -> None:
    def run(x: dict[str, torch.Tensor]) -> Any:
        return mamba2(x["v"], x["dt"], x["A"], x["k"], x["q"], D=x["D"], dt_softplus=True, return_final_states=True)

    mine, theirs = ({n: value.requires_grad_() for n, value in inputs(130).items()} for _ in range(2))
    results, known = torch.compile(run, fullgraph=True)(mine), run(theirs)
    torch.autograd.backward(results, [torch.ones_like(r) for r in results])
    torch.autograd.backward(known, [torch.ones_like(r) for r in known])
    for name in ("q", "k", "v", "dt", "A", "D"):
        assert error(mine[name].grad.cpu(), theirs[name].grad.cpu().double()) < BOUND, name  # type: ignore[union-attr]


def test_float64_says_what_to_do() -> None:
    x = inputs(10, torch.float64)
    with pytest.raises(UnsupportedError, match="take 16-bit and f32 inputs"):
        simple_gla(x["q"], x["k"], x["v"], x["g"])
