"""Rows of several scores, extra_qk=[(q2, k2)], against the same computed densely in float64."""

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
    attention,
    compile_ahead,
    dropout_mask,
    masks,
)

B, HQ, HKV, SQ, SKV, D, D2, DV = 2, 4, 2, 37, 41, 16, 24, 8
Tensors = list[torch.Tensor]


def leaves(sq: int = SQ, skv: int = SKV, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensors:
    q, k, v = ((B, HQ, sq, D), (B, HKV, skv, D), (B, HKV, skv, DV))
    shapes = (q, k, v, (B, HQ, sq, D2), (B, HKV, skv, D2))
    tensors = [(torch.randn(shape) * (scale if n != 2 else 1.0)).to(dtype) for n, shape in enumerate(shapes)]
    lam = torch.rand(HQ, dtype=torch.float64 if dtype == torch.float64 else torch.float32)
    return [x.requires_grad_() for x in (*tensors, lam)]


def differential(lam: torch.Tensor) -> Callable[..., Any]:
    return lambda s, s2, b, h, q_idx: s.softmax(-1) - lam[h] * s2.softmax(-1)


def ours(q: Any, k: Any, v: Any, q2: Any, k2: Any, lam: Any, **options: Any) -> Any:
    return attention(q, k, v, row=differential(lam), extra_qk=[(q2, k2)], **options)


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.repeat_interleave(HQ // HKV, 1).mT * q.shape[-1] ** -0.5


def softmax(s: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    if keep is None:
        return s.softmax(-1)
    p = s.masked_fill(~keep, -torch.inf).softmax(-1)
    return torch.where(keep.any(-1, keepdim=True), p, 0.0)


def dense(tensors: Sequence[torch.Tensor], keep: Any = None, kept: Any = None) -> torch.Tensor:
    q, k, v, q2, k2, lam = tensors
    p = softmax(scores(q, k), keep) - lam[:, None, None] * softmax(scores(q2, k2), keep)
    return (p if kept is None else p * kept) @ v.repeat_interleave(HQ // HKV, 1)


def doubled(tensors: Tensors) -> Tensors:
    return [x.detach().double().requires_grad_() for x in tensors]


def with_gradients(o: torch.Tensor, tensors: Tensors) -> Tensors:
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return [o, *torch.autograd.grad(o, tensors, do.to(o.dtype))]


def compare(found: Tensors, wanted: Tensors, tolerance: float) -> None:
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert_near(x, y, tolerance)


def causal(sq: int = SQ, skv: int = SKV) -> torch.Tensor:
    return torch.arange(sq)[:, None] >= torch.arange(skv)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("sq", "skv"), [(SQ, SKV), (1, SKV), (5, 3), (70, 131)])
def test_differential(sq: int, skv: int, masked: bool) -> None:
    given = leaves(sq, skv)
    wanted = with_gradients(dense(other := doubled(given), causal(sq, skv) if masked else None), other)
    mask = masks.causal() if masked else None
    compare(with_gradients(ours(*given, mask_mod=mask), given), wanted, 2e-5)
    with torch.no_grad():
        assert_near(ours(*given, mask_mod=mask), wanted[0], 2e-6)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_dtypes(dtype: torch.dtype, tolerance: float) -> None:
    given = leaves(dtype=dtype)
    compare(with_gradients(ours(*given), given), with_gradients(dense(other := doubled(given)), other), tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-3), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)]
)
def test_large_scores(dtype: torch.dtype, tolerance: float) -> None:
    """Scores of thousands."""
    given = leaves(dtype=dtype, scale=30.0)
    compare(with_gradients(ours(*given), given), with_gradients(dense(other := doubled(given)), other), tolerance)


def test_rows_without_keys() -> None:
    given, keep = leaves(), torch.arange(SQ)[:, None] - 4 > torch.arange(SKV)
    found = with_gradients(ours(*given, mask_mod=lambda b, h, q_idx, kv_idx: q_idx - 4 > kv_idx), given)
    assert not found[0][:, :, :5].any()
    assert not found[1][:, :, :5].any()
    compare(found, with_gradients(dense(other := doubled(given), keep), other), 2e-5)


def test_no_keys() -> None:
    given = leaves(3, 0)
    assert not any(x.isnan().any() or x.any() for x in with_gradients(ours(*given), given))


def test_dropout() -> None:
    given, seed = leaves(), (5, 7)
    kept = dropout_mask(B, HQ, SQ, SKV, 0.3, seed) / 0.7
    wanted = with_gradients(dense(other := doubled(given), None, kept), other)
    compare(with_gradients(ours(*given, dropout_p=0.3, dropout_seed=seed), given), wanted, 2e-5)


def test_layouts_and_strides() -> None:
    """Heads of both pairs alternate in one tensor, as Differential Transformers project them."""
    both_q, both_k = torch.randn(B, SQ, 2 * HQ, D), torch.randn(B, SKV, 2 * HKV, D)
    v, lam = torch.randn(B, SKV, HKV, DV), torch.rand(HQ)
    given = [x.requires_grad_() for x in (both_q, both_k, v, lam)]

    def split(tensors: Tensors) -> Tensors:
        q, k, v, lam = tensors
        return [q[:, :, ::2], k[:, :, ::2], v, q[:, :, 1::2], k[:, :, 1::2], lam]

    wide = doubled(given)
    parts = [x.transpose(1, 2) if x.dim() == 4 else x for x in split(wide)]
    wanted = with_gradients(dense(parts).transpose(1, 2), wide)
    found = with_gradients(ours(*split(given), layout="bshd"), given)
    compare(found, wanted, 2e-5)
    columns = [x.mT.contiguous().mT for x in (parts[0][:, :, :1].float(), *[x.float() for x in parts[1:5]])]
    columns[3] = columns[3][:, :, :1]
    with torch.no_grad():
        q, k, v, q2, k2 = columns
        found = ours(q, k, v, q2, k2, lam)
    assert_near(found.double(), wanted[0].transpose(1, 2)[:, :, :1], 2e-6)


def test_compiled() -> None:
    call: Any = torch.compile(lambda *x: ours(*list(x), mask_mod=masks.causal()), backend="aot_eager", fullgraph=True, dynamic=True)
    for sq, skv in ((SQ, SKV), (53, 71)):
        given = leaves(sq, skv)
        compare(with_gradients(call(*given), given), with_gradients(dense(other := doubled(given), causal(sq, skv)), other), 2e-5)


def test_object() -> None:
    given = leaves()
    made = Attention(row=lambda s, s2: s.softmax(-1) - 0.5 * s2.softmax(-1), extra_qk=1)
    assert "rank 2" in made.explain()
    o = made(*given[:3], extra_qk=[(given[3], given[4])])
    assert_near(o.double(), dense([*doubled(given)[:5], torch.full((HQ,), 0.5)]), 2e-6)
    with pytest.raises(ArgumentError, match=r"made with extra_qk=1, and the call gives 0 additional pairs"):
        made(*given[:3])
    with pytest.raises(ArgumentError, match=r"number of additional pairs of q and k that calls give"):
        Attention(extra_qk=[(given[3], given[4])])  # type: ignore[arg-type]


def test_exported() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = Attention(score_mod=joined, extra_qk=1)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, q2: torch.Tensor, k2: torch.Tensor) -> torch.Tensor:
            return self.attend(q, k, v, extra_qk=[(q2, k2)])

    model, length = Model(), torch.export.Dim("length", min=2, max=1000)
    sample, other = (tuple(x.detach() for x in leaves(n, n)[:5]) for n in (9, 23))
    exported = torch.export.export(model, sample, dynamic_shapes=[{2: length}] * 5).module()
    assert torch.equal(exported(*other), model(*other))
    with pytest.raises(ArgumentError, match=r"`k2` has shape \[2, 2, 22, 24\], and must have \[2, 2, 23, 24\] beside this k"):
        torch.ops.attn_mlir.forward(*other[:3], [other[3], other[4][:, :, 1:]], [], [], _program(exported), "", "bhsd")


def _program(exported: torch.fx.GraphModule) -> str:
    calls = [node for node in exported.graph.nodes if node.target is torch.ops.attn_mlir.forward.default]
    return next(argument for argument in calls[0].args if isinstance(argument, str) and "func.func" in argument)


def test_report_and_ahead(tmp_path: Path) -> None:
    made = Attention(row=lambda s, s2: s.softmax(-1) * s2.sigmoid(), extra_qk=1)
    made.report(str(tmp_path / "report.html"), head_dim=16)
    assert "q2" in (tmp_path / "report.html").read_text(encoding="utf-8")
    library = compile_ahead(made, inputs=InputSpec(torch.float32, 16, extra_dims=(16,)), target="cpu", out=str(tmp_path / "libmade.so"))
    assert "q2" in library.header.read_text()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_emulated_amd(dtype: torch.dtype) -> None:
    given = leaves(19, 37, dtype)
    wanted = with_gradients(dense(other := doubled(given), causal(19, 37)), other)
    found = with_gradients(ours(*given, mask_mod=masks.causal(), device="hip-emulated"), given)
    compare(found, wanted, 4e-3 if dtype == torch.float16 else 3e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dim", [64, 128])
def test_nvidia(dim: int, dtype: torch.dtype) -> None:
    shapes = [(B, HQ, 301, dim), (B, HKV, 333, dim), (B, HKV, 333, dim), (B, HQ, 301, dim), (B, HKV, 333, dim)]
    given = [torch.randn(shape, device="cuda").to(dtype).requires_grad_() for shape in shapes]
    given.append(torch.rand(HQ, device="cuda").requires_grad_())
    wanted = with_gradients(dense(other := doubled([x.cpu() for x in given]), causal(301, 333)), other)
    o = ours(*given, mask_mod=masks.causal())
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = [o, *torch.autograd.grad(o, given, do.to(o.device, o.dtype))]
    compare([x.cpu() for x in found], wanted, 6e-3 if dtype == torch.float16 else 4e-2)


def each(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return s + 0.125 * (kv_idx - q_idx)


def joined(s: Any, s2: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return s + s2


def three(s: Any, s2: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return s, s2, torch.tanh(s * s2)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("score_mod", [each, joined, three])
def test_score_mods(score_mod: Callable[..., Any], compiled: bool) -> None:
    rows: dict[Any, Callable[..., Any]] = {
        each: lambda s, s2: s.softmax(-1) * s2.sigmoid(),
        joined: lambda s: s.softmax(-1),
        three: lambda s, s2, s3: (s + s2).softmax(-1) + s3,
    }
    call: Any = lambda q, k, v, q2, k2: attention(q, k, v, row=rows[score_mod], score_mod=score_mod, extra_qk=[(q2, k2)])  # noqa: E731
    call = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    given = leaves()[:5]
    q, k, v, q2, k2 = other = doubled(given)
    s, s2, i, j = scores(q, k), scores(q2, k2), torch.arange(SQ)[:, None], torch.arange(SKV)
    changed: Any = (each(s, 0, 0, i, j), each(s2, 0, 0, i, j)) if score_mod is each else score_mod(s, s2, 0, 0, i, j)
    p = rows[score_mod](*(changed if isinstance(changed, tuple) else (changed,)))
    compare(with_gradients(call(*given), given), with_gradients(p @ v.repeat_interleave(HQ // HKV, 1), other), 3e-5)


def test_rows_that_use_kv_idx() -> None:
    """Two kinds of keys in one row: the first are asked by q, the others by q2."""
    given = leaves()[:5]
    q, k, v, q2, k2 = other = doubled(given)
    row = lambda s, s2, b, h, q_idx, kv_idx: torch.where(kv_idx < 7, s, s2).softmax(-1)  # noqa: E731
    p = torch.where(torch.arange(SKV) < 7, scores(q, k), scores(q2, k2)).softmax(-1)
    o = attention(*given[:3], row=row, extra_qk=[(given[3], given[4])])
    compare(with_gradients(o, given), with_gradients(p @ v.repeat_interleave(HQ // HKV, 1), other), 2e-5)


def test_three_pairs_and_a_scale() -> None:
    given = leaves()[:5]
    q, k, v, q2, k2 = other = doubled(given)
    pairs = lambda q, k, q2, k2: [(q2, k2), (q2 * 0.5, k2), (q, k)]  # noqa: E731
    row = lambda s, s2, s3, s4: s.softmax(-1) - s2.softmax(-1) * s3.sigmoid() + s4.relu()  # noqa: E731
    o = attention(*given[:3], row=row, extra_qk=pairs(given[0], given[1], given[3], given[4]), scale=0.2)
    s, s2 = (x * 0.2 for x in (scores(q, k) * D**0.5, scores(q2, k2) * D2**0.5))
    p = row(s, s2, s2 * 0.5, s)
    compare(with_gradients(o, given), with_gradients(p @ v.repeat_interleave(HQ // HKV, 1), other), 3e-5)


def test_lse_is_that_of_the_first_score() -> None:
    given = leaves()
    _, lse = ours(*given, return_lse=True)
    wanted = doubled(given)
    assert_near(lse.double(), scores(wanted[0], wanted[1]).logsumexp(-1), 2e-6)


def test_tangents_second_derivatives_and_vmap() -> None:
    given = [x.detach() for x in leaves(11, 13, torch.float64)]
    changes = [torch.randn_like(x) for x in given]
    wanted = lambda *x: dense(x)  # noqa: E731
    for x, y in zip(torch.func.jvp(ours, tuple(given), tuple(changes)), torch.func.jvp(wanted, tuple(given), tuple(changes)), strict=True):
        assert_near(x, y, 1e-12)

    def second(f: Callable[..., torch.Tensor]) -> Tensors:
        tensors = doubled(given)
        first = torch.autograd.grad(f(*tensors).square().sum(), tensors, create_graph=True)
        return list(torch.autograd.grad(sum((x.square().sum() for x in first), torch.zeros(())), tensors))

    compare(second(ours), second(wanted), 1e-11)
    batch = [torch.stack([x, x * 0.5]) for x in given]
    assert_near(torch.vmap(ours)(*batch), torch.vmap(wanted)(*batch), 1e-12)


def test_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(*leaves()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda q2, k2: (q2, k2), ArgumentError, r"extra_qk=\[\(q2, k2\)\]; got a list with Tensor"),
        (lambda q2, k2: q2, ArgumentError, r"extra_qk is a list of pairs of tensors"),
        (lambda q2, k2: [(q2[:, :2], k2)], ArgumentError, r"q2 has shape .*; it must have batch 2, 4 heads and 37 positions as q has"),
        (lambda q2, k2: [(q2, k2[:, :, 1:])], ArgumentError, r"k2 has shape .*; it must have batch 2, 2 heads and 41 positions as k has"),
        (lambda q2, k2: [(q2, k2[..., 1:])], ArgumentError, r"q2 has head dimension 24 but k2 has 23"),
        (lambda q2, k2: [(q2.double(), k2)], ArgumentError, r"q2 has dtype torch.float64 but q has torch.float32"),
        (lambda q2, k2: [(q2, k2)] * 8, ArgumentError, r"extra_qk has 8 pairs; there may be 7"),
        (lambda q2, k2: [], TraceError, r"additional pairs of q and k: extra_qk=\[\(q2, k2\)\]"),
        (lambda q2, k2: [(q2, k2)] * 2, TraceError, r"the row takes 3 scores: make a weight of them in row"),
    ],
)
def test_mistakes(change: Callable[..., Any], error: type[Exception], message: str) -> None:
    q, k, v, q2, k2, _ = leaves()
    with pytest.raises(error, match=message):
        attention(q, k, v, row=lambda s, s2: s.softmax(-1) - s2.softmax(-1), extra_qk=change(q2, k2))


def test_a_score_mod_is_no_row() -> None:
    q, k, v, q2, k2, _ = leaves()
    with pytest.raises(TraceError, match=r"this looks like a score_mod"):
        attention(q, k, v, row=lambda score, score2, b, h, q_idx, kv_idx: score, extra_qk=[(q2, k2)])
    with pytest.raises(TraceError, match=r"returned 0 scores"):
        attention(q, k, v, score_mod=lambda s, s2, b, h, q_idx, kv_idx: (), extra_qk=[(q2, k2)])
