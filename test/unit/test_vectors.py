"""Small tensors in functions: captured tensors with some indices, and sums over them, against torch."""

from typing import Any

import pytest
import torch
from torch.overrides import _get_current_function_mode_stack

import attn_mlir
from flex_dense import compare, dense, qkv, tensors

W, U, P, G = (x.requires_grad_() for x in tensors((9, 3), (4, 3, 2), (3,), (2, 9, 3), dtype=torch.float64))
flex_attention: Any = attn_mlir.flex_attention
INDICES = torch.arange(4)

CASES: dict[str, Any] = {
    "distances": lambda s, b, h, m, n: s * torch.exp(-(W[m] - W[n] + 0.1).pow(2).sum(-1).sqrt()),
    "products": lambda s, b, h, m, n: s + torch.dot(W[m], W[n]) + W[m] @ W[n] + (W[m] * W[n]).sum(),
    "matrices": lambda s, b, h, m, n: s + (U[h].T @ W[m]).sum() + (W[n] @ U[h]).prod() + (U[h].mT @ U[h]).sum((0, 1)),
    "moments": lambda s, b, h, m, n: s * W[m].mean() + W[n].var() + (W[n] - W[m]).std(correction=0),
    "norms": lambda s, b, h, m, n: s + torch.norm(W[m]) + torch.linalg.vector_norm(W[n], ord=1) + W[n].norm(float("inf")),
    "extrema": lambda s, b, h, m, n: s + W[m].max() + W[n].amin() + torch.maximum(W[m], W[n]).sum(),
    "ties": lambda s, b, h, m, n: s + torch.round(W[m] * 0.0).max() + (W[m] - W[m].detach()).amax(-1) * (m - n),
    "softmax": lambda s, b, h, m, n: s + (W[m].softmax(-1) * P).sum() + torch.softmax(W[n], 0)[1],
    "choices": lambda s, b, h, m, n: s + torch.where(W[m] > W[n], W[m], 2.0 * s).sum(),
    "conditions": lambda s, b, h, m, n: torch.where((W[m] > 0.5).any() & (W[n] < 1.0).all(), s, 2.0 * s),
    "slices": lambda s, b, h, m, n: s + W[m, :2].sum() + G[b, m, 1:].prod() + G[b, :, 1].sum() + W[..., 1][m] + G[b, ..., 0].mean(),
    "whole": lambda s, b, h, m, n: s + (P * W[m]).sum() + (P * s).sum() + (2.0 - W[m]).abs().sum() + P.sum() * P.mean(),
    "one hot": lambda s, b, h, m, n: s + (INDICES * (INDICES == h)).sum() + (INDICES == h).sum(),
    "loops": lambda s, b, h, m, n: s + sum(x * y for x, y in zip(W[m], W[n], strict=True)) + W[m].unbind()[2],
    "shapes": lambda s, b, h, m, n: s + (W[m][:, None] * W[n][None]).sum() + (W[m].unsqueeze(-1) * U[h]).reshape(-1).sum(0),
    "functions": lambda s, b, h, m, n: s + torch.relu(W[m]).sum() + torch.sigmoid(W[m]).mul(W[n]).sum(dim=-1) + W[m].clamp(min=0.0)[0],
}


@pytest.mark.parametrize("name", CASES)
def test_against_torch(name: str) -> None:
    inputs = [x.double().requires_grad_() for x in qkv(sq=9, d=8)]
    captured = [W, U, P, G]
    for _ in range(2):
        o, wanted = flex_attention(*inputs, CASES[name]), dense(*inputs, CASES[name])[0]
        compare(o, wanted, 1e-9)
        upstream = torch.randn_like(o)
        theirs = torch.autograd.grad(wanted, [*inputs, *captured], upstream, allow_unused=True, materialize_grads=True)
        mine = torch.autograd.grad(o, [*inputs, *captured], upstream, allow_unused=True, materialize_grads=True)
        for a, b in zip(mine, theirs, strict=True):
            compare(a, b, 1e-8)
        with torch.no_grad():
            W.mul_(-0.7)


def test_another_size_is_traced_again() -> None:
    q, k, v = qkv(sq=9, d=8)
    for size in (3, 5, 1, 3):
        table = torch.randn(9, size)

        def score_mod(s: Any, b: Any, h: Any, m: Any, n: Any, table: Any = table) -> Any:
            return s + (table[m] * table[n]).sum() + len(table[m])

        compare(attn_mlir.attention(q, k, v, score_mod=score_mod), dense(q, k, v, score_mod)[0])


def test_masks_and_rows() -> None:
    q, k, v = qkv(sq=9, d=8)
    table = torch.randn(9, 3)

    def mask_mod(b: Any, h: Any, m: Any, n: Any) -> Any:
        return ((table[m] - table[n]) ** 2).sum() < 4.0

    compare(attn_mlir.attention(q, k, v, mask_mod=mask_mod), dense(q, k, v, mask_mod=mask_mod)[0])
    o = attn_mlir.attention(q, k, v, row=lambda s, b, h, m, n: s.softmax(-1) * table[n].sum())
    compare(o, (q.double() @ k.double().mT * 8**-0.5).softmax(-1) * table.double().sum(-1) @ v.double())


def _lengths(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
    """Python's decisions by ranks and lengths, of which a graph of torch.compile keeps nothing."""
    x, total = W[m], 0.0
    for i in range(x.shape[0]):
        total = total + x[i] * W[n][i] * len(U[h, :, 0])
    first, *_ = x
    return (s if s.ndim == m.dim() == 0 else 0.0) + total / x.size(0) + (first if x.shape == (3,) else 0.0)


SHAPED: dict[str, Any] = {
    "lengths": _lengths,
    "pieces": lambda s, b, h, m, n: s + sum(a * b for a, b in zip(W[m], G[b, m], strict=True)) + W[m].unbind()[0] * W[n][2],
    "indices": lambda s, b, h, m, n: s + W[m, INDICES[2]] + G[b, m, ..., 0] + U[h, None, 1:, 0].sum() + U[INDICES[1], -1, h % 2],
}


@pytest.mark.parametrize("name", [*(name for name in CASES if name != "one hot"), *SHAPED])
def test_inside_torch_compile(name: str) -> None:
    """Shapes are those outside: arguments have no dimensions, so that `W[m]` has three elements, and not one row of them."""
    case = (CASES | SHAPED)[name]
    inputs = [x.double().requires_grad_() for x in qkv(sq=9, d=8)]
    compiled: Any = torch.compile(flex_attention, fullgraph=True, backend="aot_eager")
    o, wanted = compiled(*inputs, case), dense(*inputs, case)[0]
    compare(o, wanted, 1e-9)
    wrt = [*inputs, W, U, P, G]
    found, known = [torch.autograd.grad(x.sum(), wrt, allow_unused=True, materialize_grads=True) for x in (o, wanted)]
    for a, b in zip(found, known, strict=True):
        compare(a, b, 1e-8)


def test_shapes_in_linear_attention() -> None:
    rates, q, k, v = W.detach()[:2, :2], *(torch.randn(1, 2, 9, 4, dtype=torch.float64) for _ in range(3))

    def forget(g: Any, b: Any, h: Any, t: Any) -> Any:
        return sum((-rates[h][i].abs() for i in range(rates[h].shape[0])), g * 0.0)

    compiled: Any = torch.compile(attn_mlir.linear_attention, fullgraph=True, backend="aot_eager")
    fixed = -rates.abs().sum(-1)
    compare(compiled(q, k, v, decay_mod=forget), attn_mlir.linear_attention(q, k, v, fixed), 1e-12)


def test_functions_that_fail_leave_no_mode_of_indices() -> None:
    def failing(s: Any, b: Any, h: Any, m: Any, n: Any) -> Any:
        raise ValueError("on purpose")

    before = _get_current_function_mode_stack()
    for fullgraph in (True, False):
        compiled: Any = torch.compile(flex_attention, fullgraph=fullgraph, backend="eager")
        with pytest.raises(Exception, match="on purpose"):
            compiled(*qkv(sq=9, d=8), failing)
        assert _get_current_function_mode_stack() == before


LARGE = torch.zeros(9, 129)
REFUSED: dict[str, Any] = {
    "computes with all of `LARGE`": lambda s, m: s + (LARGE[m] * 2.0).sum(),
    "mul gives 3225 elements": lambda s, m: s + (W[m] * LARGE[0, :43, None, None].expand(43, 25, 3)).sum(),
    "returned a tensor": lambda s, m: s + W[m],
    "cumsum of a tensor of traced values is not known": lambda s, m: s + torch.cumsum(W[m], 0)[1],
    "the truth of a tensor": lambda s, m: s if W[m] > 0 else -s,
    "gives values and indices": lambda s, m: s + W[m].max(dim=0)[0],
    "indexes a tensor that is computed": lambda s, m: s + (2.0 * W[m])[m],
    "could not be broadcast": lambda s, m: s + (W[m] * W[m, :2]).sum(),
}


@pytest.mark.parametrize("told", REFUSED)
def test_what_is_refused(told: str) -> None:
    case = REFUSED[told]
    with pytest.raises(attn_mlir.TraceError, match=told):
        attn_mlir.attention(*qkv(sq=9), score_mod=lambda s, b, h, m, n: case(s, m))
