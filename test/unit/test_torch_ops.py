"""The torch operators: torch's own checks, torch.compile, torch.func, forward mode."""

import functools
from typing import Any
from unittest import mock

import pytest
import torch
from torch._dynamo.utils import counters
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from api_helpers import assert_near, inputs
from attn_mlir import (
    ArgumentError,
    Attention,
    AttentionEngine,
    CustomIO,
    OnlineSoftmax,
    attention,
    masks,
    meta_tensor,
    mods,
    rows,
)
from attn_mlir.runtime import dispatch, ops, programs

SMALL: dict[str, Any] = {"b": 1, "h": 2, "hkv": 1, "sq": 4, "skv": 5, "d": 3, "dv": 2}
CAUSAL = masks.causal("bottom_right")


def small() -> tuple[torch.Tensor, ...]:
    """q, k, v and slopes, in float64."""
    q, k, v = inputs(**SMALL, dtype=torch.float64)
    return q, k, v, torch.tensor([0.3, 0.1], dtype=torch.float64)


def needing_gradients(tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [tensor.clone().requires_grad_() for tensor in tensors]


def biased(*tensors: torch.Tensor, **options: Any) -> Any:
    q, k, v, slopes = tensors
    return attention(q, k, v, score_mod=lambda s, b, h, i, j: s + slopes[h] * (j - i), mask_mod=CAUSAL, **options)


def program_name() -> str:
    """The name of the program of `biased`."""
    with mock.patch.object(dispatch, "_task", wraps=dispatch._task) as task:
        biased(*needing_gradients(small()))
    return task.call_args.args[0].name


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_operators_pass_torchs_checks(layout: str) -> None:
    name, wrt = program_name(), "q+k+v+arg3"
    q, k, v, slopes = needing_gradients(small())
    torch.library.opcheck(ops.forward, (q, k, v, [slopes], [], [], name, wrt, layout))
    torch.library.opcheck(ops.forward, (q, k, v, [slopes], [], [], name, "", layout), test_utils=("test_schema", "test_faketensor"))
    with torch.no_grad():
        results = ops.forward(q, k, v, [slopes], [], [], name, wrt, layout)
    upstream = torch.randn_like(results[0])
    torch.library.opcheck(ops.backward, ([q, k, v], [slopes], [], [], results, [upstream], name, wrt, layout))
    plain = list(small())
    directions = [torch.randn_like(tensor) for tensor in plain]
    torch.library.opcheck(ops.backward2, (plain[:3], plain[3:], [], [], results, [upstream], directions, name, wrt, layout))
    torch.library.opcheck(ops.tangent, (plain[:3], plain[3:], [], [], directions, name, wrt, layout))


def test_operators_know_programs_of_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    name, (q, k, v, slopes) = program_name(), small()
    monkeypatch.setattr(programs, "_TABLE", {})
    assert torch.equal(ops.forward(q, k, v, [slopes], [], [], name, "", "bhsd")[0], biased(q, k, v, slopes))


def test_operators_check_captured_tensors() -> None:
    q, k, v, slopes = small()
    with pytest.raises(ArgumentError, match="captured tensor `slopes` has size 1 in dimension 0"):
        ops.forward(q, k, v, [slopes[:1]], [], [], program_name(), "q", "bhsd")


@pytest.mark.parametrize("row", [rows.softmax, rows.softmax1, rows.sigmoid, rows.relu_normalized])
def test_gradcheck(row: Any) -> None:
    tensors = needing_gradients(small())
    assert gradcheck(lambda *x: biased(*x, row=row), tensors)
    assert gradgradcheck(lambda *x: biased(*x, row=row), tensors)


def test_gradcheck_of_row_outputs() -> None:
    tensors = needing_gradients(small())
    assert gradcheck(lambda *x: biased(*x, return_lse=True), tensors)
    assert gradgradcheck(lambda *x: biased(*x, return_lse=True), tensors)


def test_gradcheck_forward_mode() -> None:
    tensors = needing_gradients(small())
    assert gradcheck(lambda *x: biased(*x, return_lse=True), tensors, check_forward_ad=True, check_backward_ad=False)


def numeric_tangent(function: Any, x: torch.Tensor, direction: torch.Tensor) -> torch.Tensor:
    step = 1e-6
    return (function(x + step * direction) - function(x - step * direction)) / (2 * step)


@pytest.mark.parametrize("position", range(4))
def test_forward_mode(position: int) -> None:
    """Of one argument alone; the others are constants."""
    tensors = list(small())
    direction = torch.randn_like(tensors[position])

    def function(x: torch.Tensor) -> torch.Tensor:
        return biased(*tensors[:position], x, *tensors[position + 1 :])

    expected = numeric_tangent(function, tensors[position], direction)
    pair: Any = torch.func.jvp(function, (tensors[position],), (direction,))
    assert torch.equal(pair[0], function(tensors[position]))
    assert_near(pair[1], expected, 1e-7)
    with forward_ad.dual_level():
        tangent: Any = forward_ad.unpack_dual(function(forward_ad.make_dual(tensors[position], direction))).tangent
        assert_near(tangent, expected, 1e-7)
        assert forward_ad.unpack_dual(function(tensors[position])).tangent is None


def test_transforms_of_torch_func() -> None:
    q, k, v, slopes = small()
    tensors = needing_gradients((q, k, v, slopes))
    expected = torch.autograd.grad(biased(*tensors).square().sum(), tensors)
    got: Any = torch.func.grad(lambda q, k, v, x: biased(q, k, v, x).square().sum(), argnums=(0, 1, 2, 3))(q, k, v, slopes)
    for gradient, wanted in zip(got, expected, strict=True):
        assert torch.equal(gradient, wanted)
    reverse = torch.func.jacrev(lambda x: biased(q, x, v, slopes).sum(-1))(k)
    assert_near(torch.func.jacfwd(lambda x: biased(q, x, v, slopes).sum(-1))(k), reverse, 1e-12)


def test_vmap() -> None:
    q, k, v, slopes = small()
    many, many_slopes = torch.randn(3, *q.shape).double(), torch.randn(2, 3).double()
    got = torch.func.vmap(biased, in_dims=(0, None, None, 1))(many, k, v, many_slopes)
    for i in range(3):
        assert torch.equal(got[i], biased(many[i], k, v, many_slopes[:, i]))
    each = torch.func.vmap(torch.func.grad(lambda x: biased(x, k, v, slopes).square().sum()))(many)
    for i in range(3):
        assert torch.equal(each[i], torch.func.grad(lambda x: biased(x, k, v, slopes).square().sum())(many[i]))
    o, lse = torch.func.vmap(lambda x: biased(x, k, v, slopes, return_lse=True))(many)
    assert lse.shape == (3, 1, 2, 4) and torch.equal(o[1], biased(many[1], k, v, slopes))


def test_vmap_of_captured_tensors_alone() -> None:
    q, k, v, slopes = small()
    many = torch.stack([slopes, -slopes])
    got = torch.func.vmap(lambda x: biased(q, k, v, x))(many)
    each = torch.func.vmap(torch.func.grad(lambda x: biased(q, k, v, x).square().sum()))(many)
    for i in range(2):
        assert torch.equal(got[i], biased(q, k, v, many[i]))
        assert torch.equal(each[i], torch.func.grad(lambda x: biased(q, k, v, x).square().sum())(many[i]))


def test_hessians() -> None:
    q, k, v, slopes = small()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return biased(q, k, v, x).square().sum()

    expected = torch.autograd.functional.hessian(loss, slopes)
    assert isinstance(expected, torch.Tensor) and expected.abs().max() > 1e-3
    assert_near(torch.func.jacrev(torch.func.jacrev(loss))(slopes), expected, 1e-12)
    assert_near(torch.func.hessian(loss)(slopes), expected, 1e-12)
    gradient = torch.func.grad(lambda x: torch.func.jvp(loss, (x,), (slopes,))[1])(slopes)
    assert_near(gradient, expected @ slopes, 1e-12)


class Model(torch.nn.Module):
    """Captures parameters in closures made by each call, and in one made before."""

    def __init__(self) -> None:
        super().__init__()
        self.slopes, self.sink = torch.nn.Parameter(torch.rand(4)), torch.nn.Parameter(torch.rand(4))
        slopes, cap = self.slopes, 5.0
        self.object = Attention(row=rows.softmax1, score_mod=lambda s, b, h, i, j: cap * (s * slopes[h] / cap).tanh(), return_lse=True)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s + self.slopes[h] * (j - i)

        first = attention(q, k, v, row=rows.softmax_sink(self.sink), score_mod=score_mod, mask_mod=CAUSAL, query_mod=lambda x: 2.0 * x)
        second, lse = self.object(q, k, v)
        return first + second * lse[..., None].tanh()


def compare(function: Any, compiled: Any, tensors: list[torch.Tensor], parameters: list[torch.Tensor]) -> None:
    """Values and gradients of a function and what torch.compile makes of it."""
    expected, got = function(*tensors), compiled(*tensors)
    assert torch.equal(got, expected)
    wanted = torch.autograd.grad(expected.square().sum(), parameters)
    for gradient, other in zip(torch.autograd.grad(got.square().sum(), parameters), wanted, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        assert torch.equal(compiled(*tensors), expected)


def test_compile() -> None:
    model = Model()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    tensors = []
    for b, length in ((1, 37), (3, 40)):
        tensors = needing_gradients(tuple(inputs(b=b, sq=length, d=8, dv=8)))
        compare(model, compiled, tensors, [*tensors, *model.parameters()])
    with torch.no_grad():
        model.slopes.mul_(2.0)
        assert torch.equal(compiled(*tensors), model(*tensors))


def test_compile_states_layout_and_sizes() -> None:
    def row(s: Any) -> Any:
        e = torch.exp(s - s.max())
        return e / e.sum(), {"sum": e.sum()}

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        o, states = attention(q, k, v, row=row, mask_mod=CAUSAL, layout="bshd", scale=0.3, return_states=True)
        return o * states["sum"].transpose(1, 2)[..., None]

    tensors = needing_gradients(tuple(tensor.transpose(1, 2).contiguous() for tensor in inputs(d=8, dv=8)))
    compare(function, torch.compile(function, fullgraph=True, backend="aot_eager"), tensors, tensors)


def test_compile_with_other_numbers() -> None:
    """Numbers become arguments of the graph; the mask is still resolved into bounds."""

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cap: float, window: int) -> torch.Tensor:
        return attention(q, k, v, score_mod=mods.softcap(cap), mask_mod=masks.sliding_window(window))

    (q, k, v), compiled = inputs(d=8, dv=8), torch.compile(function, fullgraph=True, backend="aot_eager")
    graphs = counters["stats"]["unique_graphs"]
    for cap, window in ((3.0, 4), (4.0, 4), (5.0, 5), (6.0, 6), (7.0, 7)):
        assert torch.equal(compiled(q, k, v, cap, window), function(q, k, v, cap, window))
    assert counters["stats"]["unique_graphs"] - graphs <= 3


def test_compile_methods_objects_and_partials() -> None:
    class Scores:
        def __init__(self) -> None:
            self.weight = torch.rand(4, requires_grad=True)

        def mod(self, factor: float, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s * self.weight[h] + factor

        def __call__(self, s: Any) -> Any:
            return s.relu() / 3

    scores = Scores()
    ids = torch.arange(53) // 8

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        mask_mod = masks.or_(masks.document(ids), masks.causal("bottom_right"))
        return attention(q, k, v, score_mod=functools.partial(scores.mod, 0.5), mask_mod=mask_mod, row=scores)

    tensors = needing_gradients(tuple(inputs(d=8, dv=8)))
    compare(function, torch.compile(function, fullgraph=True, backend="aot_eager"), tensors, [*tensors, scores.weight])


def test_export() -> None:
    model, tensors = Model().eval(), inputs(b=1, d=8, dv=8)
    exported = torch.export.export(model, tuple(tensors)).module()
    assert torch.equal(exported(*tensors), model(*tensors))


SCALE = 0.4


def test_compile_an_engine() -> None:
    slopes = torch.rand(4, requires_grad=True)

    def score_mod(s: Any, c: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s * SCALE + slopes[h] * (j - i) + c.input_tensors["bias"]

    metas = tuple(meta_tensor("B", 4, "S", 8, dtype=torch.float32) for _ in range(3))
    custom = CustomIO({"bias": ("heads", "seq_len", "1")})
    engine = AttentionEngine(metas, custom, score_mod=score_mod, mask_mod=masks.causal(), online_func=OnlineSoftmax())
    tensors = needing_gradients((*torch.randn(3, 2, 16, 4, 8), torch.randn(4, 16, 1)))
    compare(engine, torch.compile(engine, fullgraph=True, backend="aot_eager"), tensors, [*tensors, slopes])


def test_compile_refuses_what_an_engine_hides() -> None:
    holder = {"slopes": torch.rand(4)}
    metas = tuple(meta_tensor(1, 4, 16, 8, dtype=torch.float32) for _ in range(3))
    engine = AttentionEngine(metas, score_mod=lambda s, c, b, h, i, j: s * holder["slopes"][h], mask_mod=masks.causal())
    tensors = torch.randn(3, 1, 16, 4, 8)
    assert engine(*tensors).isfinite().all()
    with pytest.raises(Exception, match="`slopes` must be a variable of a function itself, or a tensor of custom_fwd_inputs"):
        torch.compile(engine, fullgraph=True, backend="aot_eager")(*tensors)
