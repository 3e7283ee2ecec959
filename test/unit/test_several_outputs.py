"""Rows of several weights, each with an o of its own, against the same computed densely in float64."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from api_helpers import assert_near
from attn_mlir import (
    ArgumentError,
    Attention,
    InputSpec,
    TraceError,
    UnsupportedError,
    attention,
    attention_varlen,
    compile_ahead,
    dropout_mask,
    masks,
)

B, HQ, HKV, SQ, SKV, D, DV = 2, 4, 2, 37, 41, 16, 8
Tensors = list[torch.Tensor]


def leaves(sq: int = SQ, skv: int = SKV, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensors:
    shapes = ((B, HQ, sq, D), (B, HKV, skv, D), (B, HKV, skv, DV))
    tensors = [(torch.randn(shape) * (scale if n != 2 else 1.0)).to(dtype) for n, shape in enumerate(shapes)]
    gate = torch.rand(HQ, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    return [x.requires_grad_() for x in (*tensors, gate)]


def gated(gate: torch.Tensor) -> Callable[..., Any]:
    """Softmax, and the same with a gate for each pair."""

    def row(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        lse = s.logsumexp(-1)
        p = (s - lse).exp()
        return p, p * torch.sigmoid(s * gate[h]), {"lse": lse}

    return row


def ours(q: Any, k: Any, v: Any, gate: Any, **options: Any) -> Any:
    return attention(q, k, v, row=gated(gate), **options)


def keys(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(HQ // HKV, 1)


def dense(tensors: Sequence[torch.Tensor], keep: Any = None, kept: Any = 1.0) -> Tensors:
    q, k, v, gate = tensors
    s = q @ keys(k).mT * q.shape[-1] ** -0.5
    keep = torch.ones_like(s, dtype=torch.bool) if keep is None else keep.expand(s.shape)
    some = keep.any(-1, keepdim=True)
    lse = s.masked_fill(~keep & some, -torch.inf).logsumexp(-1)
    p = torch.where(keep, s - lse[..., None], -torch.inf).exp()
    weights = p, p * torch.sigmoid(s * gate[:, None, None])
    return [*[(w * kept) @ keys(v) for w in weights], torch.where(some[..., 0], lse, -torch.inf)]


def doubled(tensors: Sequence[torch.Tensor]) -> Tensors:
    return [x.detach().double().requires_grad_() for x in tensors]


def with_gradients(made: Sequence[torch.Tensor], tensors: Tensors) -> Tensors:
    draw = torch.Generator().manual_seed(4)
    grads = [torch.randn(o.shape, generator=draw, dtype=torch.float64).to(o.dtype) for o in made]
    grads = [torch.where(o.detach().isfinite(), grad, 0.0) for o, grad in zip(made, grads, strict=True)]
    return [*made, *torch.autograd.grad(list(made), tensors, grads)]


def flat(made: Any) -> Tensors:
    return [x for part in made for x in (part if isinstance(part, tuple) else (part,))]


def compare(found: Tensors, wanted: Tensors, tolerance: float) -> None:
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        empty = y == -torch.inf
        assert torch.equal(x == -torch.inf, empty)
        assert_near(x.masked_fill(empty, 0.0), y.masked_fill(empty, 0.0), tolerance)


def causal(sq: int = SQ, skv: int = SKV) -> torch.Tensor:
    return torch.arange(sq)[:, None] >= torch.arange(skv)


@pytest.mark.parametrize(("sq", "skv"), [(SQ, SKV), (1, SKV), (5, 3), (127, 1000)])
def test_lengths(sq: int, skv: int) -> None:
    given = leaves(sq, skv)
    wanted = with_gradients(dense(other := doubled(given), causal(sq, skv)), other)
    made = ours(*given, mask_mod=masks.causal(), return_lse=True)
    assert isinstance(made[0], tuple)
    compare(with_gradients(flat(made), given), wanted, 2e-5)
    with torch.no_grad():
        compare(list(ours(*given, mask_mod=masks.causal())), wanted[:2], 3e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    """Also scores of hundreds. Tangents and second derivatives are compared in float64."""
    for scale in (1.0, 6.0):
        given = leaves(dtype=dtype, scale=scale)
        found = with_gradients(flat(ours(*given, mask_mod=masks.causal(), return_lse=True)), given)
        compare(found, with_gradients(dense(other := doubled(given), causal()), other), tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_entropy(dtype: torch.dtype) -> None:
    """-p log p beside p: with weights of 16 bits in a second pass, where two sums of it would cancel at scores of hundreds."""

    def row(s: Any) -> Any:
        lse = s.logsumexp(-1)
        p = (s - lse).exp()
        return p, p * (lse - s)

    q, k, v, _ = (x.detach() for x in leaves(dtype=dtype, scale=6.0))
    p = (q.double() @ keys(k.double()).mT * D**-0.5).softmax(-1)
    wanted = [w @ keys(v.double()) for w in (p, torch.special.entr(p))]
    compare(list(attention(q, k, v, row=row)), wanted, 3e-5 if dtype == torch.float32 else 2e-2)


def test_rows_without_keys() -> None:
    given, keep = leaves(), torch.arange(SQ)[:, None] - 4 > torch.arange(SKV)
    made = ours(*given, mask_mod=lambda b, h, q_idx, kv_idx: q_idx - 4 > kv_idx, return_lse=True)
    assert not any(o[:, :, :5].any() for o in made[0])
    found = with_gradients(flat(made), given)
    assert not found[3][:, :, :5].any()
    compare(found, with_gradients(dense(other := doubled(given), keep), other), 2e-5)


def test_no_keys() -> None:
    given = leaves(3, 0)
    made = ours(*given, mask_mod=masks.causal(), return_lse=True)
    assert (made[1] == -torch.inf).all()
    assert not any(x.any() for x in with_gradients(made[0], given))
    with torch.no_grad():
        assert [tuple(o.shape) for o in ours(*given, mask_mod=masks.causal())] == [(B, HQ, 3, DV)] * 2


def test_dropout() -> None:
    """A pair that is dropped is dropped from all outputs."""
    given, seed = leaves(), (5, 7)
    kept = dropout_mask(B, HQ, SQ, SKV, 0.3, seed) / 0.7
    wanted = with_gradients(dense(other := doubled(given), None, kept), other)
    compare(with_gradients(flat(ours(*given, dropout_p=0.3, dropout_seed=seed, return_lse=True)), given), wanted, 3e-5)


def test_layouts_and_states() -> None:
    given = leaves()
    wanted = dense(other := doubled(given), causal())
    wanted = with_gradients([*[o.transpose(1, 2) for o in wanted[:2]], wanted[2]], other)
    q, k, v, gate = given
    turned: Any = [*[x.transpose(1, 2) for x in (q, k, v)], gate]
    made, states = ours(*turned, layout="bshd", mask_mod=masks.causal(), return_states=True)
    assert list(states) == ["lse"]
    assert all(o.is_contiguous() for o in made)
    compare(with_gradients([*made, states["lse"]], given), wanted, 2e-5)


def test_value_mod() -> None:
    """All outputs sum the changed v."""
    q, k, v, _ = given = leaves()
    row = lambda s: (s.softmax(-1), s.sigmoid())  # noqa: E731
    found = with_gradients(attention(q, k, v, row=row, value_mod=lambda x, b, h, i, d: torch.tanh(x) * i), given[:3])
    q, k, v, _ = other = doubled(given)
    s, v = q @ keys(k).mT * D**-0.5, torch.tanh(v) * torch.arange(SKV)[:, None]
    compare(found, with_gradients([w @ keys(v) for w in row(s)], other[:3]), 2e-5)


def test_two_scores() -> None:
    """Both maps of differential attention in one call, with a state."""
    q, k, v, _ = given = leaves()
    row = lambda s, s2: (s.softmax(-1), s2.softmax(-1), {"largest": s2.max()})  # noqa: E731
    (o, o2), states = attention(q, k, v, row=row, extra_qk=[(q * 0.5, k.flip(2))], return_states=True)
    found = with_gradients([o, o2, states["largest"]], given[:3])
    q, k, v, _ = other = doubled(given)
    s, s2 = (x @ keys(y).mT * D**-0.5 for x, y in ((q, k), (q * 0.5, k.flip(2))))
    wanted = [s.softmax(-1) @ keys(v), s2.softmax(-1) @ keys(v), s2.amax(-1)]
    compare(found, with_gradients(wanted, other[:3]), 2e-5)


def test_tangents_second_derivatives_and_vmap() -> None:
    row = lambda gate: lambda s, b, h, q_idx: (s.softmax(-1), s.sigmoid() * gate[h], {"total": s.exp().sum()})  # noqa: E731

    def ours(*x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (o, o2), states = attention(*x[:3], row=row(x[3]), return_states=True)
        return o, o2, states["total"]

    def wanted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor, ...]:
        s = q @ keys(k).mT * D**-0.5
        return s.softmax(-1) @ keys(v), s.sigmoid() * gate[:, None, None] @ keys(v), s.exp().sum(-1)

    given = [x.detach() for x in leaves(11, 13, torch.float64)]
    changes = [torch.randn_like(x) for x in given]
    found, exact = (torch.func.jvp(f, tuple(given), tuple(changes)) for f in (ours, wanted))
    compare([*found[0], *found[1]], [*exact[0], *exact[1]], 1e-12)

    def second(f: Callable[..., Sequence[torch.Tensor]]) -> Tensors:
        tensors = doubled(given)
        o, o2, total = f(*tensors)
        first = torch.autograd.grad(o.square().sum() + (o2 * total[..., None]).sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum((x.square().sum() for x in first), torch.zeros(())), tensors))

    compare(second(ours), second(wanted), 1e-10)
    batch = [torch.stack([x, x * 0.5]) for x in given]
    compare(list(torch.vmap(ours)(*batch)), list(torch.vmap(wanted)(*batch)), 1e-12)


def test_compiled() -> None:
    call: Any = torch.compile(
        lambda *x: ours(*list(x), mask_mod=masks.causal(), return_lse=True), backend="aot_eager", fullgraph=True, dynamic=True
    )
    for sq, skv in ((SQ, SKV), (53, 71)):
        given = leaves(sq, skv)
        wanted = with_gradients(dense(other := doubled(given), causal(sq, skv)), other)
        compare(with_gradients(flat(call(*given)), given), wanted, 2e-5)


def test_object_exported() -> None:
    """An object tells that there is one pass, and that the backward reads the keys once."""
    model, length = Attention(row=lambda s: (s.softmax(-1), s.sigmoid())), torch.export.Dim("length", min=2, max=1000)
    told = model.explain()
    assert "passes over keys: 1; state per row: max, sum; accumulators: 2" in told
    assert "passes over pairs: 1" in told
    assert "dv = sum over queries of (exp(s - max) / sum) do + (" in told
    sample, other = ([x.detach() for x in leaves(n, n)[:3]] for n in (9, 23))
    exported = torch.export.export(model, tuple(sample), dynamic_shapes={"q": {2: length}, "k": {2: length}, "v": {2: length}}).module()
    made = model(*other)
    assert [torch.equal(x, y) for x, y in zip(exported(*other), made, strict=True)] == [True, True]


def test_packed_and_nested() -> None:
    row = lambda s: (s.softmax(-1), s.sigmoid(), {"lse": s.logsumexp(-1)})  # noqa: E731
    q, k, v = (torch.randn(n, h, d, requires_grad=True) for n, h, d in ((9, HQ, D), (9, HKV, D), (9, HKV, DV)))
    ends = [0, 4, 4, 9]
    offsets = torch.tensor(ends, dtype=torch.int32)
    found, lse = attention_varlen(q, k, v, offsets, row=row, return_lse=True)
    parts = []
    other = doubled((q, k, v))
    for begin, end in itertools.pairwise(ends):
        a, b, c = (x[begin:end].transpose(0, 1) for x in other)
        s = a @ b.repeat_interleave(2, 0).mT * D**-0.5
        made = [w @ c.repeat_interleave(2, 0) for w in (s.softmax(-1), s.sigmoid())]
        parts.append([*[o.transpose(0, 1) for o in made], s.logsumexp(-1)])
    wanted = [torch.cat([part[i] for part in parts], 1 if i == 2 else 0) for i in range(3)]
    compare(with_gradients([*found, lse], [q, k, v]), with_gradients(wanted, other), 2e-5)
    call: Any = torch.compile(lambda q, k, v, cu: attention_varlen(q, k, v, cu, row=row), backend="aot_eager", fullgraph=True)
    compare(list(call(q, k, v, offsets)), wanted[:2], 3e-6)
    jagged = [torch.nested.nested_tensor_from_jagged(x.detach(), offsets.long()).transpose(1, 2) for x in (q, k, v)]
    nested, states = attention(*jagged, row=row, return_lse=True)
    compare([*[x.transpose(1, 2).values() for x in nested], states.transpose(1, 2).values().mT], wanted, 3e-6)
    with pytest.raises(ArgumentError, match=r"out holds one o, and the row gives 2 weights"), torch.no_grad():
        attention_varlen(q, k, v, offsets, row=row, out=torch.empty(9, HQ, DV))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (lambda s: (s.softmax(-1),), r"returned a tuple of 1"),
        (lambda s: (), r"returned a tuple of 0"),
        (lambda s: ({"lse": s.max()}, s), r"returned a tuple of 2"),
        (lambda s: ((s, s), {"lse": s.max()}), r"returned a tuple of 2"),
        (
            lambda s: (s.softmax(-1), s.logsumexp(-1)),
            r"a value of the row as its weight number 2\n(.*\n)*.*row outputs go into a dictionary",
        ),
    ],
)
def test_mistakes(row: Callable[..., Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        Attention(row=row)


def test_not_ahead_of_time(tmp_path: Path) -> None:
    made = Attention(row=lambda s: (s.softmax(-1), s.sigmoid()))
    with pytest.raises(UnsupportedError, match=r"a row of 2 weights.* make a library for each weight"):
        compile_ahead(made, InputSpec(torch.float32, 16), out=tmp_path / "libmade.so")


def test_emulated_amd() -> None:
    q, k, v, _ = given = leaves(19, 37, torch.float16)
    row = lambda s: (s.softmax(-1), s.softmax(-1) * s.sigmoid())  # noqa: E731
    found = with_gradients(attention(q, k, v, row=row, device="hip-emulated"), given[:3])
    q, k, v, _ = other = doubled(given)
    s = q @ keys(k).mT * D**-0.5
    compare(found, with_gradients([w @ keys(v) for w in row(s)], other[:3]), 4e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 128])
def test_nvidia(dim: int, dtype: torch.dtype) -> None:
    shapes = [(B, HQ, 301, dim), (B, HKV, 333, dim), (B, HKV, 333, dim)]
    given = [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    given.append(torch.rand(HQ, device="cuda").requires_grad_())
    wanted = with_gradients(dense(other := doubled([x.cpu() for x in given]), causal(301, 333)), other)
    made = flat(ours(*given, mask_mod=masks.causal(), return_lse=True))
    draw = torch.Generator().manual_seed(4)
    grads = [torch.randn(o.shape, generator=draw, dtype=torch.float64).to(o.device, o.dtype) for o in made]
    found = [*made, *torch.autograd.grad(made, given, grads)]
    compare([x.detach().cpu() for x in found], wanted, 6e-3 if dtype == torch.float16 else 4e-2)
