"""Derivatives at the edges of functions, where they are 0, infinite or not defined: as PyTorch has them."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional

import attn_mlir
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.model import RowModel
from attn_mlir.passes.differentiation.propagate import adjoints, tangent
from attn_mlir.passes.differentiation.read import read_attention
from attn_mlir.passes.differentiation.values import Values
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from programs import parsed

Function = Callable[[torch.Tensor], torch.Tensor]
POINTS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 2.5, 3.0, -3.0, 6.0, math.inf, -math.inf, math.nan,
          1e-310, -1e-310, 1e-40, 1e-8, 1e30, -1e30, 1e300, -1e300, 20.0, 80.0, -80.0)  # fmt: skip
FUNCTIONS: dict[str, Function] = {
    "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "exp": torch.exp,
    "exp2": torch.exp2, "expm1": torch.expm1, "abs": torch.abs, "sign": torch.sign, "relu": torch.relu, "tanh": torch.tanh,
    "erf": torch.erf, "square": torch.square, "reciprocal": torch.reciprocal, "floor": torch.floor, "ceil": torch.ceil,
    "round": torch.round, "trunc": torch.trunc, "sin": torch.sin, "cos": torch.cos, "tan": torch.tan,
    "clamp": lambda s: s.clamp(-1.0, 1.0), "clamp min": lambda s: s.clamp(min=0.0), "clamp max": lambda s: s.clamp(max=2.0),
    "relu6": functional.relu6, "maximum": lambda s: torch.maximum(s, s * s), "minimum": lambda s: torch.minimum(s, -s),
    "x^0": lambda s: s**0, "x^1": lambda s: s**1, "x^2": lambda s: s**2, "x^3": lambda s: s**3, "x^5": lambda s: s**5,
    "x^-1": lambda s: s**-1, "x^-2": lambda s: s**-2, "x^-3": lambda s: s**-3, "x^.5": lambda s: s**0.5, "x^1.5": lambda s: s**1.5,
    "x^.75": lambda s: s**0.75, "|x|^x": lambda s: abs(s) ** s, "relu(x)^x": lambda s: torch.relu(s) ** s, "x^x": lambda s: s**s,
    "x^(0 x)": lambda s: s ** (s * 0.0), "0^x": lambda s: 0.0**s, "3^x": lambda s: 3.0**s, "2^x": lambda s: 2.0**s,
    "fmod": lambda s: torch.fmod(s, 1.5), "remainder": lambda s: s % 1.5, "1 / x": lambda s: 1 / s, "1 / x^2": lambda s: 1 / (s * s),
    "x / (1 + |x|)": lambda s: s / (1 + abs(s)), "logaddexp": lambda s: torch.logaddexp(s, -s), "softplus": functional.softplus,
}  # fmt: skip
# Where PyTorch's own gradient is NaN, or hides a NaN, or where its function takes another value.
OTHERWISE: dict[str, Callable[[float], bool]] = {
    "clamp": math.isnan, "clamp min": math.isnan, "clamp max": math.isnan, "relu6": math.isnan,
    "minimum": math.isinf, "maximum": math.isinf, "fmod": lambda x: abs(x) > 1e16, "remainder": lambda x: abs(x) > 1e16,
    "softplus": lambda x: x >= 20,
}  # fmt: skip


def read(function: Function) -> tuple[RowModel, Expr]:
    """What a row computes of a score."""
    text = attn_mlir.Attention(row=lambda s: function(s)).ir("traced")
    with parsed(text) as module:
        Pipeline.parse("attn-simplify", registry()).run(module)
        program = read_attention(find_all(module.operation, "attn.attention")[0])
    return program, program.sums[0].terms[0][0]


def ours(function: Function, points: np.ndarray) -> list[np.ndarray]:
    """The value, the derivative in reverse and in forward mode, and the second derivative."""
    program, weight = read(function)
    g, s = program.graph, program.graph.leaf("s", 0)
    zero, one = g.const(0.0), g.const(1.0)
    first = adjoints(g, [(weight, one)]).get(s, zero)
    forward = tangent(g, weight, {s: one}) or zero
    second = adjoints(g, [(first, one)]).get(s, zero)
    values = Values({s: points})
    values.frozen = {}
    return [np.broadcast_to(values(n), points.shape) for n in (weight, first, forward, second)]


def theirs(function: Function, points: np.ndarray) -> list[np.ndarray]:
    x = torch.tensor(points, requires_grad=True)
    y = function(x)
    (first,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    second = torch.autograd.grad(first, x, torch.ones_like(first))[0] if first.requires_grad else torch.zeros_like(first)
    return [t.numpy(force=True) for t in (y, first, first, second)]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_one_score(name: str) -> None:
    points = np.array([x for x in POINTS if not OTHERWISE.get(name, lambda x: False)(x)])
    with np.errstate(all="ignore"):
        found, wanted = ours(FUNCTIONS[name], points), theirs(FUNCTIONS[name], points)
        for kind, a, b in zip(("value", "gradient", "tangent", "second derivative"), found, wanted, strict=True):
            same = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= 1e-6 * np.maximum(np.abs(b), 1e-28))
            if kind == "second derivative":
                same |= np.isnan(b) | ~np.isfinite(wanted[1])  # 0 log 0 once more: PyTorch's is NaN
            if kind == "tangent":
                same |= ~np.isfinite(b)
            assert same.all(), f"{kind} at {points[~same]}: {a[~same]}, not {b[~same]}"


BRANCHES: dict[str, Function] = {
    name: FUNCTIONS[name] for name in ("relu(x)^x", "|x|^x", "sqrt", "log", "x^-2", "x^.75", "1 / x", "relu", "maximum", "rsqrt")
} | {
    "xlogy": lambda s: torch.xlogy(s, 2.0 + s * s),
    "masked root": lambda s: torch.where(s > 0.5, torch.sqrt(s - 0.5), 1.0 - s),
    "masked quotient": lambda s: torch.where(s == 0, s, torch.log(abs(s)) / s),
    "masked tanh": lambda s: torch.where(s == s, s * 2.0, torch.tanh(s) * s),
}
SMOOTH_BRANCHES: dict[str, Function] = {
    "masked root": lambda s: torch.where(s > 0.5, torch.sqrt(torch.where(s > 0.5, s - 0.5, 1.0)), 1.0 - s),
    "masked quotient": lambda s: torch.where(s == 0, s, torch.log(abs(torch.where(s == 0, 1.0, s))) / torch.where(s == 0, 1.0, s)),
    "masked tanh": lambda s: torch.where(s == s, s * 2.0, 0.0),
}


def test_functions_side_by_side() -> None:
    """Each head takes one branch: all others have gradient 0, wherever their own derivatives are infinite or NaN."""
    names = list(BRANCHES)

    def row(s, b, h, q_idx):
        weight = s
        for n, name in enumerate(names):
            weight = torch.where(h == n, BRANCHES[name](s), weight)
        return weight

    # Products begin with 0, so that a score is never -0.
    points = [x for x in POINTS if abs(x) < 1e20 and abs(x) not in (1e-310, 1e-40) and str(x) != "-0.0"]
    q = torch.tensor(points)[None, None, :, None].repeat(1, len(names), 1, 1).requires_grad_()
    one = torch.ones(1, len(names), 1, 1)

    def run(q: torch.Tensor) -> torch.Tensor:
        return attn_mlir.attention(q, one, one, row=row, scale=1.0)

    (dq,) = torch.autograd.grad(run(q), q, one.expand(q.shape))
    with torch.no_grad():
        _, tangents, *_ = torch.func.jvp(run, (q.detach(),), (torch.ones_like(q),))
    for n, name in enumerate(names):
        x = q[0, n].detach().requires_grad_()
        (wanted,) = torch.autograd.grad(SMOOTH_BRANCHES.get(name, BRANCHES[name])(x), x, torch.ones_like(x))
        torch.testing.assert_close(dq[0, n], wanted, rtol=1e-4, atol=1e-30, equal_nan=True, msg=lambda m, name=name: f"{name}: {m}")
        finite = wanted.isfinite()
        torch.testing.assert_close(tangents[0, n][finite], wanted[finite], rtol=1e-4, atol=1e-30)


def softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod: Callable[..., torch.Tensor]) -> torch.Tensor:
    return torch.softmax(mod(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5), -1) @ v


def gradients(
    function: Callable[..., torch.Tensor], inputs: list[torch.Tensor], do: torch.Tensor, dtype: torch.dtype
) -> list[torch.Tensor]:
    x = [t.to(dtype, copy=True).requires_grad_() for t in inputs]
    o = function(*x)
    return [o.detach(), *torch.autograd.grad(o, x, do.to(dtype))]


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return ((found.double() - wanted).norm() / wanted.norm()).item()


@pytest.mark.parametrize("name", ["1 / s", "1 / (s s)", "tan"])
def test_gradients_at_poles_are_as_accurate_as_those_of_the_formula(name: str) -> None:
    mods = {"1 / s": lambda s, *_: 1 / s, "1 / (s s)": lambda s, *_: 1 / (s * s), "tan": lambda s, *_: torch.tan(s)}
    mod, generator = mods[name], torch.Generator().manual_seed(1)
    *inputs, do = [torch.randn(1, 2, 50, 32, generator=generator) for _ in range(4)]
    exact = gradients(lambda q, k, v: softmax(q, k, v, mod), inputs, do, torch.float64)
    formula = gradients(lambda q, k, v: softmax(q, k, v, mod), inputs, do, torch.float32)
    found = gradients(lambda *x: attn_mlir.attention(*x, score_mod=mod), inputs, do, torch.float32)
    for a, b, wanted in zip(found, formula, exact, strict=True):
        assert error(a, wanted) < 2 * error(b, wanted) + 1e-6


def test_an_entropy_whose_weights_underflow_has_gradients() -> None:
    """p log p is 0 where p is."""
    generator = torch.Generator().manual_seed(0)
    *inputs, do = [torch.randn(1, 1, 20, 8, generator=generator) for _ in range(4)]
    inputs[0] *= 60

    def formula(q, k, v):
        s = q @ k.transpose(-1, -2) * 8**-0.5
        p, logarithm = torch.softmax(s, -1), torch.log_softmax(s, -1)
        return (p * (1.0 - (p * logarithm).sum(-1, keepdim=True))) @ v

    rows: dict[str, Callable[..., torch.Tensor]] = {
        "p log p": lambda p: p * (1.0 - (p * torch.log(p)).sum()),
        "entr": lambda p: p * (1.0 + torch.special.entr(p).sum()),
        "xlogy": lambda p: p * (1.0 - torch.special.xlogy(p, p).sum()),
    }
    exact = gradients(formula, inputs, do, torch.float64)
    for row in rows.values():
        found = gradients(lambda *x, row=row: attn_mlir.attention(*x, row=lambda s: row(torch.softmax(s, -1))), inputs, do, torch.float32)
        for a, wanted in zip(found, exact, strict=True):
            assert error(a, wanted) < 2e-4
    q, k = (t.clone().requires_grad_() for t in inputs[:2])
    p = torch.softmax(q @ k.transpose(-1, -2) * 8**-0.5, -1)
    (dp_log_p,) = torch.autograd.grad((p * torch.log(p)).sum(), q)
    assert dp_log_p.isnan().any(), "these inputs are at the edge"


@pytest.mark.parametrize("of", ["q", "k", "v"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_input_reaches_the_gradients_as_in_the_formula(of: str, bad: float) -> None:
    """The gradient of a relu does not hide a NaN: what is NaN in PyTorch is NaN here."""
    generator = torch.Generator().manual_seed(2)
    inputs = [torch.randn(1, 1, 6, 4, generator=generator, dtype=torch.float64) for _ in range(3)]
    inputs["qkv".index(of)][0, 0, 2, 1] = bad
    do = torch.ones(1, 1, 6, 4)

    def formula(q, k, v):
        w = torch.relu(q @ k.transpose(-1, -2) * 0.5)
        return w / (w.sum(-1, keepdim=True) + 1e-6) @ v

    def row(s):
        w = torch.relu(s)
        return w / (w.sum() + 1e-6)

    wanted = gradients(formula, inputs, do, torch.float64)
    found = gradients(lambda *x: attn_mlir.attention(*x, row=row), inputs, do, torch.float64)
    for name, a, b in zip(("o", "dq", "dk", "dv"), found, wanted, strict=True):
        assert (a.isnan() | ~b.isnan()).all(), f"{name}: {a}, not {b}"
        if not math.isinf(bad):
            torch.testing.assert_close(a[b.isfinite()], b[b.isfinite()], msg=lambda m, name=name: f"{name}: {m}")


def test_a_learned_exponent_of_relu() -> None:
    """0 log 0 is 0, in first and second derivatives and in tangents."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, do = [torch.randn(1, 2, 7, 4, generator=generator, dtype=torch.float64) for _ in range(4)]
    p = torch.tensor([1.5, 2.5], dtype=torch.float64)

    def row_of(p):
        def row(s, b, h, q_idx):
            w = torch.relu(s) ** p[h]
            return w / (w.sum() + 1e-6)

        return row

    def formula(q, k, v, p):
        w = torch.relu(q @ k.transpose(-1, -2) * 0.5) ** p[:, None, None]
        return w / (w.sum(-1, keepdim=True) + 1e-6) @ v

    def run(q, k, v, p):
        return attn_mlir.attention(q, k, v, row=row_of(p))

    inputs = [t.requires_grad_() for t in (q, k, v, p)]
    found, wanted = [torch.autograd.grad(f(*inputs), inputs, do, create_graph=True) for f in (run, formula)]
    torch.testing.assert_close(found, wanted)
    squares = [torch.stack([g.square().sum() for g in gs[:3]]).sum() for gs in (found, wanted)]
    torch.testing.assert_close(*[torch.autograd.grad(total, inputs[:3]) for total in squares])
    moved = tuple(t.detach() for t in inputs)
    torch.testing.assert_close(*[torch.func.jvp(f, moved, moved) for f in (run, formula)])
