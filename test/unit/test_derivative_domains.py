"""Programs that exist only for some scores and captured numbers: their derivatives are checked there, or it is said why not."""

import pytest
import torch

import attn_mlir
from attn_mlir.diagnostics import DiagnosticError

Tensor = torch.Tensor


@pytest.fixture
def tensors() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [(0.2 * torch.randn(1, 1, 6, 4, generator=generator, dtype=torch.float64)).requires_grad_() for _ in range(3)]


def test_poincare_distance(tensors: list[Tensor]) -> None:
    """1 - |q|^2 divides: most normal numbers are outside of the ball."""
    q, k, v = tensors
    of_q, of_k = q.square().sum(-1), k.square().sum(-1)

    def distance(s, b, h, q_idx, kv_idx):
        x = 1 + 2 * (of_q[b, h, q_idx] + of_k[b, h, kv_idx] - 2 * s) / ((1 - of_q[b, h, q_idx]) * (1 - of_k[b, h, kv_idx]))
        return -torch.log(x + torch.sqrt(x * x - 1))

    found = attn_mlir.attention(q, k, v, score_mod=distance, scale=1.0)
    x = of_q[..., :, None] + of_k[..., None, :] - 2 * q @ k.transpose(-1, -2)
    x = 1 + 2 * x / ((1 - of_q[..., :, None]) * (1 - of_k[..., None, :]))
    wanted = torch.softmax(-torch.acosh(x), -1) @ v
    do = torch.ones_like(v)
    torch.testing.assert_close(*[torch.autograd.grad(o, tensors, do, retain_graph=True) for o in (found, wanted)])


def test_a_row_that_is_nowhere_a_number_points_at_its_line(tensors: list[Tensor]) -> None:
    def row(s):
        below = -1.0 - s * s
        return torch.sqrt(below)

    with pytest.raises(DiagnosticError, match=r"NaN or infinite at nearly all random samples.*clamp") as raised:
        attn_mlir.attention(*tensors, row=row)
    assert raised.value.diagnostics[0].line == row.__code__.co_firstlineno + 2, "the root's line, not that of the call"


def test_a_bisection_is_refused_with_advice(tensors: list[Tensor]) -> None:
    def row(s):
        low, high = s.max() - 1.0, s.max()
        for _ in range(12):
            middle = 0.5 * (low + high)
            more = torch.relu(s - middle).sum() > 1.0
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        return torch.relu(s - 0.5 * (low + high))

    with pytest.raises(DiagnosticError, match=r"found by comparisons.*detach\(\) it and add one Newton step"):
        attn_mlir.attention(*tensors, row=row)
