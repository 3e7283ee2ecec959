"""Captured parameters between steps of an optimizer, by every way of calling."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import Attention, attention

Function = Callable[..., Any]
F64 = torch.float64
B, H, S, D = 1, 2, 5, 4


def dense(q: Any, k: Any, v: Any, score_mod: Function) -> torch.Tensor:
    grid = [torch.arange(n).view([n if i == j else 1 for j in range(4)]) for i, n in enumerate((B, H, S, S))]
    return torch.softmax(score_mod((q @ k.transpose(-1, -2)) * D**-0.5, *grid), -1) @ v


def test_training_and_every_way_of_calling() -> None:
    """Values and gradients after steps of an optimizer, with and without gradients, under torch.func and inside torch.compile."""
    t = torch.nn.Parameter(torch.tensor([0.5, 0.25], dtype=F64))
    q, k, v = torch.randn(3, B, H, S, D, dtype=F64)
    score_mod: Function = lambda s, b, h, i, j: s - t.exp()[h] * (i - j) * t.mean()  # noqa: E731
    made = Attention(score_mod=score_mod)
    compiled = torch.compile(lambda q, k, v: attention(q, k, v, score_mod=score_mod), fullgraph=True, backend="aot_eager")
    ways: list[Function] = [made, lambda q, k, v: attention(q, k, v, score_mod=score_mod), compiled]
    optimizer = torch.optim.SGD([t], lr=0.2)
    with torch.no_grad():
        torch.testing.assert_close(made(q, k, v), dense(q, k, v, score_mod))
    for _ in range(3):
        (wanted,) = torch.autograd.grad(dense(q, k, v, score_mod).square().sum(), [t])
        for way in ways:
            o = way(q, k, v)
            torch.testing.assert_close(o, dense(q, k, v, score_mod))
            optimizer.zero_grad()
            o.square().sum().backward()
            torch.testing.assert_close(t.grad, wanted)
        optimizer.step()
        t.requires_grad_(False)
        assert not made(q, k, v).requires_grad
        t.requires_grad_(True)
        with torch.inference_mode():
            torch.testing.assert_close(made(q, k, v), dense(q, k, v, score_mod))

    def loss(function: Function) -> Function:
        return lambda w: function(lambda s, b, h, i, j: s - w.exp()[h] * (i - j)).square().sum()

    ours, reference = loss(lambda mod: attention(q, k, v, score_mod=mod)), loss(lambda mod: dense(q, k, v, mod))
    w = torch.tensor([0.5, 0.25], dtype=F64)
    torch.testing.assert_close(torch.func.grad(ours)(w), torch.func.grad(reference)(w))
    torch.testing.assert_close(torch.func.jvp(ours, (w,), (w + 1,))[1], torch.func.jvp(reference, (w,), (w + 1,))[1])
    batch = torch.rand(3, 2, dtype=F64)
    torch.testing.assert_close(torch.func.vmap(ours)(batch), torch.func.vmap(reference)(batch))
