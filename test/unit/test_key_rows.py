"""Rows that use kv_idx, against the same computed densely in float64, with gradients of everything they read."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from api_helpers import assert_near, inputs, order
from attn_mlir import Attention, TraceError, attention, masks

SQ, SKV = 17, 29
TABLE = torch.randn(4, SKV, generator=torch.Generator().manual_seed(2))
RATE = torch.rand(4, generator=torch.Generator().manual_seed(3)) * 0.2


def sink_tokens(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Softmax in which the first keys count more after normalisation, and the others less."""
    p = s.softmax(-1)
    return torch.where(kv_idx < 3, p * 2.0, p * 0.5)


def weighted(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Softmax times a learned weight of each key: not a bias of the score, since the sum does not know of it."""
    return s.softmax(-1) * torch.sigmoid(TABLE[h, kv_idx])


def retained(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Scores that fade with the distance, divided by what remains of them."""
    faded = s * torch.exp(-RATE[h] * abs(q_idx - kv_idx))
    return faded / (1.0 + faded.abs().sum(-1)[..., None])


def centred(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """A reduction of positions alone, and one of both."""
    mean = (kv_idx.float() * s.softmax(-1)).sum(-1)[..., None]
    return s.softmax(-1) * (kv_idx - mean) / (1.0 + kv_idx.float().max())


def of_positions(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return 1.0 / (1.0 + kv_idx)


ROWS: dict[str, Callable[..., Any]] = {f.__name__: f for f in (sink_tokens, weighted, retained, centred)}


def dense(row: Callable[..., Any], q: Any, k: Any, v: Any, keep: Any = None) -> torch.Tensor:
    """The row on whole tensors; `keep` is applied where the row is a softmax at first."""
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    s = q @ k.mT * q.shape[-1] ** -0.5
    if keep is not None:
        s = s.masked_fill(~keep, -torch.inf)
    b, h, i, j = (torch.arange(n).view(*(n if a == c else 1 for c in range(4))) for a, n in enumerate(s.shape))
    return row(s, b, h, i, j.expand(s.shape)) @ v


def leaves() -> list[Any]:
    return [x.requires_grad_() for x in inputs(b=1, sq=SQ, skv=SKV, d=16, dv=16)]


@pytest.fixture(autouse=True)
def _learned(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, tensor in (("TABLE", TABLE), ("RATE", RATE)):
        monkeypatch.setitem(globals(), name, tensor.clone().requires_grad_())


def captured(row: str) -> list[torch.Tensor]:
    return {"weighted": [TABLE], "retained": [RATE]}.get(row, [])


def with_gradients(o: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return [o, *torch.autograd.grad(o, tensors, do.to(o.dtype))]


@pytest.mark.parametrize(("name", "compiled"), [*((name, False) for name in ROWS), ("weighted", True)])
def test_rows(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    given = leaves()
    call: Any = lambda q, k, v: attention(q, k, v, row=ROWS[name])  # noqa: E731
    call = torch.compile(call, backend="aot_eager", fullgraph=True) if compiled else call
    made = with_gradients(call(*given), [*given, *captured(name)])
    exact: list[Any] = [x.detach().double().requires_grad_() for x in (*given, *captured(name))]
    for variable, tensor in zip({"weighted": ["TABLE"], "retained": ["RATE"]}.get(name, []), exact[3:], strict=True):
        monkeypatch.setitem(globals(), variable, tensor)
    for one, other in zip(made, with_gradients(dense(ROWS[name], *exact[:3]), exact), strict=True):
        assert_near(one, other, 2e-5)


def test_masked_keys_and_dropout_and_layouts() -> None:
    """A mask drops keys from what the row computes of positions, too; the scores of dropout and of positions do not meet."""
    given = leaves()
    mask = masks.sliding_window(6, 2)
    keep = (torch.arange(SQ)[:, None] - torch.arange(SKV) <= 6) & (torch.arange(SKV) - torch.arange(SQ)[:, None] <= 2)
    exact: list[Any] = [x.detach().double().requires_grad_() for x in given]
    wanted = with_gradients(dense(sink_tokens, *exact, keep=keep), exact)
    for one, other in zip(with_gradients(attention(*given, row=sink_tokens, mask_mod=mask), given), wanted, strict=True):
        assert_near(one, other, 2e-5)
    plain = attention(*given, row=sink_tokens, mask_mod=mask)
    other = attention(*[order(x, "bshd") for x in given], row=sink_tokens, mask_mod=mask, layout="bshd")
    torch.testing.assert_close(order(other, "bshd"), plain)
    one = torch.eye(SKV).expand(1, 2, SKV, SKV)  # makes weights of the values
    weights = attention(given[0], given[1], one, row=sink_tokens, mask_mod=mask)
    dropped = attention(given[0], given[1], one, row=sink_tokens, mask_mod=mask, dropout_p=0.5, dropout_seed=(1, 2))
    kept = dropped != 0
    torch.testing.assert_close(dropped, torch.where(kept, 2.0 * weights, 0.0))
    assert 0.3 < kept[weights != 0].float().mean() < 0.7


def test_weights_of_positions_alone_and_row_outputs() -> None:
    given = leaves()
    assert_near(attention(*given, row=of_positions), dense(lambda s, *i: of_positions(s, *i) + 0 * s, *[x.double() for x in given]))

    def counting(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        even = (kv_idx % 2 == 0).float()
        return s.softmax(-1), {"even": even.sum(-1), "last": torch.where(s > 0.0, kv_idx.float(), -1.0).amax(-1)}

    o, states = attention(*given, row=counting, return_states=True)
    q, k, _ = (x.detach().double() for x in given)
    last = torch.where(q @ k.repeat_interleave(2, 1).mT > 0, torch.arange(SKV).double(), -1.0).amax(-1)
    torch.testing.assert_close(states["even"], torch.full((1, 4, SQ), 15.0))
    torch.testing.assert_close(states["last"].double(), last)
    torch.testing.assert_close(o, attention(*given))


def test_tangents() -> None:
    given = [x.detach() for x in leaves()]
    exact = [x.double() for x in given]
    change = [torch.randn(x.shape, generator=torch.Generator().manual_seed(6)) for x in given]
    made = torch.func.jvp(lambda *x: attention(*x, row=sink_tokens), tuple(given), tuple(change))
    wanted = torch.func.jvp(lambda *x: dense(sink_tokens, *x), tuple(exact), tuple(x.double() for x in change))
    for one, other in zip(made, wanted, strict=True):
        assert_near(one, other, 2e-5)


def test_what_it_comes_to_and_what_is_refused() -> None:
    text = Attention(row=weighted).ir()
    assert '"attn.yield"' in text and text.count("tensor.extract") == 1 and "^bb0(%s: f32, %of_key" in text.replace("\n", " ")
    with pytest.raises(TraceError, match="this looks like a score_mod: pass score_mod="):
        Attention(row=lambda score, b, h, q_idx, kv_idx: score)
    with pytest.raises(TraceError, match=r"computes an integer of kv_idx and of scores(.|\n)*kv_idx.float\(\)"):
        Attention(row=lambda s, b, h, q_idx, kv_idx: (s.int() + kv_idx).float())
    with pytest.raises(TraceError, match="differs from key to key"):
        attention(*leaves(), row=lambda s, b, h, i, j: (s, {"where": j}), return_states=True)
