"""Compositions of torch's transforms: what comes out is what the formula gives in float64, or an UnsupportedError; never another number."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import attn_mlir
import engine_helpers as eh
from attn_mlir import OnlineFunc, OnlineSoftmax
from attn_mlir.errors import UnsupportedError
from transform_cases import Function, composed, probe, scalar

N = 3


_GENERATOR = torch.Generator().manual_seed(7)
KNOWN = {name: torch.randn(1, 2, N, 4, dtype=torch.float64, generator=_GENERATOR) * 0.7 for name in "qkv"}
KNOWN["w"] = torch.tensor([0.7, -0.4], dtype=torch.float64)


def attend(q: Any, k: Any, v: Any, w: Any, **options: Any) -> Any:
    score_mod = lambda s, b, h, i, j: s * w[h] + w[h] * (j - i)  # noqa: E731
    return attn_mlir.attention(q, k, v, score_mod=score_mod, mask_mod=attn_mlir.masks.causal(), **options)


def formula(q: Any, k: Any, v: Any, w: Any, return_lse: bool = False) -> Any:
    i, j = torch.arange(N)[:, None], torch.arange(N)
    scores = (q @ k.mT * 0.5) * w[:, None, None] + w[:, None, None] * (j - i)
    scores = scores.masked_fill(j > i, -torch.inf)
    o = scores.softmax(-1) @ v
    return (o, scores.logsumexp(-1)) if return_lse else o


def linear(q: Any, k: Any, v: Any, w: Any) -> Any:
    return attn_mlir.linear_attention(q, k, v, decay_mod=lambda g, b, h, t: -w[h] * w[h])


def linear_formula(q: Any, k: Any, v: Any, w: Any) -> Any:
    t, s = torch.arange(N)[:, None], torch.arange(N)
    decays = torch.where(t >= s, (-w.square()[:, None, None] * (t - s).clamp(min=0)).exp(), 0.0)
    return (q @ k.mT * decays) @ v


def of(function: Callable[..., Any], name: str, **options: Any) -> Function:
    """Four numbers as a function of one of its tensors."""
    return lambda x: function(**{**KNOWN, name: x}, **options).sum((0, 2))[:, :2]


RIGHT = """
grad; vjp; jvp; jacrev; jacfwd; hessian; vmap; scaled; linearize; graph; dual; dual_backward; checkpoint; call; functional.jvp
functional.jacobian; functional.hessian; functional.vhp
grad grad; grad vjp; grad jvp; grad jacrev; grad jacfwd; grad vmap; grad scaled; grad graph; grad call; graph scaled
grad functional.jacobian
jvp grad; jvp vjp; jvp jacrev; jvp vmap; jvp scaled; jvp checkpoint; jvp call
jacfwd grad; jacfwd vjp; jacfwd jacrev; jacfwd vmap; jacrev jvp; jacrev jacfwd; jacrev jacrev; jacrev vmap
vmap grad; vmap jvp; vmap jacfwd; vmap hessian; vmap vmap; scaled grad; scaled jvp; scaled jacfwd; scaled scaled
linearize grad; linearize vmap; graph graph; graph jvp; graph jacrev; graph vmap; graph checkpoint
dual vmap; dual checkpoint; dual grad; dual_backward vmap; dual_backward scaled; functional.hessian vmap
vmap grad jvp; vmap jvp grad; grad jvp vmap; jvp grad vmap; scaled jvp grad; jvp scaled grad; grad scaled jvp; call grad jvp
""".strip()
UNSUPPORTED = """
jvp jvp; jvp jacfwd; jacfwd jvp; jacfwd jacfwd; jvp vmap jvp; jvp scaled jvp; vmap jvp jvp; jacfwd vmap jacfwd
jvp hessian; hessian grad; grad hessian; grad grad grad; jvp grad grad; grad jvp grad; graph graph graph; dual_backward grad; jacrev hessian
vectorize; forward-mode; vectorize vmap; functional.hvp
""".strip()
ONCE = "grad; vjp; jacrev; vmap; scaled; graph; checkpoint; call; vmap grad; scaled grad; grad vmap; jacrev vmap; graph vmap; vmap vmap"
LINEAR_UNSUPPORTED = """
jvp; jacfwd; hessian; linearize; dual; dual_backward; grad grad; grad jvp; jvp grad; jvp jvp; jacfwd jacfwd; vmap jvp; jvp vmap; jvp scaled
dual grad; functional.jvp; functional.hvp; graph graph; scaled jvp; jvp vmap jvp; vectorize; forward-mode
""".strip()


def names_of(table: str) -> list[str]:
    return [name.strip() for line in table.splitlines() for name in line.split(";")]


def check(names: str, ours: Function, dense: Function, x: torch.Tensor) -> None:
    wanted = composed(names, dense)(x)
    assert wanted.abs().max() > 1e-4, names
    found = composed(names, ours)(x)
    torch.testing.assert_close(found.detach(), wanted.detach(), rtol=1e-9, atol=1e-10, msg=lambda text: f"{names}: {text}")


def refuse(names: str, ours: Function, x: torch.Tensor) -> None:
    try:
        composed(names, ours)(x)
    except UnsupportedError:
        return
    pytest.fail(f"{names}: nothing was raised")


@pytest.mark.parametrize("names", names_of(RIGHT))
def test_compositions_that_are_right(names: str) -> None:
    check(names, of(attend, "w"), of(formula, "w"), KNOWN["w"])


@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_mixed_derivatives_by_the_inputs(name: str) -> None:
    for names in ("jvp grad", "grad jvp", "dual_backward"):
        check(names, of(attend, name), of(formula, name), KNOWN[name])


@pytest.mark.parametrize("names", names_of(UNSUPPORTED))
def test_compositions_that_are_refused(names: str) -> None:
    refuse(names, of(attend, "w"), KNOWN["w"])


def test_linear_attention() -> None:
    for name in ("w", "q"):
        for names in names_of(ONCE) if name == "w" else ("grad", "vmap grad"):
            check(names, of(linear, name), of(linear_formula, name), KNOWN[name])
        for names in names_of(LINEAR_UNSUPPORTED) if name == "w" else ("jvp", "grad grad"):
            refuse(names, of(linear, name), KNOWN[name])


@pytest.mark.parametrize("names", ["compile jvp", "compile grad", "compile vmap", "dual compile", "jvp compile", "grad compile"])
def test_compositions_with_torch_compile(names: str) -> None:
    check(names, of(attend, "w"), of(formula, "w"), KNOWN["w"])
    if names in ("compile jvp", "dual compile", "jvp compile"):
        refuse(names, of(linear, "w"), KNOWN["w"])
    else:
        check(names, of(linear, "w"), of(linear_formula, "w"), KNOWN["w"])


def test_a_graph_made_before_takes_no_tangents() -> None:
    """A graph that was compiled without a dual level must not be used within one as if nothing were different."""
    compiled, x = torch.compile(of(attend, "w"), backend="aot_eager"), KNOWN["w"]
    compiled(x)
    with forward_ad.dual_level():
        with pytest.raises(UnsupportedError, match="takes no tensors with tangents"):
            compiled(forward_ad.make_dual(x, probe(x)))


PAIRS = [("q", "k"), ("w", "v"), ("v", "w"), ("k", "k")]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_derivatives_of_different_arguments(first: str, second: str) -> None:
    """Forward mode by one argument of reverse mode by another one, and the other way round; twice forward mode is refused."""

    def at(function: Callable[..., Any], **changed: Any) -> Any:
        return function(**{**KNOWN, **changed})

    def forward_over_reverse(f: Callable[..., Any]) -> Any:
        gradient = lambda x: grad(lambda y: at(f, **{first: x, second: y} if first != second else {first: y + x}).square().sum())  # noqa: E731
        return jvp(lambda x: gradient(x)(KNOWN[second]), (KNOWN[first],), (probe(KNOWN[first]),))[1]

    def reverse_over_forward(f: Callable[..., Any]) -> Any:
        def change(x: torch.Tensor) -> torch.Tensor:
            run = lambda y: at(f, **{first: x, second: y} if first != second else {first: y + x})  # noqa: E731
            o, moved = jvp(run, (KNOWN[second],), (probe(KNOWN[second]) * x.sum(),))[:2]
            return (o * moved).sum()

        return grad(change)(KNOWN[first])

    def forward_over_forward(f: Callable[..., Any]) -> Any:
        run = lambda x, y: at(f, **{first: x, second: y} if first != second else {first: y + x})  # noqa: E731
        inner = lambda x: jvp(lambda y: run(x, y), (KNOWN[second],), (probe(KNOWN[second]),))[1]  # noqa: E731
        return jvp(inner, (KNOWN[first],), (probe(KNOWN[first]),))[1]

    for derivative in (forward_over_reverse, reverse_over_forward):
        torch.testing.assert_close(derivative(attend), derivative(formula), rtol=1e-9, atol=1e-10)
    with pytest.raises(UnsupportedError, match="use reverse mode for one of the two"):
        forward_over_forward(attend)


def test_tangents_of_the_outer_level_alone() -> None:
    """The inner transform concerns what comes after the attention: tangents that pass it are those of the level outside."""
    run = lambda f: jvp(lambda x: grad(lambda z: (of(f, "w")(x) * z).sum())(torch.tensor(2.0).double()), (KNOWN["w"],), (KNOWN["w"],))  # noqa: E731
    torch.testing.assert_close(run(attend), run(formula))
    assert run(formula)[1].abs() > 1e-3
    inner = lambda f: lambda x: jvp(lambda z: of(f, "w")(x) * z, (torch.tensor(2.0).double(),), (torch.tensor(1.0).double(),))[1]  # noqa: E731
    for f in (attend, formula):
        torch.testing.assert_close(jvp(inner(f), (KNOWN["w"],), (KNOWN["w"],)), jvp(of(formula, "w"), (KNOWN["w"],), (KNOWN["w"],)))


def test_row_outputs() -> None:
    """With the gradients and tangents of o, of lse, or of both."""
    for weights in ((0.0, 1.0), (1.0, -2.0)):

        def both(f: Callable[..., Any], weights: tuple[float, float] = weights) -> Function:
            def run(x: torch.Tensor) -> torch.Tensor:
                o, lse = f(**{**KNOWN, "k": x}, return_lse=True)
                return sum(weight * y for weight, y in zip(weights, (o.sum(-1), lse), strict=True) if weight)  # type: ignore[return-value]

            return run

        for names in ("jvp grad", "grad jvp", "graph graph"):
            check(names, both(attend), both(formula), KNOWN["k"])


def test_layouts_strides_and_types() -> None:
    """Tangents that are not contiguous, or zeros without memory, of tensors [B, S, H, D]."""
    dtype, tolerance = torch.bfloat16, 2e-2
    x = KNOWN["q"].transpose(1, 2).to(dtype).contiguous()
    k, v = (KNOWN[name].to(dtype).transpose(1, 2) for name in "kv")
    ours = lambda x: attn_mlir.attention(x, k, v, layout="bshd")  # noqa: E731

    def dense(x: torch.Tensor) -> torch.Tensor:
        q, key, value = (y.double().transpose(1, 2) for y in (x, k, v))
        return ((q @ key.mT * 0.5).softmax(-1) @ value).transpose(1, 2)

    changes = [probe(KNOWN["q"]).to(dtype).transpose(1, 2), torch.ones((), dtype=dtype).expand(x.shape), torch.zeros_like(x)]
    for change in changes:
        found = [
            jvp(ours, (x,), (change,))[1],
            jvp(grad(scalar(ours)), (x,), (change,))[1],
            grad(lambda y, c=change: jvp(ours, (y,), (c,))[1].sum())(x),
        ]
        exact = (x.double(), change.double())
        wanted = [
            jvp(dense, exact[:1], exact[1:])[1], jvp(grad(scalar(dense)), exact[:1], exact[1:])[1],
            grad(lambda y, c=exact[1]: jvp(dense, (y,), (c,))[1].sum())(exact[0]),
        ]  # fmt: skip
        for made, expected in zip(found, wanted, strict=True):
            assert made.dtype == dtype
            torch.testing.assert_close(made.double(), expected, rtol=0, atol=tolerance * max(1.0, expected.abs().max().item()))


def test_gradients_by_the_tangent_itself() -> None:
    """A derivative along a direction is linear in it, and the direction may need a gradient, alone or beside x."""

    def run(f: Callable[..., Any]) -> Any:
        return grad(lambda x, u: jvp(of(f, "w"), (x,), (u,))[1].square().sum(), argnums=(0, 1))(KNOWN["w"], probe(KNOWN["w"]))

    torch.testing.assert_close(run(attend), run(formula))
    alone = [grad(lambda u, f=f: jvp(of(f, "w"), (KNOWN["w"],), (u,))[1].square().sum())(probe(KNOWN["w"])) for f in (attend, formula)]
    torch.testing.assert_close(*alone)


def test_captured_tensors_with_batches() -> None:
    many = torch.stack([KNOWN["w"], 2 * KNOWN["w"]], 1)
    for names in ("jvp", "jvp grad"):
        found, wanted = (vmap(composed(names, of(f, "w")), in_dims=1)(many) for f in (attend, formula))
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10)
    jacobians = [jacfwd(jacrev(vmap(of(f, "w"), in_dims=1)))(many) for f in (attend, formula)]
    torch.testing.assert_close(*jacobians, rtol=1e-9, atol=1e-10)
    with pytest.raises(UnsupportedError):
        vmap(jacfwd(jacfwd(of(attend, "w"))), in_dims=1)(many)


class _Derived(OnlineSoftmax):
    backward = OnlineFunc.backward


def test_an_engine() -> None:
    qkv = eh.inputs(1, 2, sq=5, d=8, dtype=torch.float64)
    engine, written = eh.engine(qkv, online_func=_Derived()), eh.engine(qkv)
    ours, dense = (lambda q: engine(q, *qkv[1:])), (lambda q: eh.softmax((q, *qkv[1:]), eh.scores((q, *qkv[1:]))))
    for names in ("jvp grad", "grad jvp"):
        check(names, ours, dense, qkv[0])
    refuse("jvp jvp", ours, qkv[0])
    check("jvp", lambda q: written(q, *qkv[1:]), dense, qkv[0])
    with pytest.raises(UnsupportedError, match="no second derivatives where `backward` is written"):
        composed("jvp grad", lambda q: written(q, *qkv[1:]))(qkv[0])


def test_old_batched_gradients_are_refused() -> None:
    x = KNOWN["q"].clone().requires_grad_()
    o = of(attend, "q")(x)
    with pytest.raises(UnsupportedError, match=r"is_grads_batched=True.*use torch.func.jacrev"):
        torch.autograd.grad(o, x, torch.stack([o.detach(), o.detach()]), is_grads_batched=True)


def test_the_advice_works() -> None:
    f = scalar(of(attend, "w"))
    with pytest.raises(UnsupportedError, match=r"torch.func.hessian\(f\), torch.func.jvp\(torch.func.grad\(f\), ...\)"):
        jacfwd(jacfwd(f))(KNOWN["w"])
    wanted = torch.autograd.functional.hessian(scalar(of(formula, "w")), KNOWN["w"])
    for found in (torch.func.hessian(f), jacrev(jacfwd(f)), jacrev(jacrev(f))):
        torch.testing.assert_close(found(KNOWN["w"]), wanted)
    _, pull = vjp(torch.func.grad(f), KNOWN["w"])[:2]
    torch.testing.assert_close(pull(KNOWN["w"])[0], wanted @ KNOWN["w"])
