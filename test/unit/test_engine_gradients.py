"""AttentionEngine: gradients against autograd of the dense formula in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
import engine_helpers as eh
from attn_mlir import CustomIO, Identity, OnlineFunc, OnlineRetention, OnlineSoftmax
from attn_mlir.errors import ArgumentError, TraceError, UnsupportedError

SCALE = 0.3
SHAPES: dict[str, dict[str, int]] = {
    "square": {"b": 2, "h": 2, "sq": 37, "d": 8},
    "gqa": {"b": 1, "h": 4, "hkv": 2, "sq": 21, "skv": 50, "d": 8, "dv": 6},
}
Tensors = tuple[torch.Tensor, ...]


def scaled(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * SCALE


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def check(mod: Any, qkv: Tensors, dense: Callable[..., torch.Tensor], custom: Tensors = (), tolerance: float = 2e-5) -> None:
    """The result and all gradients; `dense` computes [B, Sq, H, Dv] of float64 tensors."""
    ours = [x.clone().requires_grad_() for x in (*qkv, *custom)]
    theirs = [x.double().requires_grad_() for x in (*qkv, *custom)]
    o, expected = mod(*ours), dense(*theirs)
    seed = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o.dtype)
    o.backward(seed)
    expected.backward(seed.double())
    eh.check(o.detach(), expected.detach(), tolerance)
    for x, wanted in zip(ours, theirs, strict=True):
        assert x.grad is not None and wanted.grad is not None and x.grad.dtype == x.dtype
        eh.check(x.grad, wanted.grad, tolerance)


def softmax(mask: Any) -> Callable[..., torch.Tensor]:
    return lambda *qkv: eh.softmax(qkv, eh.scores(qkv) * SCALE, mask)


def masked(qkv: Tensors, s: torch.Tensor, mask: Any) -> torch.Tensor:
    return s.masked_fill(~eh.present(qkv, mask), 0.0)


def retention(mask: Any, detach: bool) -> Callable[..., torch.Tensor]:
    def dense(*qkv: torch.Tensor) -> torch.Tensor:
        s = masked(qkv, eh.scores(qkv) * SCALE, mask)
        r = s.abs().sum(-1, keepdim=True).clamp(min=1)
        return eh.weighted(qkv, s / (r.detach() if detach else r))

    return dense


class DerivedSoftmax(OnlineSoftmax):
    backward = OnlineFunc.backward


class DerivedRetention(OnlineRetention):
    backward = OnlineFunc.backward


class DetachedRetention(eh.RescaledRetention):
    """The convention of the predefined one, in its forward pass."""

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        abssum = online_rowscales["abssum"] + scores.get_reduce("abssum")
        r = attn_mlir.detach(abssum.max(1))
        return scores / r, {"abssum": abssum, "r": r}, online_rowscales["r"] / r


@pytest.mark.parametrize("mask", [None, causal])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("online", [OnlineSoftmax, DerivedSoftmax])
def test_softmax(online: Callable[[], OnlineFunc], shape: dict[str, int], mask: Any) -> None:
    qkv = eh.inputs(**shape)
    check(eh.engine(qkv, online_func=online(), score_mod=scaled, mask_mod=mask), qkv, softmax(mask))


@pytest.mark.parametrize(
    ("online", "detach"), [(OnlineRetention, True), (DerivedRetention, False), (eh.RescaledRetention, False), (DetachedRetention, True)]
)
def test_retention(online: Callable[[], OnlineFunc], detach: bool) -> None:
    qkv = eh.inputs(**SHAPES["gqa"])
    q = qkv[0] * torch.linspace(0.01, 1, 21).view(1, 21, 1, 1)  # sums on both sides of 1
    qkv = (q, *qkv[1:])
    check(eh.engine(qkv, online_func=online(), score_mod=scaled, mask_mod=causal), qkv, retention(causal, detach))


@pytest.mark.parametrize("online", [Identity, None])
def test_relu(online: Any) -> None:
    qkv = eh.inputs(**SHAPES["gqa"])
    mod = eh.engine(
        qkv,
        online_func=Identity() if online is None else online(),
        score_mod=lambda score, _, b, h, q_idx, kv_idx: (score * SCALE).max(0),
        mask_mod=causal,
    )
    check(mod, qkv, lambda *x: eh.weighted(x, masked(x, (eh.scores(x) * SCALE).relu(), causal)))


def test_sigmoid_and_its_bias() -> None:
    qkv = eh.inputs(**SHAPES["gqa"])

    def sigmoid(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        score = score * SCALE + custom_fwd_inputs.input_tensors["softmax_bias"]
        return (((score * 0.5).tanh()) + 1) * 0.5

    mod = eh.engine(qkv, CustomIO({"softmax_bias": (1,)}), Identity(), score_mod=sigmoid, mask_mod=causal)

    def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return eh.weighted((q, k, v), masked((q, k, v), (eh.scores((q, k, v)) * SCALE + bias).sigmoid(), causal))

    check(mod, qkv, dense, (torch.tensor([-0.4]),))


@pytest.mark.parametrize("online", [OnlineSoftmax, DerivedSoftmax])
def test_custom_inputs_of_the_scores(online: Callable[[], OnlineFunc]) -> None:
    qkv = eh.inputs(**SHAPES["square"])
    custom = CustomIO({"slope": (1, "heads"), "bias": ("heads", "seq_len", "seq_len_kv"), "gain": ("heads_kv", "dimqk")})

    def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        given = custom_fwd_inputs.input_tensors
        return score * given["slope"] + given["bias"]

    mod = eh.engine(qkv, custom, online(), score_mod=score_mod, mask_mod=causal, key_mod=lambda k, custom: k * custom.input_tensors["gain"])

    def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slope: torch.Tensor, bias: torch.Tensor, gain: torch.Tensor) -> Any:
        changed = (q, k * gain, v)
        return eh.softmax(changed, eh.scores(changed) * slope.view(1, 2, 1, 1) + bias, causal)

    generator = torch.Generator().manual_seed(3)
    shapes = ((1, 2), (2, 37, 37), (2, 8))
    check(mod, qkv, dense, tuple(torch.randn(*size, generator=generator) * 0.5 for size in shapes))


def sink_softmax(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    s = (eh.scores((q, k, v)) * SCALE).masked_fill(~eh.present((q, k, v), causal), -torch.inf)
    extra = sink.view(1, -1, 1, 1).expand(*s.shape[:3], 1)
    return eh.weighted((q, k, v), torch.cat([s, extra], -1).softmax(-1)[..., :-1])


def test_custom_inputs_of_the_row() -> None:
    qkv = eh.inputs(**SHAPES["gqa"])
    sink = torch.tensor([0.5, -1.0, 2.0, 0.0])
    check(eh.engine(qkv, eh.Sink.custom, eh.Sink(), score_mod=scaled, mask_mod=causal), qkv, sink_softmax, (sink,))
    written = eh.engine(qkv, eh.Sink.custom, eh.WrittenSink(), score_mod=scaled, mask_mod=causal)
    check(lambda q, k, v: written(q, k, v, sink), qkv, lambda q, k, v: sink_softmax(q, k, v, sink.double()))
    with pytest.raises(
        UnsupportedError, match="the row reads 'sink', and a backward pass that is written gives the gradients of scores only"
    ):
        written(*qkv, sink.clone().requires_grad_()).sum().backward()


def test_row_outputs_have_gradients_where_the_backward_is_derived() -> None:
    qkv = eh.inputs(**SHAPES["square"])
    q = qkv[0].clone().requires_grad_()
    _, rows = eh.engine(qkv, online_func=DerivedSoftmax(), score_mod=scaled)(q, *qkv[1:], return_rowscales=True)
    rows["lse"].sum().backward()
    expected = qkv[0].double().requires_grad_()
    (eh.scores((expected, *qkv[1:])) * SCALE).logsumexp(-1).sum().backward()
    assert q.grad is not None and expected.grad is not None
    eh.check(q.grad, expected.grad)


def test_a_custom_vjp_gives_no_other_derivatives() -> None:
    qkv = eh.inputs(**SHAPES["square"])
    mod = eh.engine(qkv, score_mod=scaled)
    q = qkv[0].clone().requires_grad_()
    o, rows = mod(q, *qkv[1:], return_rowscales=True)
    with pytest.raises(UnsupportedError, match="the row outputs have no gradient where `backward` is written"):
        rows["lse"].sum().backward(retain_graph=True)
    (dq,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(UnsupportedError, match="second derivatives"):
        dq.sum().backward()


def test_rows_without_keys() -> None:
    qkv = eh.inputs(**SHAPES["square"])
    mask = lambda b, h, q_idx, kv_idx: (q_idx % 3 != 1) & (kv_idx <= q_idx)  # noqa: E731
    for online in (OnlineSoftmax, DerivedSoftmax):
        x = [t.clone().requires_grad_() for t in qkv]
        eh.engine(qkv, online_func=online(), score_mod=scaled, mask_mod=mask)(*x).sum().backward()
        assert all(t.grad is not None and torch.isfinite(t.grad).all() for t in x)
        assert x[0].grad is not None and (x[0].grad[:, 1::3] == 0).all() and (x[0].grad[:, ::3] != 0).any()


def test_half_precision() -> None:
    qkv = eh.inputs(**SHAPES["gqa"], dtype=torch.float16)
    check(eh.engine(qkv, score_mod=scaled, mask_mod=causal), qkv, softmax(causal), tolerance=4e-3)


def test_captured_tensors_of_a_custom_vjp() -> None:
    """What only `backward` reads is an input of the program, too."""
    gate = torch.tensor([0.5, 2.0])

    class Gated(Identity):
        @staticmethod
        def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return dp * gate[h] + 0.0 * doosum_rowscales

    qkv = eh.inputs(**SHAPES["square"])
    q = qkv[0].clone().requires_grad_()
    mod = eh.engine(qkv, online_func=Gated())
    mod(q, *qkv[1:]).sum().backward()
    expected = qkv[0].double().requires_grad_()
    eh.weighted((expected, *qkv[1:]), eh.scores((expected, *qkv[1:]))).sum().backward()
    assert q.grad is not None and expected.grad is not None
    eh.check(q.grad, expected.grad * gate.view(1, 1, 2, 1))
    gate = torch.tensor([1.0, 1.0])
    (again,) = torch.autograd.grad(mod(q, *qkv[1:]).sum(), q)
    eh.check(again, expected.grad)
    compiled = torch.compile(lambda q: mod(q, *qkv[1:]).sum(), fullgraph=True, backend="aot_eager")
    (within,) = torch.autograd.grad(compiled(q), q)
    assert torch.equal(within, again)


def test_a_nonlinear_end_has_no_derived_backward() -> None:
    class Nonlinear(Identity):
        @staticmethod
        def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            return o.tanh(), {}

        backward = OnlineFunc.backward

    qkv = eh.inputs(**SHAPES["square"])
    mod = eh.engine(qkv, online_func=Nonlinear())
    mod(*qkv)
    with pytest.raises(attn_mlir.AttnError, match="the output is not linear in the sum of weighted values"):
        mod(qkv[0].clone().requires_grad_(), *qkv[1:])


@pytest.mark.parametrize("online", [OnlineSoftmax, DerivedSoftmax])
def test_captured_tensors_that_need_a_gradient(online: Callable[[], OnlineFunc]) -> None:
    qkv = eh.inputs(**SHAPES["square"])
    slope = torch.tensor([0.2, 0.4], requires_grad=True)
    mod = eh.engine(qkv, online_func=online(), score_mod=lambda s, _, b, h, q_idx, kv_idx: s * slope[h], mask_mod=causal)
    mod(*qkv).square().sum().backward()
    expected = slope.detach().double().requires_grad_()
    eh.softmax(qkv, eh.scores(qkv) * expected.view(1, 2, 1, 1), causal).square().sum().backward()
    assert slope.grad is not None and expected.grad is not None
    eh.check(slope.grad, expected.grad, 1e-4)


@pytest.mark.parametrize("online", [OnlineRetention, DerivedRetention])
def test_torch_func(online: Callable[[], OnlineFunc]) -> None:
    qkv = eh.inputs(**SHAPES["square"])
    mod = eh.engine(qkv, online_func=online(), score_mod=scaled, mask_mod=causal)
    found = torch.func.grad(lambda q: mod(q, *qkv[1:]).square().sum())(qkv[0])
    expected = qkv[0].double().requires_grad_()
    retention(causal, online is OnlineRetention)(expected, *qkv[1:]).square().sum().backward()
    assert expected.grad is not None
    eh.check(found, expected.grad)
    rows = lambda q: mod(q, *qkv[1:], return_rowscales=True)[1]["r"].sum()  # noqa: E731
    if online is OnlineRetention:
        with pytest.raises(UnsupportedError, match="the row outputs have no gradient where `backward` is written"):
            torch.func.grad(rows)(qkv[0])
    else:
        assert torch.func.grad(rows)(qkv[0]).abs().max() > 0


@pytest.mark.parametrize("online", [OnlineSoftmax, DerivedSoftmax])
def test_double_precision(online: Callable[[], OnlineFunc]) -> None:
    qkv = eh.inputs(**SHAPES["gqa"], dtype=torch.float64)
    check(eh.engine(qkv, online_func=online(), score_mod=scaled, mask_mod=causal), qkv, softmax(causal), tolerance=1e-12)


def test_tangents_are_derived() -> None:
    qkv = eh.inputs(**SHAPES["square"])
    mod = eh.engine(qkv, score_mod=scaled, mask_mod=causal)
    dot = torch.ones_like(qkv[0])
    found = torch.func.jvp(lambda q: mod(q, *qkv[1:]), (qkv[0],), (dot,))
    expected = torch.func.jvp(lambda q: softmax(causal)(q, *qkv[1:]), (qkv[0].double(),), (dot.double(),))
    eh.check(found[1], expected[1])


def test_what_a_custom_vjp_reads_is_checked() -> None:
    table = torch.ones(40)

    class Reading(Identity):
        @staticmethod
        def backward(dp: Any, scores: Any, final_rowscales: Any, doosum_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return dp * table[q_idx + 5]

    qkv = eh.inputs(**SHAPES["square"])
    mod = eh.engine(qkv, online_func=Reading())
    mod(*qkv)
    with pytest.raises(ArgumentError, match=r"'table' has size 40 in dimension 0, but is read at q_idx \+ 5, which runs over 5..41"):
        mod(qkv[0].clone().requires_grad_(), *qkv[1:])
    table = torch.ones(42)
    check(mod, qkv, lambda *x: eh.weighted(x, eh.scores(x)))


def test_a_custom_vjp_is_traced_when_it_is_needed() -> None:
    """One of AttentionEngine's published programs has this mistake, and runs forward."""

    class Misnamed(OnlineSoftmax):
        @staticmethod
        def backward(dp: Any, p: Any, rows: Any, doosum: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:  # type: ignore[override]
            return (dp - doosum_rowscales) * p  # type: ignore[name-defined] # noqa: F821

    qkv = eh.inputs(**SHAPES["square"])
    mod = eh.engine(qkv, online_func=Misnamed(), score_mod=scaled)
    eh.check(mod(*qkv), softmax(None)(*qkv))
    text = "raised NameError: name 'doosum_rowscales' is not defined"
    assert f"the backward that Misnamed writes cannot be used: Misnamed `backward`: {text}" in mod.explain()
    o = mod(qkv[0].clone().requires_grad_(), *qkv[1:])
    with pytest.raises(TraceError, match=text):
        o.sum().backward()
