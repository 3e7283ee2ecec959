"""Methods of captured numpy arrays: those that torch has with another meaning are refused, never torch's in silence."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir import attention
from attn_mlir.errors import TraceError

TABLE = np.array([0.5, 1.5, 4.0])
Q, K, V = torch.randn(3, 1, 2, 5, 8, dtype=torch.float64)


def _run(factor: Callable[[], Any]) -> torch.Tensor:
    return attention(Q, K, V, score_mod=lambda score, b, h, q_idx, kv_idx: score * factor())


@pytest.mark.parametrize(
    "factor",
    [
        lambda: TABLE.std(),
        lambda: TABLE.var(),
        lambda: (TABLE * 2)[:2].std(),
        lambda: TABLE[None].T.var(),
        lambda: np.exp(1.0) * TABLE.repeat(2)[1],
        lambda: TABLE.nonzero()[0][0],
        lambda: TABLE.sort() or TABLE[0],
    ],
)
def test_methods_with_another_meaning_in_torch_are_refused(factor: Callable[[], Any]) -> None:
    with pytest.raises(TraceError, match=r"of a numpy array .* in torch"):
        _run(factor)


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (lambda: torch.std(TABLE), torch.from_numpy(TABLE).std()),  # type: ignore[arg-type]
        (lambda: torch.as_tensor(TABLE).var(), torch.from_numpy(TABLE).var()),
        (lambda: TABLE.mean() + TABLE[1:].max() + (TABLE * 2).sum(), TABLE.mean() + TABLE.max() + 2 * TABLE.sum()),
    ],
)
def test_functions_of_torch_and_methods_of_one_meaning_are_taken(factor: Callable[[], Any], expected: Any) -> None:
    scores = Q @ K.mT / 8**0.5 * float(expected)
    torch.testing.assert_close(_run(factor), scores.softmax(-1) @ V, rtol=1e-9, atol=1e-9)
