"""What functions ask Python and torch besides numbers: modes of gradients, classes, text, errors that they catch; against torch."""

import math
import numbers
from typing import Any

import pytest
import torch

import attn_mlir
from flex_dense import compare, dense, qkv, tensors

(SLOPES,) = (x.requires_grad_() for x in tensors((4,), dtype=torch.float64))
PAIRS = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)
N, F, NAME = 3, 2.5, {"3": 2.0}
Ints = (list, int)


@torch.no_grad()
def constant(s: Any, h: Any) -> Any:
    return s * SLOPES[h]


def partly_constant(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    with torch.no_grad():
        factor = (s * SLOPES[h]).exp() + SLOPES.exp()[h] + SLOPES[h]
    return s * factor.sin() + SLOPES[h]


def with_gradients_again(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    with torch.no_grad():
        with torch.enable_grad():
            one = s * 2
        two = s * SLOPES[h]
    return one + two


def switched_off_and_on(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    torch.set_grad_enabled(False)
    two = s * 2
    torch.set_grad_enabled(True)
    return s + two.sin()


def helper(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x * 2
    return x * 10 if isinstance(x, int) else x * 100


def matched(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    match s, N:
        case torch.Tensor(), float():
            return s * 3
        case torch.Tensor(), int():
            return s * 2
    return s


class Module(torch.nn.Module):
    def forward(self, s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        return s * 2 if isinstance(s, torch.Tensor) and torch.is_tensor(h) else s


def changed_by_another_name(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    v = s * PAIRS[0]
    u = v[1:]
    u += 1
    v *= SLOPES[h]
    return v.sum() + u[0]


CASES: dict[str, Any] = {
    "no_grad": partly_constant,
    "no_grad over a function": lambda s, b, h, m, n: s + constant(s, h),
    "enable_grad": with_gradients_again,
    "set_grad_enabled": switched_off_and_on,
    "isinstance of traced values": lambda s, b, h, m, n: s * 2 if all(isinstance(x, torch.Tensor) for x in (s, b, h, m > n)) else s,
    "isinstance of numbers": lambda s, b, h, m, n: s * 2 if isinstance(N, Ints) and isinstance(F, float) else s,
    "isinstance of no float": lambda s, b, h, m, n: s * 2 if isinstance(N, float) else s,
    "abstract classes": lambda s, b, h, m, n: s * 2 if isinstance(N, numbers.Integral) and not isinstance(F, numbers.Integral) else s,
    "is_tensor": lambda s, b, h, m, n: s * 2 if torch.is_tensor(s) and not torch.is_tensor(N) else s,
    "tensors of traced values": lambda s, b, h, m, n: s * 2 if isinstance(PAIRS[m % 3], torch.Tensor) else s,
    "type": lambda s, b, h, m, n: s * 2 if type(N) is int and type(F) in (float, int) and type(s) is torch.Tensor else s,
    "other uses of type": lambda s, b, h, m, n: s * 2 if isinstance(int, type) and type(NAME) is dict else s,
    "the class of classes": lambda s, b, h, m, n: s * 2 if type[int] and type in (str, type) and {type: 1}[type(int)] else s,
    "__class__": lambda s, b, h, m, n: s * 2 if N.__class__ is int else s,
    "match": matched,
    "a helper": lambda s, b, h, m, n: helper(s) + helper(N) + helper(F),
    "a module": Module(),
    "text": lambda s, b, h, m, n: s * NAME[str(N)] + float(f"{F:.2f}") + len(repr(N)) + NAME[f"{N}"],
    "full_like": lambda s, b, h, m, n: s * torch.full_like(s, 3) + torch.full_like(m, 2.5) + torch.full_like(s, 3.7, dtype=torch.int64),
    "like a condition": lambda s, b, h, m, n: s * (torch.ones_like(m > n) + torch.ones_like(m > n)) * torch.full_like(m > n, 3),
    "changes in place": changed_by_another_name,
    "names of arguments": lambda s, b, h, m, n: torch.mul(input=s, other=2) + s.sub(other=m, alpha=-1) + torch.pow(s, exponent=2),
    "prelu of one weight": lambda s, b, h, m, n: torch.nn.functional.prelu(s, SLOPES[:1]) + torch.prelu(s, SLOPES[1:2]),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("first", [True, False], ids=["gradients first", "no gradients first"])
def test_against_torch(name: str, first: bool) -> None:
    inputs = [x.double().requires_grad_() for x in qkv(sq=9, d=8)]
    for gradients in (first, True):
        with torch.set_grad_enabled(gradients):
            o, wanted = attn_mlir.attention(*inputs, score_mod=CASES[name]), dense(*inputs, CASES[name])[0]
        compare(o, wanted, 1e-6)
    upstream = torch.randn_like(o)
    wanted, made = (torch.autograd.grad(x, [*inputs, SLOPES], upstream, allow_unused=True, materialize_grads=True) for x in (wanted, o))
    for a, b in zip(made, wanted, strict=True):
        compare(a, b, 1e-6)


@pytest.mark.parametrize("name", ["no_grad", "no_grad over a function", "enable_grad", "set_grad_enabled"])
def test_in_a_graph(name: str) -> None:
    torch.compiler.reset()
    inputs = [x.double().requires_grad_() for x in qkv(sq=9, d=8)]
    o = torch.compile(lambda q, k, v: attn_mlir.attention(q, k, v, score_mod=CASES[name]), backend="aot_eager", fullgraph=True)(*inputs)
    wanted = dense(*inputs, CASES[name])[0]
    compare(o, wanted, 1e-6)
    upstream = torch.randn_like(o)
    wanted, made = (torch.autograd.grad(x, [*inputs, SLOPES], upstream, allow_unused=True, materialize_grads=True) for x in (wanted, o))
    for a, b in zip(made, wanted, strict=True):
        compare(a, b, 1e-6)


def test_a_sum_of_one_element_is_a_number_of_its_own() -> None:
    def score_mod(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        v = s * PAIRS[0, :1]
        total = v.sum()
        total += 1
        return v[0] + total

    inputs = qkv(sq=9, d=8)
    compare(attn_mlir.attention(*inputs, score_mod=score_mod), dense(*inputs, score_mod)[0])


def test_zero_and_minus_zero_are_two_numbers() -> None:
    inputs = qkv(sq=9, d=8)
    for number in (0.0, -0.0):

        def score_mod(s: Any, b: Any, h: Any, m: Any, n: Any, number: float = number) -> Any:
            return s * math.copysign(1.0, number)

        compare(attn_mlir.attention(*inputs, score_mod=score_mod), dense(*inputs, score_mod)[0])


def test_a_sum_without_gradient_counts_as_constant() -> None:
    def row(s: Any) -> Any:
        with torch.no_grad():
            norm = s.abs().sum()
        return s / norm

    q, k, v = (x.double().requires_grad_() for x in qkv(sq=9, d=8))
    s = q @ k.mT / 8**0.5
    wanted = s / s.abs().sum(-1, keepdim=True).detach() @ v
    o = attn_mlir.attention(q, k, v, row=row)
    compare(o, wanted, 1e-9)
    for a, b in zip(*(torch.autograd.grad(x.cos().sum(), (q, k, v)) for x in (o, wanted)), strict=True):
        compare(a, b, 1e-8)


def branch(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    try:
        return s if m > 2 else s * 9
    except TypeError:
        return s * 4


def number(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    try:
        return s + float(m)
    except Exception:
        return s


def method(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    return s.cumsum(-1) if hasattr(s, "cumsum") else s


def function(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    try:
        return torch.heaviside(s, s)
    except TypeError:
        return s


def another_error(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    try:
        return s if m > 2 else s * 9
    except TypeError as error:
        raise ValueError("no") from error


CAUGHT = {
    branch: "`if` needs one concrete value", number: "needs one concrete value", method: "has no attribute 'cumsum'",
    function: "torch.heaviside of a traced value is not known", another_error: "`if` needs one concrete value",
}  # fmt: skip


@pytest.mark.parametrize("score_mod", CAUGHT, ids=lambda f: f.__name__)
def test_errors_that_a_function_catches_count(score_mod: Any) -> None:
    for _ in range(2):
        with pytest.raises(attn_mlir.TraceError, match=CAUGHT[score_mod]):
            attn_mlir.attention(*qkv(sq=9, d=8), score_mod=score_mod)


def test_what_torch_raises_too_may_be_caught() -> None:
    def score_mod(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        try:
            return s * len(s)
        except TypeError:
            return s * 2 if not hasattr(s, "is_my_own") else s

    inputs = qkv(sq=9, d=8)
    compare(attn_mlir.attention(*inputs, score_mod=score_mod), dense(*inputs, score_mod)[0])


@pytest.mark.parametrize(
    ("score_mod", "problem"),
    [
        (lambda s, b, h, m, n: s * abs(m > n), "of a bool"),
        (lambda s, b, h, m, n: s + PAIRS[m % 3].__iadd__(1).sum(), "changes `PAIRS` in place"),
    ],
)
def test_refused(score_mod: Any, problem: str) -> None:
    with pytest.raises(attn_mlir.TraceError, match=problem):
        attn_mlir.attention(*qkv(sq=9, d=8), score_mod=score_mod)
