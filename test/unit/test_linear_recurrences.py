"""The ready-made linear attentions against their recurrences in float64: values, gradients, states, sequences in one."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import attn_mlir
from attn_mlir import gla, lightning, mamba2, retention_linear, simple_gla
from attn_mlir.errors import ArgumentError
from linear_reference import check_errors, error, reference

B, T, H, K, V = 2, 75, 4, 16, 8
TOLERANCE = 1e-6
Tensors = dict[str, torch.Tensor]


def tensors(b: int = B, t: int = T) -> Tensors:
    """Inputs in [B, T, H, D]."""
    generator = torch.Generator().manual_seed(0)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return {
        "q": randn(b, t, H, K), "k": randn(b, t, H, K), "v": randn(b, t, H, V), "state": randn(b, H, K, V),
        "g": functional.logsigmoid(randn(b, t, H)), "gk": functional.logsigmoid(randn(b, t, H, K)), "gamma": -randn(H).abs(),
        "C": randn(b, t, 2, K), "B": randn(b, t, 2, K), "dt": randn(b, t, H), "A": -randn(H).abs(), "D": randn(H), "z": randn(b, t, H, V),
        "bias": randn(H), "states": randn(b, H, V, K), "wide": randn(H, V),
    }  # fmt: skip


def turned(*given: torch.Tensor | None) -> list[Any]:
    return [x if x is None or x.dim() < 3 else x.transpose(1, 2) for x in given]


def expected_pair(q: Any, k: Any, v: Any, decay: Any, scale: float | None = None, **options: Any) -> list[torch.Tensor]:
    o, final = reference(*turned(q, k, v, decay), scale=scale, **options)
    return [o.transpose(1, 2), final]


def expected_mamba(x: Tensors, limit: tuple[float, float] = (0.0, torch.inf), wide: bool = False, gate: bool = True) -> list[torch.Tensor]:
    dt = functional.softplus(x["dt"] + x["bias"]).clamp(*limit)
    state = x["states"].transpose(2, 3)
    y, final = expected_pair(x["C"], x["B"], x["v"] * dt[..., None], dt * x["A"], 1.0, initial_state=state)
    y = y + x["v"] * (x["wide"] if wide else x["D"][:, None])
    return [y * functional.silu(x["z"]) if gate else y, final.transpose(2, 3)]


def run_mamba(x: Tensors, **options: Any) -> Any:
    given: dict[str, Any] = {"D": x["D"], "z": x["z"], **options}
    return mamba2(
        x["v"], x["dt"], x["A"], x["B"], x["C"], 64, dt_bias=x["bias"], initial_states=x["states"], dt_softplus=True,
        return_final_states=True, **given,
    )  # fmt: skip


def compare(run: Callable[[Tensors], Any], expected: Callable[[Tensors], Any], x: Tensors, wanted: str) -> dict[str, float]:
    """The errors of both results and of the gradients of what `wanted` names."""
    mine = {name: value.clone().requires_grad_(name in wanted.split()) for name, value in x.items()}
    theirs = {name: value.double().requires_grad_(name in wanted.split()) for name, value in x.items()}
    results, known = run(mine), expected(theirs)
    generator = torch.Generator().manual_seed(7)
    weights = [torch.randn(r.shape, generator=generator) for r in results]
    torch.autograd.backward(results, weights)
    torch.autograd.backward(known, [weight.double() for weight in weights])
    found = {str(i): error(r, e) for i, (r, e) in enumerate(zip(results, known, strict=True))}
    return found | {f"d {name}": error(mine[name].grad, theirs[name].grad) for name in wanted.split()}


RETENTION = torch.log1p(-torch.exp2(-5.0 - torch.arange(H, dtype=torch.float64)))
LIGHTNING = -8.0 / H * (1 - 3 / 12) * torch.arange(H, dtype=torch.float64)
PAIRS: dict[str, tuple[Any, Any, str]] = {
    "gates": (lambda x: (simple_gla, {"g": x["g"]}), lambda x: x["g"], "g"),
    "constant": (lambda x: (simple_gla, {"g_gamma": x["gamma"]}), lambda x: x["gamma"], "gamma"),
    "both": (lambda x: (simple_gla, {"g": x["g"], "g_gamma": x["gamma"]}), lambda x: x["g"] + x["gamma"], "g gamma"),
    "retention": (lambda x: (retention_linear, {}), lambda x: RETENTION, ""),
    "lightning": (lambda x: (lightning, {"layer_idx": 3, "num_layers": 12}), lambda x: LIGHTNING, ""),
    "slopes": (lambda x: (lightning, {"slopes": -x["gamma"]}), lambda x: x["gamma"], "gamma"),
    "gla": (lambda x: (gla, {"g": x["gk"]}), lambda x: x["gk"], "gk"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_values_and_gradients(name: str) -> None:
    choose, decay, wanted = PAIRS[name]
    scale = 1.0 if name == "retention" else None

    def run(x: Tensors) -> Any:
        function, options = choose(x)
        return function(x["q"], x["k"], x["v"], scale=scale, initial_state=x["state"], output_final_state=True, **options)

    def expected(x: Tensors) -> Any:
        return expected_pair(x["q"], x["k"], x["v"], decay(x), scale, initial_state=x["state"])

    found = compare(run, expected, tensors(), f"q k v state {wanted}")
    check_errors(found)


def test_mamba2_with_everything() -> None:
    found = compare(run_mamba, expected_mamba, tensors(), "C B v dt A D z bias states")
    check_errors(found)


def test_mamba2_with_limits_and_a_wide_skip() -> None:
    limit = (0.3, 1.5)
    found = compare(
        lambda x: run_mamba(x, D=x["wide"], z=None, dt_limit=limit),
        lambda x: expected_mamba(x, limit, True, False),
        tensors(),
        "v dt wide bias",
    )
    check_errors(found)


@pytest.mark.parametrize("wide", [False, True])
def test_gradient_of_the_skip_of_mamba2_is_summed_up_in_f32(wide: bool) -> None:
    """Of products rounded to 16 bits the sum would be off by 1e-3 of its size, and more where terms cancel."""
    x = {name: value.bfloat16() if name in ("v", "B", "C") else value for name, value in tensors(t=500).items()}
    skip = x["wide" if wide else "D"].clone().requires_grad_()
    y = mamba2(x["v"], x["dt"].exp(), x["A"], x["B"], x["C"], D=skip)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).bfloat16()
    (found,) = torch.autograd.grad(y, skip, dy)
    assert found.dtype == torch.float32
    assert error(found, (dy.double() * x["v"].double()).sum((0, 1) if wide else (0, 1, 3))) < TOLERANCE


def test_mamba2_with_a_skip_for_each_of_a_batch() -> None:
    x = tensors()
    ds = torch.stack([x["D"], -2 * x["D"]])

    def loss(d: torch.Tensor) -> torch.Tensor:
        return (mamba2(x["v"], x["dt"].exp(), x["A"], x["B"], x["C"], D=d) * x["z"]).sum()

    found = torch.func.vmap(torch.func.grad(loss))(ds)
    assert error(found, (x["z"].double() * x["v"].double()).sum((0, 1, 3)).expand(2, H)) < TOLERANCE


def test_mamba2_with_numbers_of_sequences() -> None:
    """As each sequence alone: the initial state goes to the first one, the final one comes from the last; gradients, too."""
    x, lengths = tensors(), ([75], [1, 17, 3, 54])
    seq_idx = torch.stack([torch.repeat_interleave(torch.arange(len(n), dtype=torch.int32) % 2, torch.tensor(n)) for n in lengths])

    def run(x: Tensors) -> Any:
        return run_mamba(x, seq_idx=seq_idx)

    def expected(x: Tensors) -> Any:
        batches = []
        for entry, counts in enumerate(lengths):
            parts, start = [], 0
            for count in counts:
                own = {n: v if v.dim() == 1 or n == "wide" else v[entry : entry + 1] for n, v in x.items()}
                own = {n: v[:, start : start + count] if v.dim() > 2 and n not in ("state", "states") else v for n, v in own.items()}
                own["states"] = own["states"] * (start == 0)
                parts.append(expected_mamba(own))
                start += count
            batches.append([torch.cat([y for y, _ in parts], 1), parts[-1][1]])
        return [torch.cat(values) for values in zip(*batches, strict=True)]

    check_errors(compare(run, expected, x, "C B v dt A D z bias states"))


def test_mamba2_alone_returns_y() -> None:
    x = tensors()
    dt = x["dt"].exp()
    y = mamba2(x["v"], dt, x["A"], x["B"], x["C"])
    known = expected_pair(x["C"].double(), x["B"].double(), (x["v"] * dt[..., None]).double(), dt.double() * x["A"], 1.0)[0]
    assert y.shape == x["v"].shape and y.dtype == x["v"].dtype
    assert error(y, known) < TOLERANCE


def test_without_a_final_state_it_is_none() -> None:
    x = tensors()
    o, final = simple_gla(x["q"], x["k"], x["v"], x["g"])
    assert final is None
    assert error(o, expected_pair(x["q"], x["k"], x["v"], x["g"])[0]) < TOLERANCE


def test_sequences_in_one() -> None:
    x, bounds = tensors(b=1, t=90), [0, 1, 40, 90]
    offsets = torch.tensor(bounds)
    o, final = gla(x["q"], x["k"], x["v"], x["gk"], output_final_state=True, cu_seqlens=offsets)
    known, state = expected_pair(x["q"], x["k"], x["v"], x["gk"], cu_seqlens=bounds)
    assert error(o, known) < TOLERANCE
    assert error(final, state) < TOLERANCE
    y, final = mamba2(x["v"], x["dt"].exp(), x["A"], x["B"], x["C"], cu_seqlens=offsets, return_final_states=True)
    dt = x["dt"].exp()
    known, state = expected_pair(x["C"], x["B"], x["v"] * dt[..., None], dt * x["A"], 1.0, cu_seqlens=bounds)
    assert error(y, known) < TOLERANCE
    assert error(final.mT, state) < TOLERANCE


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (
            lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"], x["C"], seq_idx=x["A"]),
            ArgumentError,
            "seq_idx must be a tensor of shape [2, 75], got shape [4]",
        ),
        (
            lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"], x["C"], seq_idx=x["A"].expand(2, 75, 4)[..., 0]),
            ArgumentError,
            "seq_idx has dtype torch.float32: use int32 or int64",
        ),
        (
            lambda x: mamba2(x["v"][:1], x["dt"][:1], x["A"], x["B"][:1], x["C"][:1], seq_idx=x["A"], cu_seqlens=torch.tensor([0, 75])),
            ArgumentError,
            "seq_idx and cu_seqlens both say where sequences begin: pass one of them",
        ),
        (lambda x: mamba2(x["v"], x["dt"].mT, x["A"], x["B"], x["C"]), ArgumentError, "dt must be a tensor of shape [2, 75, 4], got shape"),
        (lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"], x["C"], D=x["dt"]), ArgumentError, "D must be a tensor of shape [4] or [4, 8]"),
        (lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"], x["C"], z=x["q"]), ArgumentError, "z must be a tensor of shape [2, 75, 4, 8]"),
        (lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"][:, 5:], x["C"]), ArgumentError, "B must be a tensor of shape [2, 75, G, N], got"),
        (lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"], x["A"]), ArgumentError, "C must be a tensor of shape [2, 75, G, N], got"),
        (
            lambda x: mamba2(x["v"], x["dt"], x["A"], x["B"], x["C"], initial_states=x["A"]),
            ArgumentError,
            "initial_states must be a tensor of shape [2, 4, 8, 16], got shape [4]",
        ),
        (
            lambda x: gla(x["q"], x["k"], x["v"], x["q"][..., :3].expand(-1, -1, 4, -1)),
            ArgumentError,
            "g must be a tensor of shape [2, 75, 4,",
        ),
        (lambda x: gla(x["q"], x["k"], x["v"], x["g"]), ArgumentError, "g must be a tensor of shape [B, T, H, K], got shape [2, 75, 4]"),
        (lambda x: simple_gla(x["q"], x["k"], x["v"], g_gamma=x["g"]), ArgumentError, "g_gamma must be a tensor of shape [4]"),
        (
            lambda x: simple_gla(x["q"], x["k"], x["v"], x["g"].mT),
            ArgumentError,
            "g must be a tensor of shape [2, 75, 4], got shape [2, 4, 75]",
        ),
        (lambda x: gla(x["q"], x["k"], x["v"], x["q"].mT), ArgumentError, "g must be a tensor of shape [2, 75, 4,"),
        (lambda x: lightning(x["q"], x["k"], x["v"], 4, 4), ArgumentError, "layer_idx must be 0 to num_layers - 1, got 4 of 4 layers"),
        (lambda x: lightning(x["q"], x["k"], x["v"], slopes=x["g"]), ArgumentError, "slopes must be a tensor of shape [4]"),
        (lambda x: retention_linear(x["q"], x["k"], x["g"]), ArgumentError, "v must have 4 dimensions"),
        (lambda x: lightning(x["q"], x["k"], x["v"], 0.5), ArgumentError, "layer_idx must be 0 to num_layers - 1, got 0.5 of 1 layers"),  # type: ignore[arg-type]
        (lambda x: simple_gla(x["q"], x["k"], x["v"], g_gamma=x["gamma"].long()), ArgumentError, "g_gamma has dtype torch.int64"),
        (lambda x: gla(x["q"], x["k"], x["v"], x["gk"], output_final_state="no"), ArgumentError, "must be True or False, got 'no'"),  # type: ignore[arg-type]
    ],
)
def test_mistakes(call: Callable[[Tensors], Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        call(tensors())


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"dt_limit": (0.1,)}, "dt_limit must be (low, high) with 0 <= low <= high, where high may be inf, got (0.1,)"),
        ({"dt_limit": (1.0, 0.1)}, "dt_limit must be (low, high)"),
        ({"dt_limit": (-1.0, 0.1)}, "dt_limit must be (low, high)"),
        ({"dt_limit": (torch.nan, 1.0)}, "dt_limit must be (low, high)"),
        ({"dt_limit": 0.1}, "dt_limit must be (low, high)"),
        ({"chunk_size": torch.ones(H)}, "chunk_size must be a positive number or None, got shape [4]"),
        ({"dt_softplus": "no"}, "dt_softplus must be True or False, got 'no'"),
        ({"D": torch.ones(H).bool()}, "D has dtype torch.bool: use float32"),
        ({"A": torch.ones(H).cfloat()}, "A has dtype torch.complex64: use float32"),
        ({"dt_bias": torch.ones(H, device="meta")}, "dt_bias is on meta, but other inputs are on cpu"),
        ({"B": torch.ones(B, T, 2, K).double()}, "B has dtype torch.float64 but x has torch.float32"),
        ({"x": torch.ones(B, T, H, V).int()}, "x has dtype torch.int32: use float32, float16, bfloat16 or float64"),
        ({"x": torch.ones(B, T, H, 577)}, "x has P = 577; it must be 1 to 576"),
        ({"B": torch.ones(B, T, 1, 577), "C": torch.ones(B, T, 1, 577)}, "B has N = 577; it must be 1 to 576"),
        ({"cu_seqlens": torch.tensor([0, T])}, "with cu_seqlens all sequences are in one, of batch size 1, but the batch size is 2"),
        ({"C": torch.ones(B, T, 3, K)}, "C must be a tensor of shape [2, 75, G, 16], with G dividing the 4 heads of x, got shape"),
        ({"C": torch.ones(B, T, 2, K + 1)}, "C must be a tensor of shape [2, 75, G, 16], with G dividing"),
        ({"initial_states": torch.ones(B + 1, H, V, K)}, "initial_states must be a tensor of shape [2, 4, 8, 16], got shape [3, 4, 8, 16]"),
    ],
)
def test_mistakes_in_mamba2(given: dict[str, Any], text: str) -> None:
    x = tensors()
    with pytest.raises(ArgumentError, match=re.escape(text)):
        mamba2(**{"x": x["v"], **{name: x[name] for name in ("dt", "A", "B", "C")}, **given})


def test_steps_of_mamba2_are_not_negative() -> None:
    """Without softplus, too: the usual dt_limit is (0, inf)."""
    x = tensors()
    x["dt"].requires_grad_()
    y = mamba2(x["v"], x["dt"], x["A"], x["B"], x["C"])
    assert error(y, mamba2(x["v"], x["dt"].clamp(min=0.0), x["A"], x["B"], x["C"])) == 0.0
    (gradient,) = torch.autograd.grad(y.sum(), x["dt"])
    assert ((gradient == 0.0) == (x["dt"] < 0.0)).all()


def test_names_of_the_package() -> None:
    assert attn_mlir.recurrences.mamba2 is attn_mlir.mamba2 is mamba2
